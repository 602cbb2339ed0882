"""Stand-ins for the layers below /v1: an engine that answers from a script, models without weights, profiles."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cache
from typing import Any, Self

from inference.client import (
    EmbeddingEvent,
    EmbeddingRequest,
    EngineStats,
    Event,
    FailedEvent,
    FinishedEvent,
    GenerationRequest,
    Request,
    SteeringReceipt,
    Timings,
    TokenLogprob,
    TokensEvent,
    Usage,
)
from inference.interventions import Site, SiteKind
from inference.registry.model_card import Card, MediaCard, ModelCard
from inference.registry.records import ModelNotFoundError, ModelRecord
from inference.segments import Segment
from inference.steering_refs import SteeringRef, SteeringSpec
from inference.text.chat_template import ChatTemplateError
from inference.text.dialects.dialect import Dialect
from inference.text.fill_in_middle import FillTokens
from inference.text.grammar_compiler import GrammarCompiler
from inference.text.model_text import PromptTooLongError, TokenizerFacts
from inference.text.prompt_encoder import Pair
from steering.errors import (
    ProfileArchivedError,
    ProfileModelMismatchError,
    ProfileNotFoundError,
    SAEUnavailableError,
)
from steering.features.catalog import EffectRecord, FeatureDetail, FeatureQuery, FeatureRecord, SAERecord
from steering.features.logit_lens import LogitLens
from steering.features.neighbours import CofiringFeatures, NeighbourFeature
from steering.profiles.resolver import ResolvedProfile, SteeringSelection
from steering.sae_registry.loaded_sae import LoadedSAE
from tests.builders import build_tokenizer

BOS, TURN = 256, 257
VOCAB_SIZE = 258
CONTEXT = 100
_KINDS: tuple[SiteKind, ...] = ("resid_pre", "resid_post", "mlp_out")
SITES = {Site(layer, kind): 4 for layer in range(3) for kind in _KINDS}
ANSWER = "Hello sea"

Script = Callable[[GenerationRequest], Iterable[Event]]


@cache
def compiler() -> GrammarCompiler:
    """A real one, for some vocabulary: what it refuses is part of the surface."""
    tokenizer = build_tokenizer()
    return GrammarCompiler(tokenizer, len(tokenizer), {tokenizer.eos_token_id})


def tokenizer_of_bytes() -> bytes:
    """One that the library tokenizers loads."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {character: place for place, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return str(tokenizer.to_str()).encode()


class FakeText:
    """A tokenizer of bytes: token id = byte, plus a beginning and an end of turn."""

    special_token_ids = frozenset({BOS, TURN})
    stop_strings: tuple[str, ...] = ()
    max_chars = 32 * CONTEXT
    tokenizer = TokenizerFacts(
        kind="Bytes",
        vocab_size=VOCAB_SIZE,
        tokens={"bos_token": "<s>", "eos_token": "</s>"},
        ids={"bos_token": BOS, "eos_token": TURN},
        templates={"default": "{{ messages }}"},
    )

    def __init__(self) -> None:
        self.dialect = Dialect()
        self.fill_tokens: FillTokens | None = None
        self.variables = frozenset({"enable_thinking"})  # of the template
        self.prompt_end = ""  # what the template writes after the messages
        self.render_options: dict[str, Any] = {}
        self.rendered: list[dict[str, Any]] = []
        self.kwargs: Any = None
        self.threads: list[int] = []  # that rendered or encoded

    def render_chat(self, messages: Sequence[dict[str, Any]], *, kwargs: Any = None, **options: Any) -> list[int]:
        self.threads.append(threading.get_ident())
        self.rendered, self.kwargs, self.render_options = list(messages), kwargs, options
        _check_size(sum(len(message["content"]) for message in messages))
        if messages[0]["role"] == "assistant":
            raise ChatTemplateError("the first message must not be the assistant's")
        rendered = [token for message in messages for token in (*message["content"].encode(), TURN)]
        return [BOS, *rendered, *self.prompt_end.encode()]

    def encode(self, text: str, *, adds_special: bool = True) -> list[int]:
        self.threads.append(threading.get_ident())
        _check_size(len(text))
        return [*text.encode("utf-8", "surrogatepass")]

    def encode_fill(self, prefix: str, suffix: str) -> list[int]:
        assert self.fill_tokens is not None
        return self.fill_tokens.prompt([BOS], self.encode(prefix), self.encode(suffix))

    def encode_pair(self, first: str, second: str) -> Pair:
        _check_size(len(first) + len(second))
        ids = [list(text.encode()) for text in (first, second)]
        return Pair(ids[0] + ids[1], [0] * len(ids[0]) + [1] * len(ids[1]))

    def tokenizer_json(self) -> bytes:
        return tokenizer_of_bytes()

    def encode_plain(self, text: str) -> list[int]:
        return [*text.encode()]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        shown = [self.token_bytes(token) for token in ids if token < BOS or not skip_special_tokens]
        return b"".join(shown).decode("utf-8", "replace")

    def special_tokens_in(self, marks: Iterable[str]) -> dict[str, int]:
        return {}

    def token_of(self, mark: str) -> int | None:
        return {"<think>": 1, "</think>": 2}.get(mark)

    def knows_variable(self, name: str) -> bool:
        return name in self.variables

    def token_bytes(self, token_id: int) -> bytes:
        return {BOS: b"<s>", TURN: b"</s>"}.get(token_id) or bytes([token_id])

    def token_text(self, token_id: int) -> str:
        raw = self.token_bytes(token_id)
        return raw.decode() if token_id < 128 or token_id >= BOS else f"bytes:\\x{raw[0]:02x}"


