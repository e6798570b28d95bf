"""Commands as typer sees them: parameters and help; the work is in packages and modules of their own."""
