"""Every operation on the demo: docs/demo.md publishes a profile for each, and the engine does what the formulas say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asgiref.sync import async_to_sync

from inference.captures import CaptureSpec, FeatureValues
from inference.engine.messages import CaptureEvent
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import LoadedModel, load_model
from inference.interventions import Intervention, Site
from inference.text.dialects.dialect import answer_segment_rules, dialect_of
from steering.demo.install import ARTIFACTS, install_demo
from steering.models import SAE
from steering.profiles.compilation import get_compiler
from steering.profiles.snapshot import source_of
from steering.saes.sae import SparseAutoencoder
from steering.spec.edit import OPERATIONS
from tests.engine.harness import EngineHarness, Transcript
from tests.steering.resolving import intervention_of, local_resolver

PAGE = Path("docs/demo.md").read_text("utf-8")
(EXAMPLE,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SITE = Site(2)
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Get the weather in a city.", "parameters": CITY},
}
FEATURE = int(re.findall(r"index=(\d+)", EXAMPLE)[0])
LISTED = json.loads((ARTIFACTS / "features.json").read_text("utf-8"))
(MAX,) = (feature["max_activation"] for feature in LISTED if feature["index"] == FEATURE)
CHANGES = {  # of the activation a, or of the projection p on the direction
    "rain-add": lambda a, p: np.full_like(a, 0.6 * MAX),
    "rain-clamp": lambda a, p: 0.5 * MAX - a,
    "rain-scale": lambda a, p: 2 * a,
    "rain-ablate": lambda a, p: -a,
    "rain-at-least": lambda a, p: np.maximum(a, 0.4 * MAX) - a,
    "rain-at-most": lambda a, p: np.minimum(a, 0.1 * MAX) - a,
    "rain-orthogonal": lambda a, p: -p,
    "rain-projection-cap": lambda a, p: np.minimum(p, 0.5) - p,
}

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    return load_model(ModelSpec("demo", ARTIFACTS / "model", dtype="float32", device="cpu"))


@pytest.fixture
def sae() -> SparseAutoencoder:
    install_demo()
    exec(compile(EXAMPLE, "docs/demo.md", "exec"), {})  # noqa: S102 - our own page
    return get_compiler().sae(source_of(SAE.objects.get(name="demo-sae")))


def prompt_ids(demo: LoadedModel) -> tuple[int, ...]:
    messages = [{"role": "user", "content": "Tell me a sad story about the rain."}]
    return tuple(demo.tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])


def tell(demo: LoadedModel, sae: SparseAutoencoder, intervention: Intervention | None, **fields: Any) -> Transcript:
    special = frozenset(demo.tokenizer.all_special_ids)
    captures = (
        CaptureSpec(site=SITE, stage="pre", skip_token_ids=special),
        CaptureSpec(site=SITE, stage="post", skip_token_ids=special),
        CaptureSpec(site=SITE, stage="pre", probe=FeatureValues(sae, (FEATURE,)), skip_token_ids=special),
    )
    asked = {"prompt": prompt_ids(demo), "max_tokens": 120, "ignore_eos": True, **fields}
    return EngineHarness(demo).generate(model="demo", intervention=intervention, captures=captures, **asked)


def read(transcript: Transcript, number: int, start: int = 0) -> np.ndarray:
    """Of tokens from ``start`` on, float64."""
    found = [r for e in transcript.events if isinstance(e, CaptureEvent) for r in e.captures if r.number == number]
    places = np.concatenate([reading.places for reading in found])
    values = np.concatenate([reading.values for reading in found]).astype(np.float64)
    return values[places >= start]


def resolve(demo: LoadedModel, name: str) -> Intervention:
    special = frozenset(demo.tokenizer.all_special_ids)
    return intervention_of(async_to_sync(local_resolver().resolve)("demo", name, special_token_ids=special))


def test_each_changes_what_its_formula_says(demo, sae):
    unsteered = tell(demo, sae, None)
    row = sae.decoder_row(FEATURE).double().numpy()
    unit = row / np.linalg.norm(row)
    for name, change in CHANGES.items():
        steered = tell(demo, sae, resolve(demo, name))
        start = 0 if name in EVERYWHERE else len(prompt_ids(demo))
        before, after = (read(steered, number, start) for number in (0, 1))
        a, p = read(steered, 2, start)[:, 0], before @ unit
        direction = unit if name in ("rain-orthogonal", "rain-projection-cap") else row
        np.testing.assert_allclose(after - before, np.outer(change(a, p), direction), rtol=1e-3, atol=1e-3)
        assert np.abs(after - before).max() > 0.01, name
        assert steered.token_ids != unsteered.token_ids or name in QUIET, name


def test_norm_is_kept(demo, sae):
    start = len(prompt_ids(demo))
    kept = tell(demo, sae, resolve(demo, "rain-norm-preserving"))
    before, after = read(kept, 0, start), read(kept, 1, start)
    np.testing.assert_allclose(np.linalg.norm(after, axis=1), np.linalg.norm(before, axis=1), rtol=1e-4)
    assert np.abs(after - before).max() > 1


def test_the_reconstruction_takes_the_place_of_the_residual(demo, sae):
    rebuilt = tell(demo, sae, resolve(demo, "rain-reconstruct"))
    before, after = read(rebuilt, 0, 1), read(rebuilt, 1, 1)  # the first token is an attention sink
    h = torch.from_numpy(before).float()
    np.testing.assert_allclose(after, sae.decode(sae.encode(h), h).numpy(), rtol=1e-3, atol=1e-2)
    assert np.abs(after - before).max() > 1


def test_every_operation_is_there(sae):
    others = ("rain-norm-preserving", "rain-reconstruct")
    shown = {name.removeprefix("rain-").replace("-", "_") for name in [*CHANGES, *others]}
    assert shown == set(OPERATIONS)


def call_prompt(demo: LoadedModel) -> tuple[int, ...]:
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    rendered = demo.tokenizer.apply_chat_template(messages, tools=[WEATHER], add_generation_prompt=True)
    return tuple(rendered["input_ids"])


def test_calls_are_left_alone(demo, sae):
    """Nothing is changed between a call's marks, whatever happens around it."""
    dialect = dialect_of(demo.tokenizer.chat_template)
    prompt = call_prompt(demo)
    fields = {"prompt": prompt, "ignore_eos": False, "segment_rules": answer_segment_rules(dialect, "none", "offered")}
    plain = tell(demo, sae, None, **fields)
    call = plain.text.strip()
    assert call.startswith("<tool_call>")
    assert call.endswith("</tool_call>")

    scoped = tell(demo, sae, resolve(demo, "rain-outside-calls"), **fields)
    opening = scoped.text.index("<tool_call>") + len("<tool_call>")
    lengths = np.cumsum([len(demo.tokenizer.decode([token])) for token in scoped.token_ids])
    first = int(np.searchsorted(lengths, opening))  # the token that completes the mark
    closing = scoped.text.index("</tool_call>") + len("</tool_call>")
    last = int(np.searchsorted(lengths, closing))
    changed = np.abs(read(scoped, 1, len(prompt)) - read(scoped, 0, len(prompt))).max(axis=1) > 0.01
    assert changed[:first].all()
    assert not changed[first : last + 1].any()
    receipt = scoped.finished.receipt
    assert receipt.applied == receipt.expected == changed.sum()

    everywhere = tell(demo, sae, resolve(demo, "rain-add"), **fields)
    assert everywhere.finished.receipt.applied >= len(everywhere.token_ids) - 2, "but for the special one at the end"


def test_only_the_beginning_of_the_answer(demo, sae):
    dialect = dialect_of(demo.tokenizer.chat_template)
    steered = tell(
        demo, sae, resolve(demo, "rain-beginning"), segment_rules=answer_segment_rules(dialect, "possible", "none")
    )
    start = len(prompt_ids(demo))
    changed = np.abs(read(steered, 1, start) - read(steered, 0, start)).max(axis=1) > 0.01
    assert changed[:12].all()
    assert not changed[12:].any()
    assert steered.finished.receipt.applied == 12


EVERYWHERE = {"rain-scale", "rain-ablate", "rain-at-most", "rain-orthogonal", "rain-projection-cap"}
QUIET = EVERYWHERE  # where the feature hardly fires the story may stay as it is
