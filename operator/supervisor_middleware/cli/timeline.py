"""A story told step by step: what was expected beside what happened. Used by `smw demo` and by the cluster's demo."""

import time
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console
from rich.text import Text

_INDENT: Final = " " * 11
_BESIDE: Final = 28
"""Up to so many characters, what happened stands on the same line; 80 columns hold both."""


@dataclass(slots=True)
class Timeline:
    """Prints each step as it happens; counts those that went as expected."""

    title: str
    console: Console = field(default_factory=lambda: Console(highlight=False, soft_wrap=True))
    began: float = field(default_factory=time.monotonic)
    steps: int = 0
    as_expected: int = 0

    def chapter(self, text: str) -> None:
        """A heading."""
        self.console.print()
        self.console.print(Text(text, style="bold"))

    def note(self, text: str) -> None:
        """What is being done, on steps that take seconds."""
        self.console.print(Text(f"  {self._clock()}  … {text}", style="dim"))

    def step(self, what: str, *, expected: str, happened: str, details: tuple[str, ...] = ()) -> bool:
        """One comparison: equal texts are as expected. `details` are shown below it."""
        is_good = expected == happened
        self.steps += 1
        self.as_expected += is_good
        mark = Text("✓", style="green") if is_good else Text("✗", style="bold red")
        self.console.print(Text(f"  {self._clock()}  ") + mark + Text(f" {what}"))
        first = Text(f"{_INDENT}expected  {expected:<{_BESIDE}}", style="dim")
        second = Text(f"happened  {happened}", style="" if is_good else "red")
        if len(expected) <= _BESIDE:
            self.console.print(first + Text("  ") + second)
        else:
            self.console.print(first)
            self.console.print(Text(_INDENT) + second)
        for line in details:
            self.console.print(Text(f"{_INDENT}{line}", style="dim"))
        return is_good

    def finish(self) -> int:
        """The closing line; the exit code: 0 if every step went as expected, else 1."""
        self.console.print()
        style = "bold green" if self.as_expected == self.steps else "bold red"
        self.console.print(Text(f"{self.title}: {self.as_expected} of {self.steps} steps as expected", style=style))
        return 0 if self.as_expected == self.steps and self.steps else 1

    def _clock(self) -> str:
        return f"{time.monotonic() - self.began:5.1f}s"
