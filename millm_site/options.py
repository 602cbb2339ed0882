"""Options of `manage.py serve` that set variables of the environment.

manage.py applies them before Django reads the settings, so an option takes precedence over the environment, and child
processes have it too.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

COMMAND = "serve"


@dataclass(frozen=True, slots=True)
class SettingOption:
    variable: str
    metavar: str
    help: str


OPTIONS = {
    "--host": SettingOption("MILLM_HOST", "ADDRESS", "Address to listen on (instead of MILLM_HOST)."),
    "--port": SettingOption("MILLM_PORT", "PORT", "Port to listen on; 0: any free port (instead of MILLM_PORT)."),
    "--workers": SettingOption(
        "MILLM_WORKERS", "NUMBER", "Web processes that share the engine of a main process (instead of MILLM_WORKERS)."
    ),
    "--api-key": SettingOption(
        "MILLM_ADMIN_API_KEY",
        "KEY",
        "An API key with all rights, beside those of the database (instead of MILLM_ADMIN_API_KEY). Other users of "
        "this machine can see it in the process list: set the variable or use --config where there are any.",
    ),
    "--config": SettingOption(
        "MILLM_CONFIG",
        "FILE",
        "TOML file with settings (instead of MILLM_CONFIG). Options and environment variables take precedence.",
    ),
}
_applied: dict[str, str] = {}  # options of this process by variable


def add_setting_options(parser: ArgumentParser) -> None:
    for name, option in OPTIONS.items():
        parser.add_argument(name, dest=option.variable, metavar=option.metavar, help=option.help)


def apply_setting_options(arguments: Sequence[str]) -> None:
    """Set the variables of the options in ``arguments``, those of manage.py. Exit with a message for an empty value."""
    if arguments[1:2] != [COMMAND]:
        return
    parser = ArgumentParser(prog=f"manage.py {COMMAND}", add_help=False, allow_abbrev=False)
    add_setting_options(parser)
    given = vars(parser.parse_known_args(arguments[2:])[0])
    for name, option in OPTIONS.items():
        value = given[option.variable]
        if value is None:
            continue
        if not value.strip():
            parser.error(f"argument {name}: must not be empty")
        os.environ[option.variable] = str(Path(value).absolute()) if name == "--config" else value
        _applied[option.variable] = name


def option_of(variable: str) -> str:
    """Return the option of this process that set a variable, or ""."""
    return _applied.get(variable, "")


def unapplied_options(given: Mapping[str, object]) -> list[str]:
    """Return the options that a command was given by another program than manage.py, and that therefore have no
    effect."""
    return [
        name
        for name, option in OPTIONS.items()
        if given.get(option.variable) is not None and option.variable not in _applied
    ]


def applied_options() -> dict[str, str]:
    """Return the options that this process was given, by the variable that they set."""
    return dict(_applied)


def inherit_options(applied: Mapping[str, str]) -> None:
    """Note the options of the process that started this one. Their variables are in the environment."""
    _applied.update(applied)
