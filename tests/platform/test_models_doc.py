from __future__ import annotations

from pathlib import Path

from django.core.management import call_command

from inference.files.architectures import EXACT, REFUSED, TEXT_AND_PICTURES
from millm_site.env import PROJECT_DIR
from millm_site.management.commands.models_doc import is_up_to_date, models_page


def test_committed_page_is_up_to_date() -> None:
    assert (PROJECT_DIR / "docs" / "models.md").read_text() == models_page()
    call_command("models_doc", check=True)


def test_page_names_every_architecture_and_why_one_is_refused() -> None:
    page = models_page()
    assert all(f"| `{row.model_type}` | {row.models} |" in page for row in (*EXACT, *TEXT_AND_PICTURES, *REFUSED))
    assert all(row.refusal in page for row in REFUSED)


def test_page_that_differs_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "models.md").write_text(models_page() + "\nmore")
    assert not is_up_to_date(tmp_path / "models.md")
    assert not is_up_to_date(tmp_path / "missing.md")