def _check_size(length: int) -> None:
    if length > 100_000:
        raise PromptTooLongError(length, 100_000, CONTEXT)


def record(name: str, **fields: Any) -> ModelRecord:
    values: dict[str, Any] = {
        "pk": 1,
        "aliases": (),
        "default_profile": "",
        "default_sampling": {},
        "is_default": False,
        "state": "loaded",
        "error": "",
        "created": 1_700_000_000,
        "max_model_len": None,
    }
    return ModelRecord(name=name, **{**values, **fields})


class FakeRegistry:
    def __init__(self, *records: ModelRecord) -> None:
        self._records = records
        self.text = FakeText()
        self.context = CONTEXT
        self.grammars = compiler()
        self.batch_invariant = False
        self.labels: tuple[str, ...] = ()
        self.unloaded: list[str] = []
        self.media: dict[str, object] = {}  # facts of loaded media models
        self.failure: Exception | None = None

    def records(self) -> tuple[ModelRecord, ...]:
        return self._records

    def add(self, *records: ModelRecord) -> None:
        self._records += records

    def find(self, name: str) -> ModelRecord:
        for one in self._records:
            if name == one.name or name in one.aliases:
                return one
        raise ModelNotFoundError(name)

    def max_model_len(self, name: str) -> int | None:
        return self.context if self.find(name).state == "loaded" else None

    def layers_and_width(self, name: str) -> tuple[int, int] | None:
        record = self.find(name)
        return (2, 4) if record.state == "loaded" and record.kind == "generation" else None

    async def ready(self, name: str) -> ModelCard:
        if self.failure is not None:
            raise self.failure
        record = self.find(name)
        kind: Any = record.kind
        return ModelCard(
            record,
            self.context,
            VOCAB_SIZE,
            self.text,  # type: ignore[arg-type]
            kind,
            4,
            self.grammars,
            self.labels,
            SITES,
            self.batch_invariant,
        )

    async def ready_card(self, name: str) -> Card:
        record = self.find(name)
        if record.name in self.media:
            kind: Any = record.kind
            return MediaCard(record, kind, self.media[record.name])
        return await self.ready(name)

    def unload(self, name: str) -> None:
        self.unloaded.append(name)


