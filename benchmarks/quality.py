"""What quantization costs in quality: ``python -m benchmarks.quality MODEL_FOLDER``.

The same texts, the documentation of this project, are scored with the original weights and with each quantization.
Random weights would say nothing here, so it takes the folder of a real model.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.engine import running
from benchmarks.record import RESULTS, Record
from benchmarks.subject import echo
from benchmarks.workloads import Job, Workload
from inference.engine.config import EngineConfig
from inference.engine.kernels import native
from inference.engine.messages import SamplingParams, TokenLogprob
from inference.engine.models.facts import ModelSpec, Weights
from inference.engine.models.loader import load_model

DOCS = Path(__file__).parent.parent / "docs"
TEXT_TOKENS = 512
QUANTIZATIONS: tuple[Weights, ...] = ("int8", "w8a8")  # the last one needs dot products of bytes

Scored = list[TokenLogprob]  # of all texts' tokens, one after the other


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder of a model in Hugging Face's format")
    parser.add_argument("--texts", type=int, default=64, help=f"number of texts of {TEXT_TOKENS} tokens")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    record(options.model, options.texts, options.dtype).save(options.results)


def record(model: Path, num_texts: int, dtype: str) -> Record:
    original = _scored(model, num_texts, dtype, "native")
    values = {"perplexity": _perplexity(original)}
    for weights in QUANTIZATIONS if native.activate().has_int8 else QUANTIZATIONS[:1]:
        scored = _scored(model, num_texts, dtype, weights)
        values |= {f"{weights}_{name}": value for name, value in losses(original, scored).items()}
    echo(*(f"{name}: {value:.4g}" for name, value in values.items()))
    note = f"{len(original):,} tokens of this documentation, in texts of up to {TEXT_TOKENS} tokens, in {dtype}"
    return Record("quality", model.name, values=values, notes=(note,))


def losses(original: Scored, other: Scored) -> dict[str, float]:
    """Return the relative change of the perplexity, the mean absolute change of a token's log-probability (nats), and
    the share of places where another token is the most likely one.
    """
    pairs = list(zip(original, other, strict=True))
    return {
        "perplexity_change": _perplexity(other) / _perplexity(original) - 1,
        "logprob_change": fmean(abs(a.logprob - b.logprob) for a, b in pairs),
        "other_first_token": fmean(a.top[0][0] != b.top[0][0] for a, b in pairs),
    }


def _perplexity(scored: Scored) -> float:
    return math.exp(-fmean(token.logprob for token in scored))


def _scored(model: Path, num_texts: int, dtype: str, weights: Weights) -> Scored:
    loaded = load_model(ModelSpec(model.name, model, dtype=dtype, device="cpu", weights=weights))
    documentation = "\n\n".join(path.read_text() for path in sorted(DOCS.glob("*.md")))
    ids = loaded.tokenizer(documentation, verbose=False)["input_ids"]
    length = min(TEXT_TOKENS, loaded.max_model_len - 1)
    texts = [tuple(ids[start : start + length]) for start in range(0, len(ids), length)][:num_texts]
    workload = Workload("quality", "the documentation", tuple(Job(text, 1) for text in texts))
    sampling = SamplingParams(temperature=0.0, ignore_eos=True, prompt_logprobs=1)
    with running(loaded, EngineConfig(max_waiting_requests=num_texts)) as engine:
        answers = engine.with_sampling(sampling).answers(workload)
    return [token for answer in answers for token in answer.prompt_logprobs]


if __name__ == "__main__":
    main()
