"""What a command that needs valid policies says when they are not."""

from typing import TextIO

from supervisor_middleware.cli.offline.world import World
from supervisor_middleware.cli.rendering.forms import Form
from supervisor_middleware.cli.rendering.reports import Result, render
from supervisor_middleware.model.violation import Report


def complain(world: World, err: TextIO) -> bool:
    """Show the violations, if there are any; returns whether there are. What follows is about what would run.

    Where nothing was found at all, an answer about nothing is shown with the question whether the paths are right.
    """
    if world.is_empty:
        explain(Report(warnings=world.report.warnings), world, err)
    elif not world.report.is_valid:
        explain(Report(violations=world.report.violations), world, err)
    return not world.report.is_valid


def explain(report: Report, world: World, err: TextIO) -> None:
    """Show a report as `smw validate` does."""
    result = Result(report=report, objects=world.objects, skipped=world.snapshot.skipped, locate=world.locate)
    render(result, Form.TABLE, out=err)