class FakeStream:
    """Events given so far; more come through :meth:`push`."""

    id = "stream"

    def __init__(self, indices: Iterable[int], events: Iterable[Event], is_drained: asyncio.Event) -> None:
        self._is_drained = is_drained
        self._open = set(indices)
        self._events = deque(events)
        self._arrived = asyncio.Event()
        self.num_closes = 0

    def push(self, *events: Event) -> None:
        self._events.extend(events)
        self._arrived.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if not self._open or self.num_closes:
                raise StopAsyncIteration
            self._arrived.clear()
            self._is_drained.set()
            await self._arrived.wait()
        event = self._events.popleft()
        if isinstance(event, FinishedEvent | FailedEvent):
            self._open.discard(event.index)
        return event

    def close(self) -> None:
        self.num_closes += 1


class FakeEngine:
    """Answers every request with its ``script``'s events; ``failure`` is raised by submit."""

    def __init__(self) -> None:
        self.script: Script = answering(ANSWER)
        self.waits: Callable[[], Awaitable[object]] | None = None  # before each submission is accepted
        self.failure: Exception | None = None
        self.requests: list[GenerationRequest] = []
        self.embedded: list[EmbeddingRequest] = []
        self.embedding_script: Callable[[EmbeddingRequest], Iterable[Event]] = embedding
        self.streams: list[FakeStream] = []
        self.is_drained = asyncio.Event()  # somebody waits for more events than there are

    async def submit(self, requests: Sequence[Request]) -> FakeStream:
        """A model that embeds has its vectors (text's length, 1, 2, 3) for the last text first: shorter texts may be
        ready before longer ones.
        """
        if self.failure is not None:
            raise self.failure
        texts = [request for request in requests if isinstance(request, EmbeddingRequest)]
        prompts = [request for request in requests if isinstance(request, GenerationRequest)]
        self.embedded.extend(texts)
        self.requests.extend(prompts)
        script = self.script
        if self.waits is not None:
            await self.waits()
        scripts = [list(self.embedding_script(text)) for text in reversed(texts)]
        scripts += [list(script(prompt)) for prompt in prompts]
        stream = FakeStream([request.index for request in requests], interleaved(scripts), self.is_drained)
        self.streams.append(stream)
        return stream

    async def compile(self, steering: SteeringSpec) -> SteeringRef:
        raise AssertionError("a fake resolves profiles")

    def cancel(self, stream_id: str) -> None:
        raise AssertionError("requests close their streams")

    def settings(self) -> dict[str, object]:
        return {}

    def replace_processes(self) -> int:
        return 0

    def stats(self) -> EngineStats:
        return EngineStats("idle")

    def stop(self, drain_s: float) -> None:
        raise AssertionError("requests never stop the engine")


def interleaved(scripts: Sequence[Sequence[Event]]) -> list[Event]:
    """One event of each sequence after the other, as steps of a batch give them."""
    longest = max(len(script) for script in scripts)
    return [script[step] for step in range(longest) for script in scripts if step < len(script)]


def tokens_of(request: GenerationRequest, text: str) -> list[TokensEvent]:
    """One event for each byte of ``text``, a character's text with its last byte."""
    events: list[TokensEvent] = []
    for character in text:
        raw = character.encode()
        for place, byte in enumerate(raw):
            is_last = place == len(raw) - 1
            events.append(TokensEvent(request.index, (byte,), character if is_last else "", logprobs(request, byte)))
    return events


def logprobs(request: GenerationRequest, token: int) -> tuple[TokenLogprob, ...]:
    if request.sampling.logprobs is None:
        return ()
    top = tuple((candidate, -0.5 - candidate) for candidate in range(request.sampling.logprobs))
    return (TokenLogprob(token, -0.25, top),)


def finished(request: GenerationRequest, num_tokens: int, reason: Any = "stop", **fields: Any) -> FinishedEvent:
    receipt = None
    if request.steering is not None:
        receipt = SteeringReceipt(request.steering.fingerprint, num_tokens, num_tokens)
    usage = Usage(len(request.prompt_token_ids), 2, num_tokens)
    return FinishedEvent(
        **{
            "index": request.index,
            "reason": reason,
            "usage": usage,
            "timings": Timings(0.001, 0.002, 0.003),
            "receipt": receipt,
            **fields,
        }
    )


