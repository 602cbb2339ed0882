"""Programs that docs/connect.md connects, with the settings that it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from millm_site.env import PROJECT_DIR
from tests.clients.environment import Report, RequestRows, python_of, run_command, run_python
from tests.clients.test_ollama import ask

PAGE = (PROJECT_DIR / "docs" / "connect.md").read_text()


def block(section: str, language: str) -> str:
    """The first block of code of a section of the page."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return text.split(f"```{language}\n")[1].split("```")[0]


@pytest.fixture(scope="module")
def report(site: str) -> Report:
    return run_python("frameworks", "frameworks_client", site)


@pytest.mark.parametrize("case", ["llamaindex", "langfuse"])
def test_frameworks_get_the_answers_of_v1(report: Report, site: str, case: str) -> None:
    found, story, gloomy = report(case), ask(site), ask(site, profile="gloomy")
    assert found["chat"] == found["stream"] == story
    assert found["body"] == found.get("named", gloomy) == gloomy
    assert found.get("usage", 24) == 24


@pytest.mark.parametrize("section", ["LlamaIndex", "Langfuse"])
def test_programs_of_the_page(site: str, section: str) -> None:
    off = {"LANGFUSE_TRACING_ENABLED": "false", "LANGFUSE_PUBLIC_KEY": "pk-none", "LANGFUSE_SECRET_KEY": "sk-none"}
    program = block(section, "python").replace("http://127.0.0.1:8000", site)
    command = [str(python_of("frameworks")), "-c", program]
    assert len(run_command(command, off, PROJECT_DIR).split()) > 5


def test_llamaindex_finds_and_answers(report: Report) -> None:
    found = report("llamaindex_answers_from_documents")
    assert len(found["sources"]) == 1
    assert found["answer"].strip()


def test_aider(site: str, tmp_path: Path) -> None:
    """One message, without a repository."""
    words = block("aider", "sh").replace("\\\n", " ").replace("http://127.0.0.1:8000", site).split()
    variables = dict(word.split("=", 1) for word in words if word.startswith(("OPENAI_", "AIDER_")))
    options = words[words.index("aider") + 1 :]
    assert options == ["--model", "openai/demo:gloomy"]
    command = [str(python_of("aider").parent / "aider"), *options, *OFF]
    switches = ["--message", "Tell me a story.", "--no-stream", "--chat-mode", "ask"]
    rows = RequestRows(site)
    output = run_command([*command, *switches], {**variables, "HOME": str(tmp_path)}, tmp_path)
    assert "Model: openai/demo:gloomy" in output
    (row,) = rows.added("/v1/chat/completions")
    assert (row["status"], row["profile"]) == (200, "gloomy@1")
    assert row["steering_applied"] > 0
    assert row["completion"].split()[:10] == output.split("\n\n")[1].split()[:10], output


OFF = [
    "--no-git",
    "--no-check-update",
    "--no-show-model-warnings",
    "--no-show-release-notes",
    "--no-pretty",
    "--no-auto-lint",
    "--no-analytics",
    "--no-gitignore",
    "--map-tokens=0",
    "--edit-format=whole",
    "--yes-always",
]
