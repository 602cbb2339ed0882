"""Search by meaning without an embedding model: mean token embeddings of the SAE's own language model.

A text is the mean of its tokens' input embeddings, each centred on the vocabulary's mean and at length 1. The labels of
an SAE are then centred, and their first principal component is removed, because it is shared by all texts (Arora, Liang
and Ma, "A Simple but Tough-to-Beat Baseline for Sentence Embeddings", 2017). Measured with SmolLM2-135M on 44 labels
and 12 queries that share no words with them: of the first three results 81 % belong to the query (7 % by chance), and
the first one always does. Nothing is downloaded, and the engine is not used.

Features that write what a query means are found by their output tokens, see :mod:`steering.effects.output_tokens`.
Single words are compared without the first principal components of the vocabulary, which tell how frequent a token is
(Mu and Viswanath, "All-but-the-Top", 2018); texts of many tokens are found better with them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from inference.files.sources import SourceError, resolve_source
from steering.errors import MeaningUnavailableError
from steering.models import SAE
from steering.profiles.snapshot import registered_saes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from steering.features.unembedding import StoredTensor

Floats = NDArray[np.float32]
Built = TypeVar("Built")
_TOKENS_WEIGHT = 0.3  # of the top tokens of a feature, against its label
_NUM_COMPONENTS = 3
_MAX_SAMPLED = 16_384  # tokens that the components are computed of
_MIN_TOKEN_COSINE = 0.15  # of an output token and a query; below it, the token does not belong to the query
_NUM_RELATED = 40  # features with similar labels whose top tokens belong to a query, too
_MIN_RELATED = 2
_MIN_LIFT = 4.0
_RELATED_WEIGHT = 0.5
_MAX_TEXT = 500
_MAX_CACHED = 4


@dataclass(frozen=True, slots=True, eq=False)
class TokenEmbeddings:
    """The input embeddings of a model, read from its files row by row."""

    tokenizer: Tokenizer
    rows: Any  # a memory map [vocab, width] of the stored type
    dtype: str
    mean: Floats
    components: Floats  # [number, width], orthonormal

    def embed(self, texts: Sequence[str], *, as_words: bool = False) -> Floats:
        """Return ``[texts, width]``; zeros for a text without tokens. ``as_words``: without ``components``."""
        spaced = [f" {text.strip()[:_MAX_TEXT]}" for text in texts]
        encoded = self.tokenizer.encode_batch(spaced, add_special_tokens=False)
        ids = [
            [token for token in one.ids if token < len(self.rows)] if text.strip() else []
            for text, one in zip(texts, encoded, strict=True)
        ]
        known, places = np.unique(np.fromiter((i for one in ids for i in one), np.int64), return_inverse=True)
        vectors: Floats = _as_float32(np.asarray(self.rows[known]), self.dtype) - self.mean
        if as_words:
            vectors -= (vectors @ self.components.T) @ self.components
        vectors = _unit(vectors)
        result = np.zeros((len(texts), self.mean.shape[0]), np.float32)
        np.add.at(result, np.repeat(np.arange(len(ids)), [len(one) for one in ids]), vectors[places])
        lengths = np.array([max(1, len(one)) for one in ids], np.float32)
        found: Floats = result / lengths[:, None]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class LabelMeanings:
    """The labels of one SAE as vectors of length 1: ``pks`` of the features, and what every text is reduced by.

    ``top_words`` are the words of each feature's top tokens, ``num_features`` the numbers of features that have them.
    """

    embeddings: TokenEmbeddings
    pks: NDArray[np.int64]
    top_words: tuple[tuple[str, ...], ...]
    num_features: Mapping[str, int]
    vectors: Floats
    mean: Floats
    component: Floats

    @classmethod
    def build(cls, embeddings: TokenEmbeddings, rows: Sequence[tuple[int, str, Sequence[str]]]) -> LabelMeanings:
        """Embed features, given as primary key, label and top tokens."""
        labels = _unit(embeddings.embed([label for _, label, _ in rows]))
        tokens = _unit(embeddings.embed([" ".join(tokens) for _, _, tokens in rows]))
        raw = labels + _TOKENS_WEIGHT * tokens
        mean: Floats = raw.mean(0) if len(raw) else np.zeros_like(embeddings.mean)
        centred = raw - mean
        _, directions = np.linalg.eigh(centred.T @ centred)  # ascending
        component: Floats = directions[:, -1].astype(np.float32)
        pks = np.array([pk for pk, _, _ in rows], np.int64)
        top_words = tuple(tuple(_merged([(token, 1.0) for token in tokens])) for _, _, tokens in rows)
        num_features = Counter(word for words in top_words for word in words)
        return cls(embeddings, pks, top_words, num_features, _unit(_without(centred, component)), mean, component)

    def similarities(self, text: str) -> Floats:
        """Return the cosine of a text with each label, in the order of ``pks``."""
        query = _unit(self.embeddings.embed([text])) * (1 + _TOKENS_WEIGHT)
        found: Floats = (self.vectors @ _unit(_without(query - self.mean, self.component)).T)[:, 0]
        return found

    def related_words(self, text: str) -> dict[str, float]:
        """Return words that belong to a text, with weights: top tokens of the features with similar labels.

        Only words count that ``_MIN_RELATED`` of these features have, and ``_MIN_LIFT`` times as many as of all
        features; most others are pieces of words, or are everywhere.
        """
        cosines = self.similarities(text)
        nearest = np.argsort(-cosines, kind="stable")[:_NUM_RELATED]
        shared = Counter(word for place in nearest for word in self.top_words[place])
        lifts = {
            word: number / len(nearest) / (self.num_features[word] / len(self.pks))
            for word, number in shared.items()
            if number >= _MIN_RELATED and len(word) > 1
        }
        found: dict[str, float] = defaultdict(float)
        for place in nearest:
            for word in self.top_words[place]:
                if lifts.get(word, 0.0) >= _MIN_LIFT:
                    found[word] += max(0.0, float(cosines[place])) * math.log(lifts[word])
        most = max(found.values(), default=0.0)
        return {word: _RELATED_WEIGHT * weight / most for word, weight in found.items() if weight > 0}


@dataclass(frozen=True, slots=True, eq=False)
class OutputMeanings:
    """The output tokens of one SAE's features: unit vectors of the distinct ones, and which feature has which.

    ``features``, ``tokens`` and ``weights`` list the pairs: places in ``pks``, places in ``words``, and the part of the
    token times ``ln(N / n)``, where ``n`` of ``N`` features have it. So tokens that any steering brings about count
    little.
    """

    embeddings: TokenEmbeddings
    pks: NDArray[np.int64]
    words: tuple[str, ...]
    vectors: Floats
    features: NDArray[np.int64]
    tokens: NDArray[np.int64]
    weights: Floats

    @classmethod
    def build(
        cls, embeddings: TokenEmbeddings, rows: Sequence[tuple[int, Sequence[tuple[str, float]]]]
    ) -> OutputMeanings:
        """Embed the output tokens of features, given as primary key and pairs of text and part.

        Pieces of words are left out.
        """
        marks_words = any(text.startswith(" ") for _, tokens in rows for text, _ in tokens)
        merged = [
            (pk, _merged([(text, part) for text, part in tokens if not (marks_words and is_piece(text))]))
            for pk, tokens in rows
        ]
        words = tuple(dict.fromkeys(text for _, own in merged for text in own))
        places = {text: place for place, text in enumerate(words)}
        features = np.array([n for n, (_, own) in enumerate(merged) for _ in own], np.int64)
        tokens = np.array([places[text] for _, own in merged for text in own], np.int64)
        parts = np.array([part for _, own in merged for part in own.values()], np.float32)
        rarity = np.log(max(1, len(rows)) / np.maximum(1, np.bincount(tokens, minlength=len(words))))
        weights: Floats = (parts * rarity[tokens]).astype(np.float32) if len(tokens) else parts
        pks = np.array([pk for pk, _ in rows], np.int64)
        return cls(embeddings, pks, words, _unit(embeddings.embed(words, as_words=True)), features, tokens, weights)

    def matches(self, text: str, related: Mapping[str, float]) -> Floats:
        """Return for each feature how much its output tokens mean a text, in the order of ``pks``.

        ``related`` are words that belong to the text, with weights from 0 to 1.
        """
        cosines = (self.vectors @ _unit(self.embeddings.embed([text], as_words=True)).T)[:, 0]
        shares = np.maximum(0, (cosines - _MIN_TOKEN_COSINE) / (1 - _MIN_TOKEN_COSINE))
        shares = np.maximum(shares, [related.get(word, 0.0) for word in self.words])
        found: Floats = np.zeros(len(self.pks), np.float32)
        np.add.at(found, self.features, self.weights * shares[self.tokens])
        return found


def is_piece(token: str) -> bool:
    """Return whether a token continues a word, where words begin with a blank: "sea" of "nausea", not " sea"."""
    return token[:1].islower()


def _merged(tokens: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Return parts by word: " Sea" and "sea" are one."""
    found: dict[str, float] = {}
    for text, part in tokens:
        if (word := text.strip().lower()) and any(letter.isalpha() for letter in word):
            found[word] = found.get(word, 0.0) + part
    return found


