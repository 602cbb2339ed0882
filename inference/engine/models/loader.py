"""Load a model from a Hugging Face directory. Slow: runs on the loader thread."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

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
from inference.engine.kernels.layouts import interleaves
from inference.engine.kernels.linears import bytes_of, prepare_linears
from inference.engine.kernels.ordered_activations import order_activations, restore_activations
from inference.engine.models.adaptations import adapt_attention, freeze_long_rope
from inference.engine.models.attention_probe import check_attention, use_attention
from inference.engine.models.facts import ModelSpec
from inference.engine.models.load_faults import enough_memory, ran_out_of_memory, readable_files, told
from inference.engine.models.self_check import compare, take_reference
from inference.engine.models.sites import SiteError, decoder_layers, site_widths
from inference.engine.models.weight_files import StoredWeight, load_pickles, open_weights, pickle_files, weight_files
from inference.files.text_tower import has_text_tower, language_model_of
from inference.files.unchanged import unchanged
from inference.interventions import Site
from inference.text.grammar_compiler import GrammarCompiler
from inference.torch_threads import borrowed_workers

logger = logging.getLogger(__name__)
DTYPES = {"auto": "auto", "bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
DEFAULT_LENGTH = 4096  # if the model's configuration has none


hf_logging.disable_progress_bar()  # not for the log of a server


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer and the facts that scheduling and validation need.

    ``labels``: those of a classifier. ``sites``: every site of a generation model, with its number of values.
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
    grammars: GrammarCompiler | None  # of a generation model
    batch_invariant: bool = field(default=False, kw_only=True)
    labels: tuple[str, ...] = field(default=(), kw_only=True)
    sites: Mapping[Site, int] = field(default_factory=dict, kw_only=True, hash=False)


def load_model(spec: ModelSpec) -> LoadedModel:
    """Load weights and tokenizer. Raise LoadError with a message for users."""
    with borrowed_workers(), enough_memory(spec.name):
        return _load(spec)


def _load(spec: ModelSpec) -> LoadedModel:
    device = resolve_device(spec.device)
    check_dtype(spec.dtype)
    if spec.batch_invariant == "on" and device.type != "cpu":
        raise LoadError(
            f"{spec.name} cannot run on {device} with MILLM_BATCH_INVARIANT=on, which supports the CPU only. Set the "
            "model's device to cpu, or MILLM_BATCH_INVARIANT=off."
        )
    with readable_files(spec.name, spec.path):
        module, tokenizer = from_pretrained(spec, device, AutoModelForCausalLM, attn_implementation="eager")
    if not tokenizer.is_fast:
        raise LoadError(f"{spec.name} has no fast tokenizer (tokenizer.json), which streaming requires.")
    _check_weights(spec, module.dtype, device)
    max_length = served_length(spec, module.config.get_text_config())
    with _runnable(spec.name, module):
        is_invariant = _prepare(spec, module, tokenizer, device, max_length)
    return _describe(spec, module, tokenizer, device, max_length, is_invariant=is_invariant)


def _check_weights(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> None:
    """Raise LoadError if the device cannot compute with the quantization."""
    if spec.weights == "int8" and device.type != "cpu" and (problem := int8_problem(device, dtype)):
        raise LoadError(f"{spec.name} cannot use int8 weights on {device}: {problem}.")
    if spec.weights == "w8a8" and (device.type != "cpu" or not native.activate().has_int8):
        raise LoadError(
            f"{spec.name} cannot use quantization w8a8 on this {'processor' if device.type == 'cpu' else 'GPU'}: it "
            "requires a processor with AVX512_VNNI and the C++ kernels. Use int8."
        )


def check_dtype(name: str) -> None:
    """Raise LoadError for an unknown dtype."""
    if name not in DTYPES:
        raise LoadError(f"dtype must be one of {', '.join(DTYPES)}, got {name!r}.")


def resolve_device(name: str) -> torch.device:
    """Return the device; ``auto`` is CUDA if available. Raise LoadError."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda:0")
        _report_missing_gpu()
        return torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise LoadError(f"There is no device {name!r}. Use auto, cpu, cuda or cuda:N.") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise LoadError(f"Device {name!r} does not exist: this machine has {torch.cuda.device_count()} CUDA devices.")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


