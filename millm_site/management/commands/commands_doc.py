"""manage.py commands_doc: write docs/commands.md, or check it."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, CommandError, get_commands, load_command_class

from millm_site.env import PROJECT_DIR

PATH = PROJECT_DIR / "docs" / "commands.md"
APPS = frozenset(
    {"audit", "console", "inference", "jobs", "management_api", "millm_site", "openai_api", "steering", "storage"}
)
HEAD = """# Commands

Run commands as `.venv/bin/python manage.py COMMAND`, for example:

```sh
.venv/bin/python manage.py list_models
```

They call the same services as the console and [/api](management-api.md), without permission checks. Commands that
need the engine start a job in the running server. `manage.py commands_doc` writes this page, and `make check` fails
if it is out of date. `manage.py help` also lists Django's commands.

"""
_DJANGO = (*BaseCommand.base_stealth_options, "version", "verbosity", "settings", "pythonpath", "traceback")
DJANGOS_OWN = frozenset({*_DJANGO, "no_color", "force_color", "skip_checks", "help"})


def commands_page() -> str:
    return HEAD + "\n".join(_section(name, command) for name, command in own_commands())


def own_commands() -> Iterator[tuple[str, BaseCommand]]:
    """Return the commands of our apps, by name."""
    for name, app in sorted(get_commands().items()):
        app_name = app if isinstance(app, str) else app.__module__
        if app_name.split(".")[0] in APPS:
            yield name, load_command_class(app_name, name)


def is_up_to_date(path: Path = PATH) -> bool:
    return path.is_file() and path.read_text() == commands_page()


def _section(name: str, command: BaseCommand) -> str:
    actions = [action for action in command.create_parser("manage.py", name)._actions if action.dest not in DJANGOS_OWN]
    rows = "".join(map(_row, actions))
    table = f"\n| argument | |\n|---|---|\n{rows}" if rows else ""
    return f"## {name}\n\n{_cell(command.help)}\n{table}"


def _row(action: argparse.Action) -> str:
    names = ", ".join(f"`{option}`" for option in action.option_strings) or f"`{action.metavar or action.dest}`"
    takes_value = bool(action.option_strings) and action.nargs != 0 and not action.choices
    value = f" {str(action.metavar or action.dest).upper()}" if takes_value else ""
    given = ", ".join(f"`{choice}`" for choice in action.choices or () if choice)
    notes = (
        _text(_with_default(action)),
        f"one of {given}" if given else "",
        "required" if action.option_strings and action.required else "",
    )
    return f"| {names}{value} | {'; '.join(note for note in notes if note)} |\n"


def _with_default(action: argparse.Action) -> str:
    """Return the help text with the default, unless the default is a path on this machine."""
    text = action.help or ""
    if isinstance(action.default, str | int | float):
        return text.replace("%(default)s", str(action.default))
    return text.replace(" (default: %(default)s)", "")


def _text(text: str) -> str:
    return " ".join(text.replace("%%", "%").split()).replace("|", "\\|")


def _cell(text: str) -> str:
    """Return a help text as a sentence."""
    text = _text(text)
    text = text[:1].upper() + text[1:]
    return text if not text or text.endswith((".", "?", "!", ":")) else f"{text}."


class Command(BaseCommand):
    help = "Write docs/commands.md from the commands."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--check", action="store_true", help="Write nothing; fail if the page is out of date.")

    def handle(self, *args: Any, check: bool, **options: Any) -> None:
        if not check:
            PATH.write_text(commands_page())
        elif not is_up_to_date():
            raise CommandError(f"{PATH.name} is out of date. Run: python manage.py commands_doc")
