"""`smw validate`: everything that is wrong with a folder, at once.

Exit codes: 0 valid (warnings do not count), 1 something is wrong, 2 it could not be told: no such path, or a service
that could not be asked.
"""

import sys
from typing import TextIO

from supervisor_middleware.cli.offline.world import Options, World, gathered
from supervisor_middleware.cli.rendering.forms import Form
from supervisor_middleware.cli.rendering.reports import Result, render
from supervisor_middleware.model.violation import Report


def run(options: Options, *, form: Form = Form.TABLE, out: TextIO | None = None, err: TextIO | None = None) -> int:
    """Validate and show; returns the exit code.

    Raises:
        InvalidInput: a path does not exist, or an option makes no sense.
    """
    out, err = out or sys.stdout, err or sys.stderr
    world = gathered(options, err=err)
    render(result_of(world), form, out=out)
    return exit_code(world.report)


def result_of(world: World) -> Result:
    """What is shown of a world that is only validated."""
    return Result(report=world.report, objects=world.objects, skipped=world.snapshot.skipped, locate=world.locate)


def exit_code(found: Report) -> int:
    """0 valid, 1 not, 2 if only services that could not be asked stand in the way."""
    if found.is_valid:
        return 0
    return 2 if found.is_retryable else 1