@cache
def _report_missing_gpu() -> None:
    """Log, once, that torch could use a GPU but found none, as in a container without access to it."""
    if torch.version.cuda:
        logger.info("torch is built for CUDA %s but found no GPU. Models run on the CPU.", torch.version.cuda)


def from_pretrained(
    spec: ModelSpec, device: torch.device, model_class: Any, **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the module of one of transformers' ``Auto`` classes, and its tokenizer.

    No file is mapped. Raise OSError if a file changes during the load, which would mix two versions.
    """
    with unchanged([*spec.path.glob("*.json"), *spec.path.glob("*.safetensors"), *spec.path.glob("*.bin")]):
        config = AutoConfig.from_pretrained(spec.path, trust_remote_code=spec.trust_remote_code, local_files_only=True)
        module = _load_module(spec, config, model_class, options)
        tokenizer = AutoTokenizer.from_pretrained(
            spec.path, trust_remote_code=spec.trust_remote_code, local_files_only=True
        )
    return module.to(device).eval().requires_grad_(requires_grad=False), tokenizer


def _load_module(spec: ModelSpec, config: Any, model_class: Any, options: dict[str, Any]) -> PreTrainedModel:
    """Load the module on the CPU.

    transformers maps the files that it opens, or with ``disable_mmap`` needs a file's size in memory twice. So it is
    given tensors that are read one by one on access. It opens files itself only if they are quantised checkpoints or
    safetensors files with unusual names.
    """
    options = {"trust_remote_code": spec.trust_remote_code, "local_files_only": True, **options}
    is_tower = spec.kind == "generation" and has_text_tower(config)  # a classifier has a head of its own beside it
    if any(getattr(config, name, None) for name in ("quantization_config", "transformers_weights")):
        if is_tower:
            raise LoadError(f"{spec.name} is a quantised model for text and pictures, which is not supported.")
        module: PreTrainedModel = model_class.from_pretrained(
            spec.path, config=config, dtype=DTYPES[spec.dtype], use_safetensors=True, disable_mmap=True, **options
        )
        return module
    weights = _weights(spec)
    if is_tower:
        config, weights = language_model_of(config, weights)
    dtype = _dtype(spec, config, weights)
    with torch.device("meta"):  # without weights, to find the class, which may be code of the directory
        skeleton = model_class.from_config(config, trust_remote_code=spec.trust_remote_code)
    module, info = type(skeleton).from_pretrained(
        None, config=skeleton.config, state_dict=weights, dtype=dtype, output_loading_info=True, **options
    )
    if is_tower and info["missing_keys"]:  # random weights would look like a model that writes nonsense
        names = ", ".join(sorted(info["missing_keys"])[:3])
        raise LoadError(f"{spec.name}: the files lack weights of the language model, such as {names}.")
    with suppress(OSError):  # it is optional: config and tokenizer have end tokens too
        module.generation_config = GenerationConfig.from_pretrained(spec.path, local_files_only=True)
    return module


def _weights(spec: ModelSpec) -> Mapping[str, StoredWeight | Tensor]:
    """Return tensors by name, of safetensors files, or of pickles if these are allowed and no others exist."""
    if files := weight_files(spec.path):
        return open_weights(files)
    if spec.allow_pickle and (files := pickle_files(spec.path)):
        return load_pickles(files)
    pickles = ", nor pytorch_model.bin" if spec.allow_pickle else ""
    raise LoadError(f"{spec.name} has neither model.safetensors nor model.safetensors.index.json{pickles}.")


def _dtype(spec: ModelSpec, config: Any, weights: Mapping[str, StoredWeight | Tensor]) -> Any:
    """Return the dtype. ``auto``: that of the config, or of the weights, as in transformers."""
    if spec.dtype != "auto" or None not in (config.dtype, config.get_text_config().dtype):
        return DTYPES[spec.dtype]
    return next((weight.dtype for weight in weights.values() if weight.dtype.is_floating_point), torch.float32)


def served_length(spec: ModelSpec, config: Any) -> int:
    """Return the context length: the model's own, or a smaller one of the specification."""
    own_length = int(getattr(config, "max_position_embeddings", 0) or DEFAULT_LENGTH)
    return min(spec.max_seq_len, own_length) if spec.max_seq_len else own_length


@contextmanager
def _runnable(name: str, module: nn.Module) -> Iterator[None]:
    """Turn errors of the block into an UnsupportedModelError that names the model."""
    try:
        yield
    except NotEnoughMemoryError:
        raise
    except Exception as error:
        # The code belongs to transformers or the model's author: an error here would occur for every request.
        if ran_out_of_memory(error):
            raise
        reason = str(error).rstrip(".") if isinstance(error, (UnsupportedModelError, SiteError)) else told(error)
        raise UnsupportedModelError(
            f"{name} is a {type(module).__name__}, which is not supported: {reason}. docs/models.md lists the "
            "supported architectures."
        ) from error


def _prepare(
    spec: ModelSpec, module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, device: torch.device, max_length: int
) -> bool:
    """Optimise the module, and check that it still computes the same as transformers. Return whether its results are
    independent of the batch.
    """
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
    if device.type == "cpu":
        native.activate()
    batch_invariant = spec.batch_invariant == "on" or (
        spec.batch_invariant == "auto" and _costs_little(spec, module, device)
    )
    _make_fast(spec, module, batch_invariant=batch_invariant)
    is_invariant = compare(module, reference, batch_invariant=batch_invariant)
    if batch_invariant and not is_invariant:
        if spec.batch_invariant == "on":
            raise UnsupportedModelError(
                "its results depend on the other requests of a step, which MILLM_BATCH_INVARIANT=on does not allow; "
                "set it to auto, or use another model"
            )
        logger.info("%s: results depend on the other requests of a step, because of its own code.", spec.name)
        restore_activations(module)
        compare(module, reference)
    return is_invariant


def _costs_little(spec: ModelSpec, module: PreTrainedModel, device: torch.device) -> bool:
    """Return whether batch invariance costs at most 10 % on this device (``python -m benchmarks.invariance``).

    It was measured where a product sums in one order anyway, because weights are interleaved, and with no more threads
    than key heads: a sequence's attention uses one thread for each. With int8 weights it cost more without tiles.
    """
    if spec.weights == "int8" and not native.active().has_tiles:
        return False
    if device.type != "cpu" or module.dtype is not torch.bfloat16 or not interleaves(torch.bfloat16):
        return False
    config = module.config.get_text_config()
    num_heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return torch.get_num_threads() <= num_heads


def _make_fast(spec: ModelSpec, module: nn.Module, *, batch_invariant: bool) -> None:
    """Apply our kernels and layouts. Modules that they do not support stay unchanged."""
    if batch_invariant:
        order_activations(module)
    linears = prepare_linears(module, weights=spec.weights, quantise_head=True, batch_invariant=batch_invariant)
    logger.info("%s: %s; %s.", spec.name, linears, fuse(module))
    trim_heap()


def _describe(
    spec: ModelSpec,
    module: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    max_length: int,
    *,
    is_invariant: bool,
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
        batch_invariant=is_invariant,
        sites=site_widths(module),
    )


def _eos_token_ids(module: nn.Module, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the end tokens of the generation config and of the tokenizer."""
    ids = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
    found = set(ids) if isinstance(ids, list) else {ids}
    found.add(tokenizer.eos_token_id)
    return frozenset(int(i) for i in found if i is not None)


def release_model(loaded: LoadedModel) -> None:
    """Free the weights of an unused model. Its module cannot be used afterwards.

    A module is part of reference cycles, so its tensors would stay until Python's garbage collector runs, and a full
    collection blocks the engine thread: 640 ms with a model of 1.2 GiB on two shared cores. Cutting the references here
    blocks other threads for at most 19 ms.
    """
    on_cuda = loaded.device.startswith("cuda")
    for module in list(loaded.module.modules()):
        _empty(module)
    if on_cuda:
        torch.cuda.empty_cache()


def _empty(module: nn.Module) -> None:
    """Remove parameters, buffers, hooks and other attributes of the module (packed weights, caches)."""
    vars(module).clear()


def trim_heap() -> None:
    """Return freed memory to the system. glibc's allocator would keep it."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
