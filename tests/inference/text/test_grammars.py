"""Compiling grammars: limits, refusals, the cache, and the vocabulary as llguidance reads it."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
import time

import numpy as np
import pytest
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from transformers import PreTrainedTokenizerFast

from inference.text.grammar import Grammar, GrammarBusyError, GrammarError
from inference.text.grammar_compiler import MAX_CACHED, GrammarCompiler
from inference.text.model_text import ModelText
from tests.builders import build_tokenizer
from tests.inference.tokenizers import byte_level, gemma_tokenizer, llama_tokenizer, qwen_tokenizer

FAMILIES = {"llama": llama_tokenizer, "qwen": qwen_tokenizer, "gemma": gemma_tokenizer}


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    tokenizer = build_tokenizer()
    return GrammarCompiler(tokenizer, len(tokenizer) + 50, {tokenizer.eos_token_id})


def schema(value) -> Grammar:
    return Grammar.of_schema(value)


def nested(depth: int) -> dict:
    inner: dict = {"type": "string"}
    for _ in range(depth):
        inner = {"type": "array", "items": inner}
    return inner


def deep_text(depth: int) -> Grammar:
    return Grammar("json_schema", '{"items":' * depth + "true" + "}" * depth)


RECURSIVE = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}

REFUSED = [
    (schema({"type": "strin"}), "strin"),
    (schema({"$ref": "#"}), "No output can match"),
    (schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}), "No output"),
    (schema({"$ref": "#/$defs/absent"}), "absent"),
    (schema({"enum": [f"v{i}" for i in range(3_000)]}), "3000 values"),
    (schema({"anyOf": [{"enum": list(range(600))}, {"enum": list(range(600))}]}), "1200 values"),
    (schema({"enum": ["x" * 70_000]}), "65536"),
    (schema({"type": "string", "pattern": "(?=a)b"}), "look-around"),
    (schema({"type": "string", "pattern": "(?<=a)b"}), "look-around"),
    (schema({"type": "string", "pattern": "(a"}), "unclosed"),
    (schema({"type": "string", "pattern": r"(a)\1"}), "backreferences"),
    (schema({"type": "string", "pattern": "a" * 3_000}), "3000 characters"),
    (schema({"patternProperties": {"a" * 3_000: True}}), "3000 characters"),
    (Grammar("regex", "a" * 3_000), "3000 characters"),
    (Grammar("regex", "(a"), "unclosed"),
    (Grammar("regex", "(?=a)b"), "look-around"),
    (Grammar("regex", r"[^\s\S]"), "No output can match"),
    (schema(nested(40)), "32 levels"),
    (schema(nested(200)), "32 levels"),
    (deep_text(5_000), "nested too deeply"),
    (deep_text(100_000), "bytes"),
    (schema({"$ref": "http://127.0.0.1:1/x"}), "Only references within the schema are supported"),
    (schema({"$ref": "file:///etc/passwd"}), "Only references within the schema are supported"),
    (schema({"$ref": "other.json#/a"}), "Only references within the schema are supported"),
    (schema({"type": "string", "$schema": "http://127.0.0.1:1/meta"}), "127.0.0.1"),
    (schema({"not": {"type": "string"}}), "`not`"),
    (schema({"type": "object", "if": {}, "then": {}, "else": {}}), "`if`, `then`, `else`"),
    (schema({"type": "array", "uniqueItems": True}), "`uniqueItems`"),
    (schema({"type": "object", "properties": {"a": {"type": "array", "contains": {}}}}), "`contains`"),
    (schema({"type": "string", "nullable": True}), "`nullable`"),
    (schema({"type": "object", "x-guidance": {"lenient": True}}), "`x-guidance`"),
    (schema({"type": "string", "format": "regex"}), "regex"),
    (schema({"oneOf": [{"type": "number"}, {"type": "integer"}]}), "oneOf"),
    (schema({"enum": []}), "empty"),
    (schema({"type": "integer", "minimum": 5, "maximum": 3}), "minimum"),
    (schema(False), "schema is false"),
    (schema({"type": "integer", "maximum": 10**300}), "`#/maximum`"),
    (
        schema({"properties": {"a/b": {"anyOf": [True, {"const": [{"c": -(2**63) - 1}]}]}}}),
        "#/properties/a~1b/anyOf/1/const/0/c",
    ),
    (schema({"enum": [1, 2**64]}), "`#/enum/1`"),
    (schema({"type": "string", "minLength": 2**53}), "`#/minLength`"),
    (schema({"items": {"default": 10**400}}), "`#/items/default`"),
    (schema({"prefixItems": [{"minItems": 10**30}]}), "`#/prefixItems/0/minItems`"),
    (schema({"x-order": 10**30}), "`#/x-order`"),
    (schema({"const": 2**63 - 1}), "`#/const`"),
    (schema({"minimum": -(2**63)}), "`#/minimum`"),
    (schema({"type": "string", "minLength": 2**40}), "decimal literal invalid"),
    (schema({"type": "string", "maxLength": 1.5}), "maxLength"),
    (schema({"type": "number", "maximum": 1e300}), "1e300"),
    (schema({"type": "integer", "maximum": "9"}), "maximum"),
    (schema({"type": "object", "properties": []}), "object"),
    (schema({"anyOf": [3]}), "object or a boolean"),
    (Grammar("json_schema", "{"), "JSON"),
    (Grammar("json_schema", "[" * 60_000), "JSON"),
    (Grammar.of_choices(["a"] * 1_001), "1001 choices"),
    (Grammar("lark", 'start: "a" absent'), "absent"),
    (Grammar("lark", "start: start"), "No output can match"),
    (Grammar("lark", "root ::= ("), "GBNF"),
    (Grammar("lark", "root ::= " + "(" * 20_000), "GBNF"),
]


@pytest.mark.parametrize(("grammar", "part"), REFUSED, ids=lambda value: repr(value)[:60])
def test_what_cannot_be_enforced_is_refused_quickly(compiler, grammar, part):
    started = time.thread_time()
    with pytest.raises(GrammarError) as caught:
        compiler.template(grammar)
    assert part in str(caught.value)
    assert len(str(caught.value)) < 800
    assert time.thread_time() - started < 1


ACCEPTED = [
    schema(True),
    schema({}),
    schema(RECURSIVE),
    schema({"type": "array", "items": {"$ref": "#"}}),
    schema(nested(30)),
    schema({"enum": [f"v{i}" for i in range(1_000)]}),
    schema({"type": "string", "pattern": "(a+)+$"}),
    schema({"type": "string", "pattern": "(a{1,1000}){1,1000}"}),
    Grammar("regex", "(a+)+$"),
    Grammar("regex", "(a{1,1000}){1,1000}"),
    schema({"type": "object", "x-order": 3, "title": "T", "description": "d", "default": {"not": 1}, "examples": [{}]}),
    schema({"type": "object", "properties": {"not": {"type": "string"}, "if": {"const": {"uniqueItems": 1}}}}),
    schema({"oneOf": [{"type": "string"}, {"type": "integer"}]}),
    Grammar("json_object"),
]


@pytest.mark.parametrize("limit", [2**53 - 1, -(2**53) + 1, 5, 0])
def test_integers_are_enforced_to_the_last_digit_up_to_the_limit(compiler, limit):
    """Beyond it llguidance would take an integer for its neighbour, which is why such schemas are refused."""
    for value in ({"const": limit}, {"enum": [limit]}, {"type": "integer", "minimum": limit, "maximum": limit}):
        found = [number for number in range(limit - 2, limit + 3) if is_complete(compiler, value, str(number))]
        assert found == [limit]


def test_the_maximum_of_64_bit_integers_is_kept(compiler):
    bounded = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
    assert is_complete(compiler, bounded, str(2**63 - 1))
    assert not is_complete(compiler, bounded, str(2**63))


def is_complete(compiler: GrammarCompiler, value: dict, text: str) -> bool:
    """Whether ``text`` is all that the schema asks for."""
    matcher = compiler.template(schema(value)).deep_copy()
    tokens = build_tokenizer().encode(text, add_special_tokens=False)
    return all(matcher.try_consume_tokens([token]) for token in tokens) and matcher.is_accepting()


@pytest.mark.parametrize("grammar", ACCEPTED, ids=lambda value: repr(value)[:60])
def test_what_is_bounded_is_taken_quickly(compiler, grammar):
    started = time.thread_time()
    assert not compiler.template(grammar).is_error()
    assert time.thread_time() - started < 1


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_llguidance_reads_each_token_as_we_do(family):
    tokenizer = FAMILIES[family]()
    text = ModelText(tokenizer, max_model_len=64)
    theirs = from_tokenizer(tokenizer)
    for token_id in range(len(tokenizer)):
        if not theirs.is_special_token(token_id):
            assert theirs.decode_bytes([token_id]) == text.token_bytes(token_id), token_id


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_masks_are_those_of_llguidance_s_own_reading(family):
    tokenizer = FAMILIES[family]()
    ours = GrammarCompiler(tokenizer, len(tokenizer), {tokenizer.eos_token_id})._vocabulary
    grammar = LLMatcher.grammar_from_json_schema({"type": "object"})
    matchers = [LLMatcher(vocabulary, grammar) for vocabulary in (ours, from_tokenizer(tokenizer))]
    rng = np.random.default_rng(0)
    for _ in range(60):
        mask, theirs = (int.from_bytes(matcher.compute_bitmask(), "little") for matcher in matchers)
        assert mask == theirs
        token = int(rng.choice([i for i in range(len(tokenizer)) if mask >> i & 1]))
        assert [matcher.consume_token(token) for matcher in matchers] == [True, True]
        if matchers[0].is_stopped():
            break


def test_special_tokens_are_never_text(compiler):
    """A string may spell an end token, it may not be one."""
    tokenizer = build_tokenizer()
    matcher = compiler.template(schema({"type": "string"})).deep_copy()
    assert matcher.consume_tokens(tokenizer.encode('"<|'))
    for token_id in tokenizer.all_special_ids:
        assert matcher.validate_tokens([token_id]) == 0


def test_padded_embeddings_are_never_allowed(compiler):
    tokenizer = build_tokenizer()
    matcher = compiler.template(schema({"type": "string"})).deep_copy()
    matcher.consume_tokens(tokenizer.encode('"'))
    mask = int.from_bytes(matcher.compute_bitmask(), "little")
    assert compiler.vocab_size == len(tokenizer) + 50
    assert mask >> len(tokenizer) == 0
    assert mask


@pytest.mark.parametrize("end_tokens", [(), {9_999}])
def test_a_model_without_an_end_token_ends_by_another_special_one(end_tokens):
    tokenizer = build_tokenizer()
    compiler = GrammarCompiler(tokenizer, len(tokenizer), end_tokens)
    matcher = compiler.template(Grammar("regex", "a+")).deep_copy()
    matcher.consume_tokens(tokenizer.encode("a"))
    mask = int.from_bytes(matcher.compute_bitmask(), "little")
    assert [i for i in tokenizer.all_special_ids if mask >> i & 1] == tokenizer.all_special_ids[:1]


def test_a_tokenizer_without_special_tokens_cannot_be_constrained():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level([]))
    with pytest.raises(GrammarError, match="no token that could end"):
        GrammarCompiler(tokenizer, len(tokenizer), ()).template(Grammar("regex", "a+"))


def test_json_has_at_most_one_space_between_its_parts(compiler):
    tokenizer = build_tokenizer()

    def admits(text: str) -> bool:
        return compiler.template(Grammar("json_object")).deep_copy().consume_tokens(tokenizer.encode(text))

    assert admits('{"a":[1,2]}')
    assert admits('{ "a" : [ 1 , 2 ] }')
    assert not admits('{"a":  1')
    assert not admits("{\n")
    assert not admits("\n{")


async def test_compiling_leaves_the_event_loop_alone(compiler):
    wide = {f"p{i}": {"type": "string", "maxLength": i + 1} for i in range(400)}
    grammar = schema({"type": "object", "properties": wide, "required": list(wide), "additionalProperties": False})
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticker = asyncio.create_task(tick())
    await compiler.prepare(grammar)
    ticker.cancel()
    assert ticks > 2
    assert compiler._cached(grammar) is not None


class SlowCompiler(GrammarCompiler):
    """Compiles until it is told to stop."""

    def __init__(self) -> None:
        tokenizer = build_tokenizer()
        super().__init__(tokenizer, len(tokenizer), {tokenizer.eos_token_id})
        self.may_end = threading.Event()
        self.num_running = 0

    def _compile(self, grammar):
        self.num_running += 1
        assert self.may_end.wait(60)
        return super()._compile(grammar)


async def test_compiling_has_a_time_limit_and_a_bounded_queue():
    compiler = SlowCompiler()
    texts = ["a", "b", "c", "d"]
    ends = await asyncio.gather(
        *(compiler.prepare(Grammar("regex", text), max_compile_s=0.2) for text in texts), return_exceptions=True
    )
    compiler.may_end.set()
    assert sorted(type(end).__name__ for end in ends) == ["GrammarBusyError"] * 2 + ["GrammarError"] * 2
    assert any("0.2 s" in str(end) for end in ends if isinstance(end, GrammarError))
    assert all(isinstance(end, GrammarError | GrammarBusyError) for end in ends)
    await compiler.prepare(Grammar("regex", "e"))
    assert compiler.num_running == 3


def test_the_cache_is_bounded_and_keeps_what_is_used(compiler):
    first = compiler.template(Grammar("regex", "first"))
    for i in range(MAX_CACHED + 5):
        compiler.template(Grammar("regex", f"n{i}"))
        assert compiler.template(Grammar("regex", "first")) is first
    assert len(compiler._templates) == MAX_CACHED
    assert compiler._cached(Grammar("regex", "n0")) is None


def test_many_threads_share_one_compiler(compiler):
    failures = []

    def work(number: int) -> None:
        try:
            for i in range(30):
                matcher = compiler.template(schema({"const": f"{number % 3} {i}"})).deep_copy()
                assert matcher.compute_bitmask()
        except Exception as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_sources_are_comparable_json():
    assert json.loads(schema(RECURSIVE).source) == RECURSIVE
    assert schema({"type": "string"}) == schema({"type": "string"})
    assert hash(Grammar.of_choices(["a"])) == hash(Grammar.of_choices(["a"]))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pickled_compiler_allows_the_same(family):
    tokenizer = FAMILIES[family]()
    compiler = GrammarCompiler(tokenizer, len(tokenizer) + 50, {tokenizer.eos_token_id})
    grammar = Grammar("regex", "a+b")
    compiler.template(grammar)
    copy = pickle.loads(pickle.dumps(compiler))  # noqa: S301 - our own bytes
    assert copy.vocab_size == compiler.vocab_size
    masks = [each.template(grammar).deep_copy().compute_bitmask() for each in (copy, compiler)]
    assert masks[0] == masks[1]


def test_a_pickled_compiler_without_an_end_token_still_has_none():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level([]))
    copy = pickle.loads(pickle.dumps(GrammarCompiler(tokenizer, len(tokenizer), ())))  # noqa: S301 - our own bytes
    with pytest.raises(GrammarError, match="no token that could end"):
        copy.template(Grammar("regex", "a+"))
