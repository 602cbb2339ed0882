"""Compile grammars for one model's vocabulary, with a small cache. See docs/decisions/0005-grammars-llguidance.md.

Compilation runs in its own threads, never on the event loop, and on the engine thread only if the cache evicted a
grammar between submission and start. The vocabulary is built from our token bytes, not by llguidance from
tokenizer.json, which would parse the file again. Both hold the GIL while they run (0.5 s against 1.2 s for 150k
tokens).
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

from inference.text.grammar import Grammar, GrammarBusyError, GrammarError
from inference.text.plain_tokenizer import PlainTokenizer
from inference.text.token_bytes import token_bytes_reader

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


class _Vocabulary:
    """The attributes that ``llguidance.TokenizerWrapper`` expects."""

    bos_token_id = None

    def __init__(self, tokenizer: Any, size: int, eos_token_id: int) -> None:
        self._backend = tokenizer.backend_tokenizer
        self.eos_token_id = eos_token_id
        added = self._backend.get_added_tokens_decoder()
        self.special_token_ids = sorted({i for i, token in added.items() if token.special} | {eos_token_id})
        bytes_of = token_bytes_reader(self._backend)
        self.tokens = [b""] * size  # ids without a token (padded embeddings) stay empty and are never allowed
        for text, token_id in self._backend.get_vocab().items():
            self.tokens[token_id] = str(text).encode() if token_id in added else bytes_of(text)

    def __call__(self, text: str) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)


def read_vocabulary(tokenizer: Any, vocab_size: int, eos_token_ids: Collection[int]) -> LLTokenizer:
    """Build the vocabulary. ``vocab_size``: number of logits. Raise GrammarError if no token can end an output."""
    from llguidance import LLTokenizer, TokenizerWrapper

    eos = _end_tokens(tokenizer, eos_token_ids)
    vocabulary = _Vocabulary(tokenizer, max(vocab_size, len(tokenizer)), eos[0])
    return LLTokenizer(TokenizerWrapper(vocabulary), eos_token=eos)


def _end_tokens(tokenizer: Any, eos_token_ids: Collection[int]) -> list[int]:
    """Return the model's end tokens, or a special token: a grammar needs one to signal the end."""
    known = sorted(i for i in eos_token_ids if i < len(tokenizer)) or list(tokenizer.all_special_ids[:1])
    if not known:
        raise GrammarError("This model has no token that could end its output.")
    return known


logger = logging.getLogger(__name__)
MAX_COMPILE_S = 2.0  # including the wait for a free thread
COMPILE_THREADS = 2
MAX_CACHED = 64  # grammars per model
JSON_OPTIONS = {
    "whitespace_pattern": "[ ]?",  # at most one space, or weak models would fill their budget with whitespace
    "lenient": False,
    "coerce_one_of": False,
}
# llguidance's limits, which bound the time of a mask: about 20 ms for the worst grammars found.
LIMITS: dict[str, Any] = {
    "step_max_items": 10_000,
    "step_lexer_fuel": 100_000,
    "max_lexer_states": 20_000,
    "verbose_errors": False,
}


