"""The comparison table of sweeps: what its rows are of, and the command that makes it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from inference.models import LanguageModel
from steering import services
from steering.errors import EvaluationError
from steering.evaluation.arms import figures
from steering.evaluation.evidence import evidence_table, report_md, tables_json, tables_markdown
from steering.evaluation.measures import AnswerRow, to_columns
from steering.evaluation.params import NEUTRAL_PROMPTS
from steering.evaluation.services import inline_target
from steering.models import Evaluation, SteeringProfile
from steering.profiles.inline_edits import read_short_edits

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


EDIT = {"index": 1, "strength": 2.0, "unit": "raw"}


def kept_sweep(model: LanguageModel, num_directions: int, system: str, **target: Any) -> None:
    texts = {**TEXTS, "prompts": NEUTRAL_PROMPTS[:4]}
    controls = {"random_directions": num_directions, "random_features": 1, "system_prompt": system, "off_target": True}
    result = sweep(texts=texts, control_settings=controls).result
    Evaluation.objects.create(kind="sweep", model=model, result=result, **target)


def test_a_concept_has_a_row_for_each_profile_and_each_list_of_edits(
    profile: SteeringProfile, model: LanguageModel, tmp_path: Path
) -> None:
    """Sweeps with these parameters are known, so no job runs; others are not used."""
    version = services.publish_profile(profile=profile)
    edits = inline_target(model=model, edits=read_short_edits(model, [EDIT])).edits
    for num_directions in (8, 2):
        kept_sweep(model, num_directions, "Be wet.", version=version)
        kept_sweep(model, num_directions, "", edits=edits)
    concept = {"name": "rain", "methods": ["gloomy", [EDIT]], "system_prompt": "Be wet."}
    spec, output = tmp_path / "spec.json", tmp_path / "evidence.md"
    spec.write_text(json.dumps({"model": "tiny", "words": "words.json", "concepts": [concept]}), "utf-8")
    (tmp_path / "words.json").write_text(json.dumps({"rain": ["rain"]}), "utf-8")
    output.write_text("Before.\n<!-- tables: start -->\nold\n<!-- tables: end -->\nAfter.\n", "utf-8")
    options = {"num_prompts": 4, "max_tokens": 8, "random_directions": 2}
    call_command("evidence_table", str(spec), output=output, **options)
    text = output.read_text("utf-8")
    assert text.startswith("Before.\n")
    assert text.endswith("After.\n")
    assert "old" not in text
    assert [line.split(" | ")[0].strip("| ") for line in text.splitlines() if line.startswith("| ")][1:] == [
        "unsteered",
        "features: gloomy@1",
        "features: tiny-sae #1 cats and kittens: add 2 raw",
        "system prompt",
        "system prompt",
        "random directions (n = 2), sized as gloomy@1",
        "random directions (n = 2), sized as #1",
        "random live feature, sized as gloomy@1",
        "random live feature, sized as #1",
    ]
    (table,) = json.loads(output.with_suffix(".json").read_text("utf-8"))
    assert table["settings"]["texts"]["max_tokens"] == 8
    concept["methods"] = ["happy"]
    spec.write_text(json.dumps({"model": "tiny", "words": "words.json", "concepts": [concept]}), "utf-8")
    with pytest.raises(CommandError, match="no published profile happy"):
        call_command("evidence_table", str(spec), **options)


def test_the_published_page_is_of_the_shipped_spec() -> None:
    """A retrained SAE has other features, and the tables have to be measured again."""
    tables = json.loads(Path("docs/evidence.json").read_text("utf-8"))
    page = Path("docs/evidence.md").read_text("utf-8")
    with gzip.open(SPEC.parent / "features.jsonl.gz", "rt", encoding="utf-8") as lines:
        labels = {row["index"]: row.get("label", "") for row in map(json.loads, lines)}
    concepts = {one["name"]: one for one in json.loads(SPEC.read_text("utf-8"))["concepts"]}
    assert tables
    for table in tables:
        rows = [row for row in table["rows"] if row["kind"] == "profile"]
        for method, row in zip(concepts[table["concept"]]["methods"], rows, strict=True):
            name = method if isinstance(method, str) else f"#{method[0]['index']} {labels[method[0]['index']]}"
            assert name in row["name"]
            assert f"| {row['name']} | {row['num_answers']} |" in page


def test_the_shipped_spec_names_word_lists(tmp_path: Path) -> None:
    spec = json.loads(SPEC.read_text("utf-8"))
    words = json.loads((SPEC.parent / spec["words"]).read_text("utf-8"))
    assert {one["name"] for one in spec["concepts"]} <= words.keys()
    broken = tmp_path / "spec.json"
    broken.write_text("{}", "utf-8")
    with pytest.raises(CommandError, match="cannot be read"):
        call_command("evidence_table", str(broken))
