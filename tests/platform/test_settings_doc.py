from __future__ import annotations

from pathlib import Path

from django.core.management import call_command

from millm_site.env import PROJECT_DIR, Environment
from millm_site.management.commands.settings_doc import is_up_to_date, settings_page


def test_committed_page_is_up_to_date() -> None:
    assert (PROJECT_DIR / "docs" / "settings.md").read_text() == settings_page()
    call_command("settings_doc", check=True)


def test_page_names_every_variable_and_no_path_of_this_machine() -> None:
    page = settings_page()
    assert all(f"`MILLM_{name.upper()}`" in page for name in Environment.model_fields)
    assert str(PROJECT_DIR) not in page


def test_page_that_differs_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "settings.md").write_text(settings_page() + "\nmore")
    assert not is_up_to_date(tmp_path / "settings.md")
    assert not is_up_to_date(tmp_path / "missing.md")
