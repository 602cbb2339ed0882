"""EleutherAI's lm-evaluation-harness, which scores given texts through ``echo`` and finds the tokens through /tokenize.

What it computes is held against the same model in transformers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.clients.environment import python_of, run_command
from tests.e2e.oracle import Oracle

DOCUMENTS = [
    {"prompt": "Once upon a time there was a", "choices": [" cat", " rain in the"], "label": 0},
    {"prompt": "The dog was very", "choices": [" happy.", " sad.", " xylophone"], "label": 1},
    {"prompt": "The owl sat by the", "choices": [" sea", " sea and sang a song."], "label": 0},
]
ENDS = {"prompt": "Once there was a cat. The cat was happy.", "choices": ["<", " The end."], "label": 0}
COMMON = {"dataset_path": "json", "test_split": "test", "num_fewshot": 0, "metadata": {"version": 1}}
TASKS: list[dict[str, Any]] = [
    {
        "task": "choices",
        "output_type": "multiple_choice",
        "doc_to_text": "{{prompt}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{label}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    },
    {
        "task": "stories",
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{choices[label]}}",
        "generation_kwargs": {"until": ["."], "max_gen_toks": 12},
        "metric_list": [{"metric": "exact_match"}],
    },
    {
        "task": "texts",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{prompt}}{{choices[label]}}",
        "metric_list": [{"metric": "word_perplexity"}],
    },
]


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture(scope="module")
def samples(site: str, tmp_path_factory: pytest.TempPathFactory, oracle: Oracle) -> dict[str, list[dict[str, Any]]]:
    """What each task's run wrote of each document."""
    folder = tmp_path_factory.mktemp("lm-eval")
    data = folder / "documents.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in [*DOCUMENTS, ENDS]))
    for task in TASKS:
        whole = {**COMMON, **task, "dataset_kwargs": {"data_files": {"test": str(data)}}}
        (folder / f"{task['task']}.yaml").write_text(yaml.safe_dump(whole))
    model = {
        "model": "demo",
        "base_url": f"{site}/v1/completions",
        "num_concurrent": 2,
        "max_length": 512,
        "custom_prefix_token_id": oracle.tokenizer.bos_token_id,
    }
    arguments = ["--model", "local-completions", "--model_args", ",".join(f"{k}={v}" for k, v in model.items())]
    arguments += ["--tasks", ",".join(task["task"] for task in TASKS), "--include_path", str(folder)]
    arguments += ["--output_path", str(folder / "out"), "--log_samples"]
    variables = {"HF_HOME": str(folder / "hf"), "OPENAI_API_KEY": ""}
    run_command([str(python_of("lm-eval")), "-m", "lm_eval", "run", *arguments], variables, folder)
    return {task["task"]: _read(folder / "out", task["task"]) for task in TASKS}


def _read(folder: Path, task: str) -> list[dict[str, Any]]:
    (path,) = folder.rglob(f"samples_{task}_*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_choices_are_scored_as_by_transformers(samples: dict[str, list[dict[str, Any]]], oracle: Oracle) -> None:
    assert len(samples["choices"]) == len(DOCUMENTS) + 1
    for sample in samples["choices"]:
        prompt, choices = sample["doc"]["prompt"], sample["doc"]["choices"]
        for choice, (value, is_greedy) in zip(choices, _answers(sample), strict=True):
            scores, best = _scored(oracle, _ids(oracle, prompt), _ids(oracle, prompt + choice))
            assert float(value) == pytest.approx(sum(scores), abs=2e-3)
            assert is_greedy in {str(best), best}


def test_stories_end_before_the_stop_string(samples: dict[str, list[dict[str, Any]]]) -> None:
    texts = [sample["resps"][0][0] for sample in samples["stories"]]
    assert all(isinstance(text, str) and "." not in text for text in texts)
    assert sum(bool(text) for text in texts) >= len(DOCUMENTS)


def test_whole_texts_are_scored_as_by_transformers(samples: dict[str, list[dict[str, Any]]], oracle: Oracle) -> None:
    for sample in samples["texts"]:
        text = sample["doc"]["prompt"] + sample["doc"]["choices"][sample["doc"]["label"]]
        prefix = [oracle.tokenizer.bos_token_id]
        scores, _ = _scored(oracle, prefix, [*prefix, *_ids(oracle, text)])
        assert float(sample["resps"][0][0]) == pytest.approx(sum(scores), abs=2e-3)


def _answers(sample: dict[str, Any]) -> list[Any]:
    return [answers[0] for answers in sample["resps"]]


def _ids(oracle: Oracle, text: str) -> list[int]:
    return list(oracle.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids)


def _scored(oracle: Oracle, context: Sequence[int], whole: Sequence[int]) -> tuple[list[float], bool]:
    """The log-probabilities of what follows the context, and whether each is the likeliest token."""
    with torch.no_grad():
        logits = oracle.model(torch.tensor([list(whole)])).logits[0, :-1]
    rows, ids = torch.log_softmax(logits.double(), -1)[len(context) - 1 :], torch.tensor(whole[len(context) :])
    return rows.gather(1, ids[:, None])[:, 0].tolist(), bool((rows.argmax(1) == ids).all())
