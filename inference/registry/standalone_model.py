"""A model outside the engine, for reading residuals at some sites with plain forward hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from inference.files.sources import resolve_source
from inference.interventions import Site
from inference.models import LanguageModel
from inference.registry.loading import spec_for
from inference.registry.splice import Splice
from inference.text.model_text import ModelText
from inference.torch_threads import borrowed_workers

if TYPE_CHECKING:
    from torch import Tensor, nn


_BATCH_TOKENS = 4096  # of one forward pass over several texts


class _Stop(Exception):
    """Ends a forward pass after the site that is read."""


class StandaloneModel:
    """The transformers module with its own attention. No batching, cache or steering."""

    def __init__(self, module: nn.Module, text: ModelText, num_layers: int) -> None:
        self.text = text
        self.num_layers = num_layers
        self._module = module

    def read(self, token_ids: Sequence[int], sites: Sequence[Site]) -> dict[Site, Tensor]:
        """Return the residuals, ``[tokens, d]`` float32 on the CPU, per site. Raise LoadError for an unknown site."""
        import torch

        from inference.engine.errors import LoadError
        from inference.engine.models.sites import SiteError, attach

        found: dict[Site, Tensor] = {}
        detachers: list[Callable[[], None]] = []
        try:
            for site in sites:
                detachers.append(attach(self._module, site, _keep(found, site)))
            ids = torch.tensor([list(token_ids)], device=next(self._module.parameters()).device)
            with torch.inference_mode():
                _decoder(self._module)(input_ids=ids, use_cache=False)
        except SiteError as error:
            raise LoadError(str(error)) from error
        finally:
            for detach in detachers:
                detach()
        return found

    def read_many(self, prompts: Sequence[Sequence[int]], site: Site) -> list[Tensor]:
        """Return the residuals ``[tokens, d]`` of each prompt, float32 on the CPU. Layers above the site do not run.

        Prompts of similar length share a batch, padded at the end, which a causal model does not see. Raise LoadError
        for an unknown site.
        """
        order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
        found: dict[int, Tensor] = {}
        while order:
            longest = len(prompts[order[-1]])
            size = max(1, _BATCH_TOKENS // max(1, longest))
            batch, order = order[-size:], order[:-size]
            values = self._read_batch([prompts[number] for number in batch], longest, site)
            found |= {
                number: value[: len(prompts[number])].float() for number, value in zip(batch, values, strict=True)
            }
        return [found[number] for number in range(len(prompts))]

    def losses(self, token_ids: Sequence[int], is_ordinary: Sequence[bool], splice: Splice | None) -> Tensor:
        """Return the cross-entropy in nats ``[tokens - 1]`` of each token but the first, with the residual replaced.

        Raise LoadError for an unknown site.
        """
        import torch
        from torch.nn.functional import cross_entropy

        from inference.engine.errors import LoadError
        from inference.engine.models.sites import SiteError, attach

        ids = torch.tensor(list(token_ids), device=next(self._module.parameters()).device)
        try:
            detach = (
                attach(self._module, splice.site, lambda h: splice.apply(h[0], is_ordinary)[None]) if splice else None
            )
        except SiteError as error:
            raise LoadError(str(error)) from error
        try:
            with torch.inference_mode():
                logits = self._module(input_ids=ids[None], use_cache=False).logits[0, :-1]
                return cross_entropy(logits.float(), ids[1:], reduction="none").cpu()
        finally:
            if detach is not None:
                detach()

    def _read_batch(self, prompts: Sequence[Sequence[int]], length: int, site: Site) -> Tensor:
        """Return ``[prompts, length, d]``, with arbitrary values after the end of a shorter prompt."""
        import torch

        from inference.engine.errors import LoadError
        from inference.engine.models.sites import SiteError, attach

        kept: list[Tensor] = []

        def keep(h: Tensor) -> None:
            kept.append(h.detach().cpu())
            raise _Stop

        device = next(self._module.parameters()).device
        ids = torch.tensor([[*prompt, *[0] * (length - len(prompt))] for prompt in prompts], device=device)
        try:
            detach = attach(self._module, site, keep)
        except SiteError as error:
            raise LoadError(str(error)) from error
        try:
            with torch.inference_mode():
                _decoder(self._module)(input_ids=ids, use_cache=False)
        except _Stop:
            pass
        finally:
            detach()
        return kept[0]


def load_standalone(model: LanguageModel) -> StandaloneModel:
    """Download and load the model. Slow. Raise LoadError or :class:`~inference.files.sources.SourceError`."""
    from transformers import AutoModelForCausalLM

    from inference.engine.models.load_faults import enough_memory, readable_files
    from inference.engine.models.loader import from_pretrained, resolve_device
    from inference.engine.models.sites import decoder_layers

    path = resolve_source(model.model_source)
    spec = spec_for(model, path)
    with enough_memory(spec.name), readable_files(spec.name, path):
        module, tokenizer = from_pretrained(spec, resolve_device(spec.device), AutoModelForCausalLM)
        if _is_emulated(module) and _fits_widened(module):
            module = module.float()
        num_layers = len(decoder_layers(module))
    config: Any = module.config.get_text_config()
    length = spec.max_seq_len or int(getattr(config, "max_position_embeddings", 0) or 0) or 1024
    text = ModelText(tokenizer, max_model_len=length, chat_template=model.chat_template)
    return StandaloneModel(module, text, num_layers)


def _is_emulated(module: nn.Module) -> bool:
    """Return whether the processor does not multiply in the dtype of the weights. Float32 is several times faster."""
    from inference.engine.kernels.linear_kinds import is_computed

    weight = next(module.parameters())
    return weight.device.type == "cpu" and not is_computed(weight.dtype)


def _fits_widened(module: nn.Module) -> bool:
    """Return whether float32 weights would take at most half of the free memory."""
    from inference.engine.cache.device_memory import machine_memory

    return 4 * sum(weight.numel() for weight in module.parameters()) <= machine_memory().free // 2


@contextmanager
def open_standalone(model: LanguageModel) -> Iterator[StandaloneModel]:
    """Load the model for the block. OpenMP workers of this thread end with it."""
    with borrowed_workers():
        yield load_standalone(model)


def _keep(found: dict[Site, Tensor], site: Site) -> Callable[[Tensor], None]:
    def keep(h: Tensor) -> None:
        found[site] = h.detach()[0].float().cpu()

    return keep


def _decoder(module: nn.Module) -> Any:
    """Return the decoder without the output head, whose logits are not needed."""
    return module.get_decoder() if hasattr(module, "get_decoder") else module  # type: ignore[operator]
