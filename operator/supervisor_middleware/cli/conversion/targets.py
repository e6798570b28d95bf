"""The forms that can be asked for. PURE; apart because the command line needs them before anything is loaded."""

from enum import StrEnum


class Target(StrEnum):
    """The form asked for."""

    RESOURCES = "resources"
    TOML = "toml"
    OPENSHELL = "openshell"