class MeaningIndex(Generic[Built]):
    """What ``build`` makes of an SAE's features, in this process; rebuilt when labels or output tokens change."""

    def __init__(self, build: Callable[[SAE], Built]) -> None:
        self._build = build
        self._known: dict[int, tuple[object, Built]] = {}
        self._lock = Lock()

    def of(self, sae: SAE) -> Built:
        """Return what was built of an SAE. Raise MeaningUnavailableError."""
        state = registered_saes.get()  # replaced whenever labels or output tokens change, in any process
        with self._lock:
            known = self._known.get(sae.pk)
            if known is not None and known[0] is state:
                return known[1]
            built = self._build(sae)
            self._known[sae.pk] = (state, built)
            while len(self._known) > _MAX_CACHED:
                del self._known[next(iter(self._known))]
            return built


def _label_meanings(sae: SAE) -> LabelMeanings:
    rows = sae.features.exclude(label="", top_tokens=[]).order_by("pk").values_list("pk", "label", "top_tokens")
    return LabelMeanings.build(open_embeddings(sae), list(rows))


def _output_meanings(sae: SAE) -> OutputMeanings | None:
    """Return None if no output tokens were measured; then no embeddings are read."""
    rows = list(sae.features.exclude(output_tokens=[]).order_by("pk").values_list("pk", "output_tokens"))
    return OutputMeanings.build(open_embeddings(sae), rows) if rows else None


