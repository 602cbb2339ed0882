"""Load a model from a Hugging Face directory. Slow: runs on the loader thread."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as hf_logging

from inference.engine.errors import LoadError, NotEnoughMemoryError, UnsupportedModelError
from inference.engine.kernels import attention, native
from inference.engine.kernels.fused_layers import fuse
from inference.engine.kernels.int8_trial import int8_problem
from inference.engine.kernels.linear_kinds import Weights
from inference.engine.kernels.linears import bytes_of, prepare_linears
from inference.engine.models.adaptations import adapt_attention, freeze_long_rope
from inference.engine.models.attention_probe import check_attention, use_attention
from inference.engine.models.load_faults import enough_memory, ran_out_of_memory, readable_files, told
from inference.engine.models.self_check import compare, take_reference
from inference.engine.models.sites import SiteError, decoder_layers
from inference.engine.models.weight_files import StoredWeight, load_pickles, open_weights, pickle_files, weight_files
from inference.files.unchanged import unchanged
from inference.text.grammar_compiler import GrammarCompiler
from inference.torch_threads import borrowed_workers

logger = logging.getLogger(__name__)
DTYPES = {"auto": "auto", "bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
DEFAULT_LENGTH = 4096  # of a model whose configuration does not say


hf_logging.disable_progress_bar()  # a server's log is no terminal


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What to load and how. ``max_seq_len`` 0 takes the model's own context length.

    ``weights`` ``int8`` makes the linears int8, the output embeddings included.
    ``kind`` is what it shall be used for: generation, embedding or classification (see the loaders of those).
    """

    name: str
    path: Path
    dtype: str = "auto"
    device: str = "auto"
    trust_remote_code: bool = False
    allow_pickle: bool = False
    max_seq_len: int = 0
    weights: Weights = "native"
    kind: Literal["generation", "embedding", "classification"] = "generation"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer and the facts that scheduling and validation need.

    ``labels`` are what a classifier tells apart.
    """

    name: str
    module: nn.Module
    tokenizer: PreTrainedTokenizerBase
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    special_token_ids: frozenset[int]
    memory_bytes: int
    hidden_size: int
    num_layers: int
    dtype: str
    device: str
    grammars: GrammarCompiler | None  # of a model that generates
    labels: tuple[str, ...] = field(default=(), kw_only=True)


def load_model(spec: ModelSpec) -> LoadedModel:
    """Load weights and tokenizer. Raise LoadError with a message for users."""
    with borrowed_workers(), enough_memory(spec.name):
        return _load(spec)


def _load(spec: ModelSpec) -> LoadedModel:
    device = resolve_device(spec.device)
    check_dtype(spec.dtype)
    with readable_files(spec.name, spec.path):
        module, tokenizer = from_pretrained(spec, device, AutoModelForCausalLM, attn_implementation="eager")
    if not tokenizer.is_fast:
        raise LoadError(f"{spec.name} has no fast tokenizer (tokenizer.json), which streaming needs.")
    if spec.weights == "int8" and device.type != "cpu" and (problem := int8_problem(device, module.dtype)):
        raise LoadError(f"{spec.name} cannot have int8 weights on {device}: {problem}.")
    max_length = served_length(spec, module.config.get_text_config())
    with _runnable(spec.name, module):
        _prepare(spec, module, tokenizer, device, max_length)
    return _describe(spec, module, tokenizer, device, max_length)


def check_dtype(name: str) -> None:
    """Raise LoadError for an unknown dtype."""
    if name not in DTYPES:
        raise LoadError(f"dtype must be one of {', '.join(DTYPES)}, not {name!r}.")


def resolve_device(name: str) -> torch.device:
    """``auto`` is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise LoadError(f"There is no device {name!r}; use auto, cpu, cuda or cuda:N.") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise LoadError(f"Device {name!r} does not exist: this machine has {torch.cuda.device_count()} CUDA devices.")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def from_pretrained(
    spec: ModelSpec, device: torch.device, model_class: Any, **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The directory's module, as one of transformers' ``Auto`` classes makes it, and its tokenizer.

    Nothing of them is mapped from a file. OSError if a file changes meanwhile, which would mix two models.
    """
    with unchanged([*spec.path.glob("*.json"), *spec.path.glob("*.safetensors"), *spec.path.glob("*.bin")]):
        config = AutoConfig.from_pretrained(spec.path, trust_remote_code=spec.trust_remote_code, local_files_only=True)
        module = _load_module(spec, config, model_class, options)
        tokenizer = AutoTokenizer.from_pretrained(
            spec.path, trust_remote_code=spec.trust_remote_code, local_files_only=True
        )
    return module.to(device).eval().requires_grad_(requires_grad=False), tokenizer


def _load_module(spec: ModelSpec, config: Any, model_class: Any, options: dict[str, Any]) -> PreTrainedModel:
    """On the CPU.

    transformers maps the files that it opens, or with ``disable_mmap`` needs a file's size in memory a second time. So
    it is given the tensors, which are read one by one when it asks for them; it opens only what it alone understands:
    quantised checkpoints, and safetensors files with a name of their own.
    """
    options = {"trust_remote_code": spec.trust_remote_code, "local_files_only": True, **options}
    if any(getattr(config, name, None) for name in ("quantization_config", "transformers_weights")):
        module: PreTrainedModel = model_class.from_pretrained(
            spec.path, config=config, dtype=DTYPES[spec.dtype], use_safetensors=True, disable_mmap=True, **options
        )
        return module
    weights = _weights(spec)
    dtype = _dtype(spec, config, weights)
    with torch.device("meta"):  # without weights: it tells the class, which may be of the directory's own code
        skeleton = model_class.from_config(config, trust_remote_code=spec.trust_remote_code)
    module = type(skeleton).from_pretrained(None, config=skeleton.config, state_dict=weights, dtype=dtype, **options)
    with suppress(OSError):  # a model need not have one: its config and its tokenizer name end tokens too
        module.generation_config = GenerationConfig.from_pretrained(spec.path, local_files_only=True)
    return module


def _weights(spec: ModelSpec) -> Mapping[str, StoredWeight | Tensor]:
    """By name, of safetensors files or, where those may be read and there are no others, of pickles."""
    if files := weight_files(spec.path):
        return open_weights(files)
    if spec.allow_pickle and (files := pickle_files(spec.path)):
        return load_pickles(files)
    pickles = ", nor pytorch_model.bin" if spec.allow_pickle else ""
    raise LoadError(f"{spec.name} has neither model.safetensors nor model.safetensors.index.json{pickles}.")


def _dtype(spec: ModelSpec, config: Any, weights: Mapping[str, StoredWeight | Tensor]) -> Any:
    """Without a word in the config ``auto`` is that of the weights, as transformers finds it."""
    if spec.dtype != "auto" or None not in (config.dtype, config.get_text_config().dtype):
        return DTYPES[spec.dtype]
    return next((weight.dtype for weight in weights.values() if weight.dtype.is_floating_point), torch.float32)


def served_length(spec: ModelSpec, config: Any) -> int:
    """Tokens of the longest text: what the model was made for, or less where the specification says so."""
    own_length = int(getattr(config, "max_position_embeddings", 0) or DEFAULT_LENGTH)
    return min(spec.max_seq_len, own_length) if spec.max_seq_len else own_length


@contextmanager
def _runnable(name: str, module: nn.Module) -> Iterator[None]:
    """Say which model it is whose architecture cannot be run."""
    try:
        yield
    except NotEnoughMemoryError:
        raise
    except Exception as error:
        # The model's code is transformers' or its author's: whatever it raises here, it would raise for every request.
        if ran_out_of_memory(error):
            raise
        reason = str(error).rstrip(".") if isinstance(error, (UnsupportedModelError, SiteError)) else told(error)
        raise UnsupportedModelError(
            f"{name} is a {type(module).__name__}, which miLLM cannot run: {reason}. docs/models.md lists the "
            "architectures that it runs."
        ) from error


def _prepare(
    spec: ModelSpec, module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, device: torch.device, max_length: int
) -> None:
    """Make the module fast, and see that it still computes what transformers made of the files."""
    freeze_long_rope(module, max_length)
    reference = take_reference(
        module,
        spec.weights,
        vocab_size=int(module.config.get_text_config().vocab_size),
        max_length=max_length,
        avoid={*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder},
    )
    adapt_attention(module)
    check_attention(module, max_length)
    use_attention(module, attention.NAME)
    _make_fast(spec, module, device)
    compare(module, reference)


def _make_fast(spec: ModelSpec, module: nn.Module, device: torch.device) -> None:
    """Kernels and layouts of ours; what they cannot do stays as transformers has it."""
    if device.type == "cpu":
        native.activate()
    linears = prepare_linears(module, weights=spec.weights, quantise_head=True)
    logger.info("%s: %s; %s.", spec.name, linears, fuse(module))
    trim_heap()


def _describe(
    spec: ModelSpec, module: nn.Module, tokenizer: PreTrainedTokenizerBase, device: torch.device, max_length: int
) -> LoadedModel:
    config = module.config.get_text_config()  # type: ignore[union-attr, operator]
    eos_token_ids = _eos_token_ids(module, tokenizer)
    return LoadedModel(
        name=spec.name,
        module=module,
        tokenizer=tokenizer,
        max_model_len=max_length,
        vocab_size=int(config.vocab_size),
        eos_token_ids=eos_token_ids,
        special_token_ids=frozenset(tokenizer.all_special_ids),
        memory_bytes=bytes_of(module),
        hidden_size=int(config.hidden_size),
        num_layers=len(decoder_layers(module)),
        dtype=str(next(module.parameters()).dtype).removeprefix("torch."),
        device=str(device),
        grammars=GrammarCompiler(tokenizer, int(config.vocab_size), eos_token_ids),
    )


def _eos_token_ids(module: nn.Module, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Of the generation config (one or several) and of the tokenizer."""
    ids = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
    found = set(ids) if isinstance(ids, list) else {ids}
    found.add(tokenizer.eos_token_id)
    return frozenset(int(i) for i in found if i is not None)


def release_model(loaded: LoadedModel) -> None:
    """Free the weights of a model that nothing runs any more; its module cannot be used afterwards.

    A module is part of reference cycles, so its tensors would stay until Python's collector comes by, and a full
    collection holds the interpreter, and with it the engine thread: 640 ms with a model of 1.2 GiB on two shared cores.
    So the links are cut here, one by one: no other thread waited for more than 19 ms.
    """
    on_cuda = loaded.device.startswith("cuda")
    for module in list(loaded.module.modules()):
        _empty(module)
    if on_cuda:
        torch.cuda.empty_cache()


def _empty(module: nn.Module) -> None:
    """Parameters, buffers, hooks, and whatever else hangs on the module (packed weights, caches)."""
    vars(module).clear()


def trim_heap() -> None:
    """Return freed memory to the system. glibc's allocator would keep it."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
