"""manage.py settings_doc: write docs/settings.md, or check it."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, CommandError

from millm_site.env import PROJECT_DIR
from millm_site.setting_list import SettingDoc, setting_docs

PATH = PROJECT_DIR / "docs" / "settings.md"
HEAD = """# Settings

All settings are environment variables. An empty variable counts as unset. An invalid value ends the program with an
error message that names it, and `manage.py check` warns about variables with the prefix that are not settings.
`manage.py settings_doc` writes this page from `millm_site/env.py`, and `make check` fails if it is out of date.

Settings can also be in a TOML file that `MILLM_CONFIG` or `manage.py serve --config FILE` names, in lower case and
without the prefix. Unknown names are refused.

```toml
host = "0.0.0.0"
port = 8080
allowed_hosts = ["models.example.com"]
memory_budget = "12GB"
```

Precedence, highest first: options of `manage.py serve` (`--host`, `--port`, `--api-key`), environment variables, the
file, defaults. Restrict a file with secrets to its user (`chmod 600`).

*Settings* in the console shows the value of each setting and where it comes from, without secrets, to users with the
permission `console.view_settings`. Values are read when the server starts; changes need a restart.

| variable | default | description |
|---|---|---|
"""


def settings_page() -> str:
    return HEAD + "".join(_row(doc) for doc in setting_docs())


def is_up_to_date(path: Path = PATH) -> bool:
    return path.is_file() and path.read_text() == settings_page()


def _row(doc: SettingDoc) -> str:
    default = f"`{doc.default}`" if doc.default else ""
    return f"| `{doc.variable}` | {default} | {doc.description} |\n"


class Command(BaseCommand):
    help = "Write docs/settings.md from millm_site/env.py."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--check", action="store_true", help="Write nothing; fail if the page is out of date.")

    def handle(self, *args: Any, check: bool, **options: Any) -> None:
        if not check:
            PATH.parent.mkdir(exist_ok=True)
            PATH.write_text(settings_page())
        elif not is_up_to_date():
            raise CommandError(f"{PATH.name} is out of date. Run: python manage.py settings_doc")
