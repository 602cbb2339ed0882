"""llm-comply: answers and streams against the published schemas of three APIs."""

from __future__ import annotations

import pytest

from tests.clients.environment import run_comply

# What a model for text cannot do, and what llm-comply asks of models by their names alone.
EXCEPTIONS = {"image-input": "failed", "reasoning-summary": "skipped", "thinking-display": "skipped"}


@pytest.mark.parametrize(
    ("form", "prefix", "count"), [("openai-chat", "chat-", 9), ("open-responses", "", 13), ("anthropic", "anth-", 9)]
)
def test_everything_but_images_passes(site: str, form: str, prefix: str, count: int) -> None:
    results = run_comply(f"{site}/v1", form)
    expected = {name: EXCEPTIONS.get(name.removeprefix(prefix), "passed") for name in results}
    assert {name: result["status"] for name, result in results.items()} == expected, results
    assert len(results) == count