class GrammarCompiler:
    """Compiles grammars for one model. Thread-safe.

    Created when the model is loaded, because reading the vocabulary holds the GIL (15 ms for 2k tokens, 0.5 s for
    150k). If the vocabulary cannot be read, the model is loaded without support for grammars. Pickled, it is the
    tokenizer's JSON; the copy has a cache of its own.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self.vocab_size = max(vocab_size, len(tokenizer))  # padded embeddings give more logits than tokens
        self._vocabulary: LLTokenizer | GrammarError
        try:
            self._vocabulary = read_vocabulary(tokenizer, vocab_size, eos_token_ids)
        except Exception as error:
            logger.warning("Grammars are not available for a model.", exc_info=True)
            self._vocabulary = GrammarError(f"This model does not support grammars: {error}")
        self._caching = threading.Lock()
        self._templates: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    def __reduce__(self) -> tuple[type[GrammarCompiler], tuple[PlainTokenizer, int, frozenset[int]]]:
        tokenizer = self._tokenizer
        plain = tokenizer if isinstance(tokenizer, PlainTokenizer) else PlainTokenizer.of(tokenizer)
        return type(self), (plain, self.vocab_size, self._eos_token_ids)

    async def prepare(self, grammar: Grammar, *, max_compile_s: float = MAX_COMPILE_S) -> None:
        """Compile ``grammar`` into the cache. Raise GrammarError, or GrammarBusyError under load."""
        if self._cached(grammar) is not None:
            return
        work = _compile_pool().submit(self.template, grammar)
        waiter = asyncio.wrap_future(work)
        await asyncio.wait([waiter], timeout=max_compile_s)
        if work.cancel():
            raise GrammarBusyError("The server is busy compiling other grammars; try again.")
        if not waiter.done():
            waiter.cancel()  # its result is not needed; llguidance's limits end it
            raise GrammarError(f"Compiling it takes longer than {max_compile_s:g} s. Simplify it.")
        waiter.result()

    def template(self, grammar: Grammar) -> LLMatcher:
        """Return a matcher in its initial state, to be copied. Compiles if necessary. Raise GrammarError."""
        found = self._cached(grammar)
        if found is not None:
            return found
        template = self._compile(grammar)
        with self._caching:
            self._templates[grammar] = template
            while len(self._templates) > MAX_CACHED:
                self._templates.popitem(last=False)
        return template

    def _cached(self, grammar: Grammar) -> LLMatcher | None:
        with self._caching:
            template = self._templates.get(grammar)
            if template is not None:
                self._templates.move_to_end(grammar)
            return template

    def _compile(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        if isinstance(self._vocabulary, GrammarError):
            raise GrammarError(str(self._vocabulary))
        grammar.check()
        try:
            source = _llguidance_source(grammar)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:  # raised by llguidance's builders
            raise GrammarError(_sentence(str(error))) from None
        template = LLMatcher(self._vocabulary, source, log_level=0, limits=LLParserLimits(**LIMITS))
        if template.is_error():
            raise GrammarError(_sentence(template.get_error()))
        trial = template.deep_copy()
        trial.compute_bitmask()
        if trial.is_error():
            raise GrammarError("No output can match it, or it is too complex.")
        return template


@cache
def _compile_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(COMPILE_THREADS, thread_name_prefix="grammar-compiler")


def _llguidance_source(grammar: Grammar) -> str:
    from llguidance import LLMatcher, grammar_from

    match grammar.kind:
        case "json_object":
            return LLMatcher.grammar_from_json_schema('{"type": "object"}', overrides=JSON_OPTIONS)  # type: ignore[arg-type]
        case "json_schema":
            schema = json.loads(grammar.source)
            return LLMatcher.grammar_from_json_schema(_as_object(schema), overrides=JSON_OPTIONS)  # type: ignore[arg-type]
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.source)
        case "choice":
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(_lark_string, json.loads(grammar.source))))
        case "composed":
            return json.dumps({"grammars": [{"lark_grammar": grammar.lark}, *map(_named_part, grammar.parts.items())]})
        case "lark":
            return grammar_from("grammar", grammar.source)


def _named_part(named: tuple[str, Grammar]) -> dict[str, Any]:
    """Return a part for llguidance's list of grammars, where others refer to it by name."""
    name, part = named
    source = _llguidance_source(part)
    content = json.loads(source)["grammars"][0] if source.startswith("{") else {"lark_grammar": source}
    return {**content, "name": name}


def _as_object(schema: Any) -> dict[str, Any]:
    """Return the schema as an object, because a boolean schema cannot hold options."""
    return schema if isinstance(schema, dict) else {"allOf": [schema]}


def _lark_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _sentence(error: str) -> str:
    """Return llguidance's message on one line, truncated."""
    line = " ".join(error.replace("<non-verbose/>", "").split())[:500]
    return line if line.endswith(".") else f"{line}."