def answering(text: str, reason: Any = "stop") -> Script:
    def script(request: GenerationRequest) -> Iterable[Event]:
        events = tokens_of(request, text)[: request.sampling.max_tokens]
        return [*events, finished(request, len(events), "length" if len(events) < len(text) else reason)]

    return script


def embedding(request: EmbeddingRequest) -> Iterable[Event]:
    num_tokens = len(request.prompt_token_ids)
    values = struct.pack("<4f", num_tokens, 1, 2, 3)
    return [
        EmbeddingEvent(request.index, values),
        FinishedEvent(request.index, "stop", Usage(num_tokens), Timings(0.001, None, 0.002)),
    ]


def failing(code: str, after: str = "") -> Script:
    def script(request: GenerationRequest) -> Iterable[Event]:
        usage = Usage(len(request.prompt_token_ids), 0, len(after))
        return [*tokens_of(request, after), FailedEvent(request.index, code, "It failed.", usage, Timings())]

    return script


def silent(request: GenerationRequest) -> Iterable[Event]:
    return ()


class FakeSteering:
    """Profiles gloomy, joyful and cats; ``policies`` act on every request, under the fingerprint of all together."""

    def __init__(self) -> None:
        self.policies: tuple[str, ...] = ()
        self.selections: list[SteeringSelection] = []
        self.depends_on_segments = False
        self.required_segments: frozenset[Segment] = frozenset()

    async def __call__(
        self, model: str, selection: SteeringSelection, *, special_token_ids: frozenset[int]
    ) -> ResolvedProfile | None:
        self.selections.append(selection)
        if not selection and not self.policies:
            return None
        name, number = ("inline", 0) if selection.inline is not None else version_of(selection.reference)
        if selection.draft is not None:
            name, number = selection.draft.name, 0
        parts = [*([f"print-{name}"] if name else []), *self.policies]
        spec = SteeringSpec((), skip_token_ids=special_token_ids)
        steering = SteeringRef(" then ".join(parts), spec, self.required_segments, self.depends_on_segments)
        return ResolvedProfile(
            name,
            number,
            steering,
            self.policies,
            selection.intensity if selection else 1.0,
        )


def version_of(reference: str | None) -> tuple[str, int]:
    if reference is None:
        return "", 0
    name, _, number = reference.partition("@")
    if name == "foreign":
        raise ProfileModelMismatchError("The profile `foreign` does not belong to this model.")
    if name == "broken":
        raise SAEUnavailableError("The SAE of the profile broken is missing.")
    if name == "old":
        raise ProfileArchivedError("The profile `old` is archived.")
    if name not in {"gloomy", "joyful", "cats"} or number not in {"", "1", "2"}:
        raise ProfileNotFoundError(f"The profile `{reference[:50]}` does not exist.")
    return name, int(number or 2)


class NoFeatures:
    """What a test does not expect to be asked."""

    async def search(self, query: FeatureQuery) -> tuple[FeatureRecord, ...]:
        raise AssertionError("search")

    async def sae(self, name: str) -> SAERecord:
        raise AssertionError("sae")

    async def saes(self, model: str) -> tuple[SAERecord, ...]:
        raise AssertionError("saes")

    async def records(self, sae: SAERecord, indices: Iterable[int]) -> dict[int, FeatureRecord]:
        raise AssertionError("records")

    async def detail(self, sae: SAERecord, index: int) -> FeatureDetail:
        raise AssertionError("detail")

    async def lens(self, sae: SAERecord, index: int) -> LogitLens:
        raise AssertionError("lens")

    async def neighbours(self, sae: SAERecord, index: int, count: int) -> list[NeighbourFeature]:
        raise AssertionError("neighbours")

    async def cofiring(self, sae: SAERecord, index: int) -> CofiringFeatures:
        raise AssertionError("cofiring")

    async def effect(self, sae: SAERecord, index: int) -> EffectRecord:
        raise AssertionError("effect")

    async def readable(self, model: str, name: str | None) -> LoadedSAE:
        raise AssertionError("readable")

    async def labels(self, sae: int, indices: Iterable[int]) -> dict[int, str]:
        raise AssertionError("labels")
