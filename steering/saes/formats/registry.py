"""All supported formats; add a new one to ``FORMATS``.

Their order does not matter: a folder that matches two formats is rejected.
"""

from __future__ import annotations

from steering.saes.formats.circuit_tracer import CircuitTracer
from steering.saes.formats.dictionary_learning import DictionaryLearning
from steering.saes.formats.format import SAEFormat
from steering.saes.formats.gemma_scope import GemmaScope
from steering.saes.formats.gemma_scope_2 import GemmaScope2
from steering.saes.formats.goodfire import Goodfire
from steering.saes.formats.llama_scope import LlamaScope
from steering.saes.formats.openmoss import Llamascopium, OpenMOSS
from steering.saes.formats.qwen_scope import QwenScope
from steering.saes.formats.saelens import SAELens5, SAELens6
from steering.saes.formats.sparsify import Sparsify

FORMATS: tuple[SAEFormat, ...] = (
    SAELens6(),
    SAELens5(),
    GemmaScope(),
    GemmaScope2(),
    LlamaScope(),
    OpenMOSS(),
    Llamascopium(),
    Sparsify(),
    Goodfire(),
    DictionaryLearning(),
    QwenScope(),
    CircuitTracer(),
)
CONFIG_FILES: tuple[str, ...] = tuple(dict.fromkeys(name for known in FORMATS for name in known.config_files))
