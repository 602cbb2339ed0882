"""What to load, what it needs and what was loaded: plain data, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from inference.files.architectures import ModelKind
from inference.interventions import Site
from inference.text.grammar_compiler import GrammarCompiler
from inference.text.plain_tokenizer import PlainTokenizer

Weights = Literal["native", "int8", "w8a8"]
BatchInvariance = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What to load and how. ``max_seq_len`` 0: the model's own context length.

    ``weights`` ``int8`` quantises the linears, including the output embeddings. ``w8a8`` also rounds the activations
    that they multiply to 8 bits, except those of the output embeddings. Each ``kind`` has its own loader.
    ``options``: the default parameters of a media model. ``batch_invariant``: whether the bits of a generation model's
    results are independent of other requests; ``auto``: where this costs little. ``replicas``: how many engine
    processes load it, where there are several; 0: all.
    """

    name: str
    path: Path
    dtype: str = "auto"
    device: str = "auto"
    trust_remote_code: bool = False
    allow_pickle: bool = False
    max_seq_len: int = 0
    weights: Weights = "native"
    kind: ModelKind = "generation"
    batch_invariant: BatchInvariance = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 0


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """An estimate in bytes. ``kv``: the minimum size of the KV cache (the configured one, or that of one long
    conversation). ``most_kv``: the maximum, for a full batch of the longest sequences.
    """

    weights: int
    kv: int
    activations: int
    most_kv: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.activations


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory in bytes. ``total``: the maximum for this process. ``free``: unused now."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class LoadedFacts:
    """A model that is loaded in another process: what this one needs of an
    :class:`~inference.engine.models.loader.LoadedModel`, without its weights.
    """

    name: str
    tokenizer: PlainTokenizer
    max_model_len: int
    vocab_size: int
    memory_bytes: int
    hidden_size: int
    device: str
    grammars: GrammarCompiler | None
    batch_invariant: bool = False
    labels: tuple[str, ...] = ()
    sites: Mapping[Site, int] = field(default_factory=dict, hash=False)
