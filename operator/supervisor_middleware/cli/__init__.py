"""`smw`: parse, call, render, exit code. No decisions; heavy imports only on use, so that `--help` is quick."""
