"""docs/console.md: its examples run, its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path

from console.live.topic import TOPICS, Topic, Topics
from console.pages import Pages

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "console.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def run_with(code: str, **replaced: object) -> dict[str, object]:
    """Run an example that declares things, in registers of the test's own."""
    lines = [line for line in code.splitlines() if not line.startswith(("from console.",))]
    names: dict[str, object] = dict(replaced)
    exec("\n".join(lines), names)  # noqa: S102 - our own documentation
    return names


def test_the_example_of_a_page_declares_one():
    from console.pages import Endpoint, Page

    pages = Pages()
    run_with(
        blocks("python")[0],
        Page=Page,
        Endpoint=Endpoint,
        register_page=pages.add_page,
        register_endpoint=pages.add_endpoint,
    )
    page = pages.find("greeting")
    assert page is not None
    assert page.context(None) == {"greeting": "Good morning"}


def test_the_example_of_a_topic_declares_one():
    topics = Topics()
    names = run_with(blocks("python")[1], Topic=Topic, register_topic=topics.add)
    assert names["read_clock"](None, "here") == {"time": "now", "place": "here"}


def test_every_topic_and_every_variable_is_documented():
    listed = set(re.findall(r"^\| `([a-z]+)", TEXT.split("## Live updates")[1], re.MULTILINE))
    assert set(TOPICS.names) <= listed
    tokens = (ROOT / "console/static/console/tokens.css").read_text()
    for name in re.findall(r"`(--[a-z0-9-]+)`", TEXT):
        assert f"{name}:" in tokens, name


def test_style_sheets_use_only_variables_that_exist():
    """A variable that no theme sets would silently be the fall-back, or nothing."""
    import django.contrib.admin

    base = Path(django.contrib.admin.__file__).parent / "static/admin/css/base.css"
    tokens = ROOT / "console/static/console/tokens.css"
    known = set(re.findall(r"(--[\w-]+):", tokens.read_text() + base.read_text()))
    for sheet in ROOT.glob("*/static/**/*.css"):
        if "vendor" not in sheet.parts:
            assert set(re.findall(r"var\((--[\w-]+)", sheet.read_text())) <= known, sheet


def test_vendored_files_say_where_they_come_from_and_under_which_licence():
    for folder in (*ROOT.glob("console/static/console/vendor/*/"), *ROOT.glob("tests/vendor/*/")):
        assert (folder / "LICENSE").exists()
        assert re.search(rf"^\| `{folder.relative_to(ROOT)}/` \| npm `\S+` \d+\.\d+\.\d+ \|", TEXT, re.MULTILINE), (
            folder
        )
