"""manage.py models_doc: write docs/models.md, or check it."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, CommandError

from inference.files.architectures import EXACT, REFUSED, Architecture
from millm_site.env import PROJECT_DIR

PATH = PROJECT_DIR / "docs" / "models.md"
HEAD = """# Models

A model that generates text is a directory in the Hugging Face layout (or a Hub id) whose architecture transformers
knows, with `tokenizer.json` and weights as safetensors. Its `model_type` is in `config.json`. This page is made by
`manage.py models_doc` from `inference/files/architectures.py`; `make check` fails when they differ, and
`tests/engine/test_architectures.py` builds a tiny random model of each row: those of the first table give
transformers' own tokens alone and in chunks beside another text, on both caches; those of the second are refused.

## The self-check

Every model is compared with transformers when it is loaded, whatever its architecture: 32 random tokens go through the
module as transformers made it (eager attention, the model's dtype), and then through miLLM's attention, kernels and
fused layers, in one piece over a contiguous cache and in chunks beside a second text over a paged one. With int8
weights the comparison is with what those stand for. The logits may differ by what rounding explains, which is measured
for each model too. A model that differs by more is refused with a sentence that names its class and what differed.
In float32 every token counts; in 16 bits the median does, since a mixture's choice of experts can turn on a rounding.
All of it takes about ten forward passes of a few tokens. On two busy cores of a server that was 0.5 s of processor time
for the demo, and 8 s of the 18 s that loading a model of Qwen3-0.6B's shape takes in bfloat16.
Before that, each layer's call of the attention function is looked at: what it may see at any length up to the context
that is served (windows, chunks, prefixes), whether it attends at all, and with which arguments.

"""
EXACT_HEAD = """## Architectures that are computed exactly

| `model_type` | models | notes |
|---|---|---|
"""
LONG_ROPE = """
### LongRoPE: Phi-3.5 and Phi-4-mini

These models have two sets of rotary frequencies, for texts up to their original context (4,096 tokens) and beyond.
transformers chooses by the longest text in a forward pass, so an answer would depend on its neighbours. miLLM chooses
once, at load, by the longest text that it serves, as vLLM does: with the model's own context length (131,072) all texts
are read with the frequencies for long ones. For transformers' results on short texts give the model a context length of
4,096 (`add_model --context-length 4096`, or `MILLM_MAX_SEQ_LEN`). The log says at load which set was chosen.

"""
REFUSED_HEAD = """## Architectures that are refused

When a model is added from a directory, and before anything is loaded. Any other architecture is loaded, and refused if
it fails the self-check.

| `model_type` | models | it |
|---|---|---|
"""


def models_page() -> str:
    return HEAD + EXACT_HEAD + _rows(EXACT) + LONG_ROPE + REFUSED_HEAD + _rows(REFUSED)


def is_in_step(path: Path = PATH) -> bool:
    return path.is_file() and path.read_text() == models_page()


def _rows(architectures: Iterable[Architecture]) -> str:
    return "".join(f"| `{row.model_type}` | {row.models} | {row.refusal or row.notes} |\n" for row in architectures)


class Command(BaseCommand):
    help = "Write docs/models.md from inference/files/architectures.py."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--check", action="store_true", help="Write nothing; fail when the page is not in step.")

    def handle(self, *args: Any, check: bool, **options: Any) -> None:
        if not check:
            PATH.write_text(models_page())
        elif not is_in_step():
            raise CommandError(
                f"{PATH.name} is not in step with inference/files/architectures.py. Run: python manage.py models_doc"
            )
