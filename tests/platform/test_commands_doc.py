"""docs/commands.md says what the commands take."""

from __future__ import annotations

from pathlib import Path

from django.core.management import call_command

from millm_site.env import PROJECT_DIR
from millm_site.management.commands.commands_doc import DJANGOS_OWN, commands_page, is_up_to_date, own_commands


def test_committed_page_is_up_to_date() -> None:
    assert (PROJECT_DIR / "docs" / "commands.md").read_text() == commands_page()
    call_command("commands_doc", check=True)


def test_page_names_every_command_and_every_option() -> None:
    page = commands_page()
    commands = dict(own_commands())
    files = {
        path.stem
        for path in PROJECT_DIR.glob("*/management/commands/*.py")
        if path.stem != "__init__" and "tests" not in path.relative_to(PROJECT_DIR).parts
    }
    assert set(commands) == files
    for name, command in commands.items():
        assert f"\n## {name}\n" in page
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        for action in command.create_parser("manage.py", name)._actions:
            if action.dest not in DJANGOS_OWN:
                assert (
                    f"`{action.option_strings[0] if action.option_strings else action.metavar or action.dest}`"
                    in section
                )


def test_page_holds_no_path_of_this_machine_and_no_placeholder() -> None:
    assert str(PROJECT_DIR) not in commands_page()
    assert "%(" not in commands_page()


def test_every_command_says_what_it_does() -> None:
    for name, command in own_commands():
        assert len(command.help) > 10, name


def test_page_that_differs_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "commands.md").write_text(commands_page() + "more")
    assert not is_up_to_date(tmp_path / "commands.md")
    assert not is_up_to_date(tmp_path / "missing.md")
