"""The comparison table of sweeps: what its rows are of, and the command that makes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from steering.errors import EvaluationError
from steering.evaluation.arms import figures
from steering.evaluation.evidence import evidence_table, report_md, tables_json, tables_markdown
from steering.evaluation.measures import AnswerRow, to_columns
from steering.models import Evaluation

TEXTS = {"prompts": ["a", "b", "c", "d"], "max_tokens": 8, "temperature": 1.0, "seed": 0, "samples_per_prompt": 1}
SPEC = Path("steering/demo/smollm2/evidence.json")


def rows(words: list[int]) -> list[AnswerRow]:
    return [
        AnswerRow(n, 0, tokens=4, kl=2.0, base_tokens=4, kl_base=1.0, logprob=-8.0, repeat=0.0, words=w, num_words=10)
        for n, w in enumerate(words)
    ]


def point(kind: str, name: str, factor: float | None, words: list[int]) -> dict[str, Any]:
    return {"kind": kind, "name": name, "factor": factor, "answers": to_columns(rows(words))}


def sweep(*, factors: tuple[float, ...] = (1.0,), chosen: float = 1.0, **values: Any) -> Evaluation:
    steered = [point("profile", f"{factor:g} ×", factor, [1, 3, 1, 5]) for factor in factors]
    controls = [
        point("random_direction", "random direction 1", chosen, [0, 0, 0, 1]),
        point("random_direction", "random direction 2", chosen, [0, 1, 0, 0]),
        point("random_feature", "random feature: x | y", chosen, [0, 0, 0, 0]),
        point("system_prompt", "system prompt", None, [2, 2, 2, 2]),
    ]
    result = {
        "model": "tiny",
        "texts": TEXTS,
        "words": ["rain"],
        "judge": None,
        "points": [point("unsteered", "no steering", None, [0, 1, 0, 1]), *steered],
        "controls": controls,
        "recommendation": {"factor": chosen, "is_found": True, "is_split": True, "effect": "words", "reason": ""},
        "off_target": {"without": [0.75, 0.7, 0.8], "with": [0.5, 0.4, 0.6], "difference": [-0.25, -0.3, -0.2]},
    }
    return Evaluation(kind="sweep", edits=[], result={**result, **values})


def test_rows_of_a_strength_that_was_chosen_are_of_the_other_half() -> None:
    table = evidence_table("gloomy", [sweep(factors=(0.5, 1.0), chosen=0.5)])
    found = {row.kind: row for row in table.rows}
    assert [row.num_answers for row in table.rows] == [2, 2, 2, 4, 2]
    assert found["profile"].factor == 0.5
    assert found["profile"].measures["words"][0] == 8 / 20  # prompts b and d alone
    assert found["random_direction"].measures["words"][0] == 2 / 40
    assert found["profile"].measures["off_target"] == [0.5, 0.4, 0.6]
    assert found["unsteered"].measures["off_target"] == [0.75, 0.7, 0.8]


def test_a_fixed_strength_is_reported_on_all_prompts_with_intervals() -> None:
    table = evidence_table("gloomy", [sweep()])
    (profile,) = [row for row in table.rows if row.kind == "profile"]
    expected = figures(rows([1, 3, 1, 5]))["words"]
    assert profile.num_answers == 4
    assert expected is not None
    assert profile.measures["words"] == expected.to_json()
    assert profile.measures["kl_base"][0] == 0.25
    assert profile.measures["kl"][0] == 0.5
    assert json.loads(tables_json([table]))[0]["rows"][1]["measures"]["words"] == expected.to_json()


def test_markdown_names_every_row_and_both_divergences() -> None:
    text = report_md(sweep())
    head, _, *body = [line for line in text.splitlines() if line.startswith("|")]
    assert "KL(base‖steered) | KL(steered‖base)" in head
    assert len({line.count(" | ") for line in (head, *body)}) == 1
    assert [line.split(" | ")[0].strip("| ") for line in body] == [
        "unsteered",
        "site edits: inline edits",
        "system prompt",
        "random directions (n = 2)",
        "random live feature",
    ]
    assert "25.0%" in body[1]


def test_several_profiles_share_the_unsteered_row() -> None:
    table = evidence_table("gloomy", [sweep(), sweep()])
    assert [row.kind for row in table.rows].count("unsteered") == 1
    assert [row.kind for row in table.rows].count("profile") == 2
    assert "sized as inline edits" in tables_markdown([table])
    with pytest.raises(EvaluationError, match="same model, prompts"):
        evidence_table("gloomy", [sweep(), sweep(texts={**TEXTS, "seed": 1})])
    with pytest.raises(EvaluationError, match="Only a sweep"):
        report_md(Evaluation(kind="calibration", edits=[], result={}))
    with pytest.raises(EvaluationError, match="recommends no strength"):
        evidence_table("gloomy", [sweep(factors=(0.5,), chosen=1.0)])


def test_the_shipped_spec_names_word_lists(tmp_path: Path) -> None:
    spec = json.loads(SPEC.read_text("utf-8"))
    words = json.loads((SPEC.parent / spec["words"]).read_text("utf-8"))
    assert {one["name"] for one in spec["concepts"]} <= words.keys()
    broken = tmp_path / "spec.json"
    broken.write_text("{}", "utf-8")
    with pytest.raises(CommandError, match="cannot be read"):
        call_command("evidence_table", str(broken))
