"""Sequences that follow a grammar, alone and among others."""

from __future__ import annotations

import ctypes
import json
import re
import threading
import time

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.engine.sampling.token_masks import GrammarMatcher, MaskComputer
from inference.text.grammar import Grammar
from tests.builders import build_request
from tests.engine.harness import EngineHarness

pytestmark = pytest.mark.slow

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "bc"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
STARTS = ((5, 6, 7), (9, 8), (20, 21, 22, 23), (3, 4, 5, 6))


def schema(value) -> Grammar:
    return Grammar.of_schema(value)


@pytest.fixture
def engine(llama) -> EngineHarness:
    return EngineHarness(llama)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_json_follows_its_schema_in_every_architecture(loaded, temperature):
    engine = EngineHarness(loaded)
    for seed in range(3):
        done = engine.generate(
            grammar=schema(PERSON), max_tokens=200, temperature=temperature, seed=seed, prompt=STARTS[seed]
        )
        assert done.finished.reason == "stop"
        jsonschema.validate(json.loads(done.text), PERSON)


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (Grammar("regex", r"[A-C]{2}-\d{3}"), r"[A-C]{2}-\d{3}"),
        (Grammar("regex", r"a/b|c d"), r"a/b|c d"),
        (Grammar.of_choices(["yes", "no", 'say "ä"\n', "\x7f"]), 'yes|no|say "ä"\n|\x7f'),
        (Grammar("lark", 'start: item ("," item)*\nitem: "x" | "y" /[0-9]/'), r"(x|y\d)(,(x|y\d))*"),
        (Grammar("lark", 'root ::= "x" [0-9] "z"\n'), r"x\dz"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_every_kind_of_grammar(engine, grammar, pattern):
    for seed in range(4):
        done = engine.generate(grammar=grammar, max_tokens=100, temperature=1.0, seed=seed, ignore_eos=False)
        if done.finished.reason == "stop":
            assert re.fullmatch(pattern, done.text), done.text
    assert engine.generate(grammar=grammar, max_tokens=100, logit_bias=((2, 100.0),)).finished.reason == "stop"


def test_json_mode_makes_an_object(engine):
    ends = [engine.generate(grammar=Grammar("json_object"), max_tokens=120, temperature=1.0, seed=s) for s in range(12)]
    whole = [json.loads(t.text) for t in ends if t.finished.reason == "stop"]
    assert whole
    assert all(isinstance(value, dict) for value in whole)
    assert all(t.text.startswith("{") for t in ends)


def test_an_output_that_cannot_go_on_ends_without_an_end_token(engine, llama):
    done = engine.generate(grammar=Grammar.of_choices(["the cat"]), max_tokens=50, ignore_eos=True)
    assert (done.text, done.finished.reason) == ("the cat", "stop")
    assert not set(done.token_ids) & llama.eos_token_ids
    assert done.finished.usage.completion_tokens == len(done.token_ids)


def test_the_end_token_ends_an_output_that_could_go_on(engine, llama):
    (eos,) = llama.eos_token_ids
    fields = {"grammar": Grammar("regex", "a+"), "max_tokens": 20, "logit_bias": ((eos, 100.0),)}
    for ignore_eos in (False, True):
        done = engine.generate(ignore_eos=ignore_eos, **fields)
        assert re.fullmatch("a+", done.text)
        assert done.finished.reason == "stop"
        assert done.finished.usage.completion_tokens == 2


def test_max_tokens_and_stop_strings_still_end_a_sequence(engine):
    cut = engine.generate(grammar=schema(PERSON), max_tokens=3)
    assert cut.finished.reason == "length"
    assert cut.finished.usage.completion_tokens == 3
    stopped = engine.generate(grammar=schema(PERSON), max_tokens=200, stop=("age",))
    assert stopped.finished.reason == "stop"
    assert "name" in stopped.text
    assert "age" not in stopped.text


def test_a_grammar_that_ends_with_the_last_token_is_complete(engine):
    whole = engine.generate(grammar=Grammar.of_choices(["the cat"]), max_tokens=50)
    again = engine.generate(grammar=Grammar.of_choices(["the cat"]), max_tokens=whole.finished.usage.completion_tokens)
    assert again.finished.reason == "stop"


def test_mixed_rows_leave_the_others_as_they_are(llama):
    plain = [{"prompt": start, "max_tokens": 30} for start in STARTS]
    alone = [EngineHarness(llama).generate(**fields).token_ids for fields in plain]
    engine = EngineHarness(llama)
    grammars = [schema(PERSON), Grammar("regex", "[0-9]{40}"), Grammar("json_object"), Grammar.of_choices(["a", "the"])]
    rows = []
    for fields, grammar in zip(plain, grammars, strict=True):
        rows.append(engine.add(**fields))
        rows.append(engine.add(grammar=grammar, prompt=fields["prompt"], max_tokens=30))
    engine.run()
    assert [row.token_ids for row in rows[::2]] == alone
    assert re.fullmatch("[0-9]{10,40}", rows[3].text)


def test_long_prompts_are_prefilled_in_chunks(llama):
    prompt = tuple(i % 200 + 3 for i in range(60))
    expected = EngineHarness(llama).generate(prompt=prompt, grammar=schema(PERSON), max_tokens=100)
    engine = EngineHarness(llama, max_prefill_tokens=7)
    other = engine.add(prompt=(3, 4), max_tokens=40)
    chunked = engine.add(prompt=prompt, grammar=schema(PERSON), max_tokens=100)
    engine.run()
    assert chunked.token_ids == expected.token_ids
    assert other.token_ids == EngineHarness(llama).generate(prompt=(3, 4), max_tokens=40).token_ids


def test_choices_of_one_request_have_their_own_matchers(engine):
    grammar = schema(PERSON)
    rows = [engine.add(grammar=grammar, index=i, seed=i, temperature=1.5, max_tokens=200) for i in range(6)]
    engine.run()
    assert len({row.text for row in rows}) > 1
    for row in rows:
        jsonschema.validate(json.loads(row.text), PERSON)


def test_a_matcher_that_fails_ends_its_own_sequence_only(engine):
    expected = EngineHarness(engine.engine._loaded).generate(max_tokens=20).token_ids
    good, other = engine.add(max_tokens=20), engine.add(grammar=schema(PERSON), max_tokens=200)
    # Runs into a limit of the parser after some tokens.
    hard = schema({"type": "integer", "minimum": -(10**15) + 7, "maximum": 10**15 - 3, "multipleOf": 99991})
    bad = engine.add(grammar=hard, max_tokens=100)
    engine.run()
    assert bad.failed.code == "grammar_failed"
    assert good.token_ids == expected
    jsonschema.validate(json.loads(other.text), PERSON)


class Panic(BaseException):
    """As pyo3's is."""


class NoCopy:
    """A template as if the library had crashed."""

    def deep_copy(self):
        raise Panic


class NoToken:
    """A matcher that crashes at the first token."""

    def deep_copy(self):
        return self

    def unsafe_compute_mask_ptr(self, pointer, num_bytes):
        ctypes.memset(pointer, 0xFF, num_bytes)

    def is_error(self):
        return False

    def consume_token(self, _):
        raise Panic


@pytest.mark.parametrize("broken", [NoCopy, NoToken])
def test_a_matcher_that_raises_ends_its_own_sequence_only(engine, broken):
    good = engine.add(grammar=schema(PERSON), max_tokens=200)
    bad = engine.add(grammar=schema(PERSON), max_tokens=200)
    *_, sequence = engine.engine._scheduler.sequences()
    sequence.matcher = GrammarMatcher(broken())
    engine.run()
    assert bad.failed.code == "grammar_failed"
    assert good.finished.reason == "stop"


def test_a_grammar_that_cannot_be_compiled_fails_before_it_starts(engine):
    refused = engine.add(grammar=schema({"type": "string", "not": {}}))
    assert refused.failed.code == "grammar_failed"
    assert engine.generate().finished.reason == "length"


def test_masks_are_computed_beside_the_forward_pass(llama):
    """The mask thread runs while the engine's thread does other things, and is waited for."""
    seen = []

    class Slow(GrammarMatcher):
        def fill(self, bits):
            seen.append(threading.current_thread().name)
            time.sleep(0.05)
            super().fill(bits)

    masks = MaskComputer(llama.vocab_size, num_threads=2)
    template = llama.grammars.template(Grammar.of_choices(["x"]))
    started = time.monotonic()
    pending = masks.start([Slow(template), None, Slow(template)])
    assert time.monotonic() - started < 0.04
    done = pending.result()
    assert done.rows == (0, 2)
    assert all(name.startswith("masks") for name in seen)
    assert np.array_equal(done.bits[0], done.bits[1])
    assert masks.start([None, None]).result() is None
    masks.close()


def test_a_forward_pass_that_fails_waits_for_the_masks(llama, monkeypatch):
    engine = EngineHarness(llama)
    row = engine.add(grammar=schema(PERSON))
    monkeypatch.setattr(engine.engine._runner, "_forward", lambda *_: 1 / 0)
    engine.step()
    assert row.failed.code == "server_error"
    monkeypatch.undo()
    jsonschema.validate(json.loads(engine.generate(grammar=schema(PERSON), max_tokens=200).text), PERSON)


def test_requests_with_grammars_cross_a_process_border():
    import pickle

    request = build_request(grammar=schema(PERSON))
    assert pickle.loads(pickle.dumps(request)) == request  # noqa: S301 - our own bytes


SCALARS = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda a, b: {"type": "integer", "minimum": min(a, b), "maximum": max(a, b)}, *[st.integers(-500, 500)] * 2
    ),
    st.builds(lambda a, b: {"type": "number", "minimum": a, "maximum": a + b}, st.integers(-9, 9), st.integers(0, 9)),
    st.builds(
        lambda a, b: {"type": "string", "minLength": a, "maxLength": a + b}, st.integers(0, 3), st.integers(0, 4)
    ),
    st.sampled_from([{"type": "string", "pattern": p} for p in ("^[a-c]{2}$", "^x?y+$", "^(ab|cd){1,2}$")]),
    st.sampled_from([{"type": "string", "format": f} for f in ("date", "time", "uuid", "ipv4")]),
    st.builds(
        lambda v: {"enum": v}, st.lists(st.text(max_size=4) | st.integers(-9, 9) | st.none(), min_size=1, max_size=4)
    ),
    st.builds(lambda v: {"const": v}, st.text(max_size=4) | st.booleans() | st.lists(st.integers(0, 9), max_size=2)),
)


def objects(inner):
    def build(properties, num_required):
        names = list(properties)
        return {
            "type": "object",
            "properties": properties,
            "required": names[: min(num_required, len(names))],
            "additionalProperties": False,
        }

    return st.builds(
        build, st.dictionaries(st.text('abcd _ä"', min_size=1, max_size=3), inner, max_size=3), st.integers(0, 3)
    )


def arrays(inner):
    return st.builds(
        lambda items, a, b: {"type": "array", "items": items, "minItems": a, "maxItems": a + b},
        inner,
        st.integers(0, 2),
        st.integers(0, 2),
    )


SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: (
        objects(inner) | arrays(inner) | st.builds(lambda v: {"anyOf": v}, st.lists(inner, min_size=1, max_size=3))
    ),
    max_leaves=5,
)


@given(wanted=SCHEMAS, seed=st.integers(0, 2**32))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_what_stops_is_valid(llama, wanted, seed):
    done = EngineHarness(llama).generate(grammar=schema(wanted), max_tokens=150, temperature=1.0, seed=seed)
    if done.finished.reason == "stop":
        jsonschema.validate(
            json.loads(done.text), wanted, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