_labels = MeaningIndex(_label_meanings)
_outputs = MeaningIndex(_output_meanings)


def similarities(sae: SAE, text: str) -> dict[int, float]:
    """Return the cosine of a text with each feature of an SAE that has a label or top tokens, by primary key.

    Raise MeaningUnavailableError if the model's embeddings cannot be read.
    """
    labels = _labels.of(sae)
    return dict(zip(labels.pks.tolist(), labels.similarities(text).tolist(), strict=True))


def output_matches(sae: SAE, text: str) -> dict[int, float]:
    """Return how much the output tokens of each feature of an SAE mean a text, where they do, by primary key.

    The unit is that of the tokens' parts of the divergence (nats), times their rarity. Raise MeaningUnavailableError.
    """
    outputs = _outputs.of(sae)
    if outputs is None:
        return {}
    matches = outputs.matches(text, _labels.of(sae).related_words(text))
    return {pk: match for pk, match in zip(outputs.pks.tolist(), matches.tolist(), strict=True) if match > 0}


def open_embeddings(sae: SAE) -> TokenEmbeddings:
    """Return the embeddings of the SAE's language model. Raise MeaningUnavailableError."""
    source = sae.model.model_source
    try:
        return _open(resolve_source(source), source.trust_remote_code)
    except (SourceError, OSError, ValueError, KeyError) as error:
        raise MeaningUnavailableError(
            f"The embeddings of the model `{sae.model.name}` cannot be read: {error}"
        ) from error


@lru_cache(maxsize=2)
def _open(folder: Path, trust_remote_code: bool) -> TokenEmbeddings:  # noqa: FBT001 - a key of the cache
    from tokenizers import Tokenizer

    from steering.features.unembedding import UnembeddingError, open_input_embeddings  # imports torch

    try:
        tensor = open_input_embeddings(folder, trust_remote_code=trust_remote_code)
    except UnembeddingError as error:
        raise ValueError(str(error)) from error
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises nothing more specific
        raise ValueError(f"tokenizer.json: {error}") from error
    total, count = np.zeros(tensor.shape[1], np.float64), 0
    for piece in tensor.rows():
        total += piece.sum(0, dtype=np.float64)
        count += len(piece)
    mean, rows = (total / max(1, count)).astype(np.float32), _mapped(tensor)
    sample = _as_float32(np.asarray(rows[:: -(-count // _MAX_SAMPLED) or 1]), tensor.dtype) - mean
    return TokenEmbeddings(tokenizer, rows, tensor.dtype, mean, _components(sample))


def _components(rows: Floats) -> Floats:
    """Return the first principal components of centred rows, by subspace iteration."""
    found = np.random.default_rng(0).standard_normal((rows.shape[1], min(_NUM_COMPONENTS, *rows.shape)))
    for _ in range(12):
        found, _ = np.linalg.qr(rows.T @ (rows @ found.astype(np.float32)))
    components: Floats = found.T.astype(np.float32)
    return components


def _mapped(tensor: StoredTensor) -> Any:
    kind = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[tensor.dtype]
    return np.memmap(tensor.file, dtype=kind, mode="r", offset=tensor.start, shape=tensor.shape)


def _as_float32(values: Any, dtype: str) -> Floats:
    if dtype == "BF16":
        found: Floats = (values.astype(np.uint32) << 16).view(np.float32)
        return found
    converted: Floats = values.astype(np.float32)
    return converted


def _without(vectors: Floats, component: Floats) -> Floats:
    found: Floats = vectors - (vectors @ component)[:, None] * component
    return found


def _unit(vectors: Floats) -> Floats:
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    found: Floats = (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)
    return found
