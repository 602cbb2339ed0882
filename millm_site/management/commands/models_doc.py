"""manage.py models_doc: write docs/models.md, or check it."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, CommandError

from inference.files.architectures import EXACT, REFUSED, TEXT_AND_PICTURES, Architecture
from millm_site.env import PROJECT_DIR

PATH = PROJECT_DIR / "docs" / "models.md"
HEAD = """# Models

miLLM serves models in the Hugging Face layout, from a directory or the Hub:

```sh
.venv/bin/python manage.py add_model qwen Qwen/Qwen3-0.6B --dtype bfloat16
```

A model needs `tokenizer.json`, weights as safetensors, and an architecture that transformers knows (`model_type` in
`config.json`). `manage.py models_doc` writes this page from `inference/files/architectures.py`, and `make check`
fails if they differ. Tests build a tiny random model for each row (`tests/engine/test_architectures.py`, and
`test_text_tower.py` for text and pictures). Models of the first table give the same tokens as transformers, alone and
in chunks beside another sequence, with both caches. Models of the last table are refused.

## The self-check

Every model, whatever its architecture, is compared with transformers when it is loaded. 32 random tokens run through
the module as transformers built it (eager attention, the model's dtype). Then they run through miLLM's attention,
kernels and fused layers: in one piece with a contiguous cache, and in chunks beside a second sequence with a paged
cache. With int8 weights, the reference uses the dequantized weights, and with `w8a8` rounded
activations, too. The logits may differ by as much as rounding
explains, which is measured for each model. A model that differs by more is refused with a message that names its
class and the difference. In float32 every token counts; in 16 bits the median counts, because rounding can change
which experts a mixture chooses.

The check takes about ten forward passes of a few tokens. On two busy cores that was 0.5 s of processor time for the
demo, and 8 s of the 18 s that loading a model of Qwen3-0.6B's shape takes in bfloat16. Before it, each layer's call
of the attention function is inspected: its mask at every length up to the served context (windows, chunks, prefixes),
whether it attends at all, and its arguments.

"""
EXACT_HEAD = """## Architectures that are computed exactly

| `model_type` | models | notes |
|---|---|---|
"""
LONG_ROPE = """
### LongRoPE: Phi-3.5 and Phi-4-mini

These models have two sets of rotary frequencies, one for texts up to their original context (4,096 tokens) and one
for longer texts. transformers chooses by the longest text in a forward pass, so an answer would depend on its
neighbours. Like vLLM, miLLM chooses once, at load, by the context length that it serves: with the model's maximum
(131,072), all texts use the frequencies for long texts. To get transformers' results on short texts, set a context
length of 4,096 (`add_model --context-length 4096`, or `MILLM_MAX_SEQ_LEN`). The server logs which set was chosen.

"""
PICTURES_HEAD = """## Models for text and pictures

Of these, the language model is served by itself: for text, steered like any other, and exactly as in the whole model.
Pictures in requests are refused.

| `model_type` | models |
|---|---|
"""
REFUSED_HEAD = """## Architectures that are refused

These are refused when the model is added from a directory, and before anything is loaded. Any other architecture is
loaded, and refused if it fails the self-check.

| `model_type` | models | reason: it |
|---|---|---|
"""


def models_page() -> str:
    return (
        HEAD
        + EXACT_HEAD
        + _rows(EXACT)
        + LONG_ROPE
        + PICTURES_HEAD
        + _names(TEXT_AND_PICTURES)
        + REFUSED_HEAD
        + _rows(REFUSED)
    )


def is_up_to_date(path: Path = PATH) -> bool:
    return path.is_file() and path.read_text() == models_page()


def _rows(architectures: Iterable[Architecture]) -> str:
    return "".join(f"| `{row.model_type}` | {row.models} | {row.refusal or row.notes} |\n" for row in architectures)


def _names(architectures: Iterable[Architecture]) -> str:
    return "".join(f"| `{row.model_type}` | {row.models} |\n" for row in architectures) + "\n"


class Command(BaseCommand):
    help = "Write docs/models.md from inference/files/architectures.py."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--check", action="store_true", help="Write nothing; fail if the page is out of date.")

    def handle(self, *args: Any, check: bool, **options: Any) -> None:
        if not check:
            PATH.write_text(models_page())
        elif not is_up_to_date():
            raise CommandError(
                f"{PATH.name} does not match inference/files/architectures.py. Run: python manage.py models_doc"
            )
