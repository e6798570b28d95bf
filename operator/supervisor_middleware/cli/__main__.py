"""`python -m supervisor_middleware.cli` is `smw`."""

from supervisor_middleware.cli.main import main

main()
