"""Automatic labels: what counts as one, how it is scored, and that nobody's own label is lost."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from django.core.management import CommandError, call_command

from core.chat_endpoint import ChatEndpoint, ChatEndpointError
from jobs.errors import JobCancelled
from steering.errors import EvaluationError
from steering.interpretation import job as interpretation
from steering.interpretation.answers import detection_score, read_decision, read_label
from steering.interpretation.job import (
    EndpointInterpreter,
    LocalInterpreter,
    open_features,
    request_interpretation,
    run_interpretation,
)
from steering.interpretation.prompts import detection_prompt, explanation_prompt, marked
from steering.models import SAE, Feature
from tests.steering.evaluating import serving_demo
from tests.steering.test_jobs import RecordedJob

EXAMPLE = {"tokens": ["The", " rain", " fell"], "values": [0.0, 4.0, 1.0]}


class TestAnswers:
    @pytest.mark.parametrize(
        ("answer", "label"),
        [
            ("Rain and storms", "Rain and storms"),
            ('"Words about the sea."\nBecause ...', "Words about the sea"),
            ("The topic is: French cooking", "French cooking"),
            ("**Python code**", "Python code"),
            ("été à Paris", "été à Paris"),
        ],
    )
    def test_labels(self, answer, label):
        assert read_label(answer, []) == label

    @pytest.mark.parametrize(
        "answer",
        [
            "", "\n", "...", "123", "the, and, of, in", "space, was, and, the, of", "I'm sorry, but I cannot help",
            "I can't tell", "As an AI language model", "word " * 11, "x" * 101, "rain rain rain rain rain",
            "<<rain>> and <<storm>>", "The words between the marks", "two to six words",
            "the man walked down the road",
        ],
    )  # fmt: skip
    def test_nonsense(self, answer):
        assert read_label(answer, ["Then the man walked down the road again."]) is None

    @pytest.mark.parametrize(
        ("answer", "said"), [("Yes.", True), (" no, it", False), ("**Yes**", True), ("Maybe", None), ("", None)]
    )
    def test_decisions(self, answer, said):
        assert read_decision(answer) is said

    def test_score_is_balanced(self):
        assert detection_score([True, True], [False, False, False, False]) == 1
        assert detection_score([True, True], [True, True, True, True]) == 0.5
        assert detection_score([True, None], [False, None]) == 0.5, "no decision is wrong"
        assert detection_score([None], [None]) is detection_score([], [True]) is None


class TestPrompts:
    def test_active_tokens_are_marked(self):
        assert marked(EXAMPLE) == "The <<rain>> fell"
        assert "<<rain>>" in explanation_prompt([EXAMPLE], [" storm", " "])
        assert "often come with it: storm\n" in explanation_prompt([EXAMPLE], [" storm", " "])
        assert "<<" not in detection_prompt("rain", EXAMPLE)
        long = {"tokens": [" a"] * 900 + [" rain"], "values": [0.0] * 900 + [1.0]}
        assert len(marked(long)) <= 400
        assert marked(long).endswith("<<rain>>")


@dataclass
class FakeInterpreter:
    """Labels "rain" and detects by the word, as a good model would."""

    name: str = "fake"
    label: str | None = "rain showers"
    prompts: list[str] = field(default_factory=list)

    def answer(self, prompts, max_tokens):
        self.prompts += prompts
        return [self._answer(prompt) for prompt in prompts]

    def _answer(self, prompt):
        if "Answer with Yes or No" in prompt:
            return "Yes" if "rain" in prompt.partition("Does the text")[0] else "No"
        return self.label


@dataclass
class ResumableJob(RecordedJob):
    checkpoint: dict = field(default_factory=dict)

    def save_checkpoint(self, checkpoint):
        self.checkpoint = checkpoint


def job_of(sae: SAE, **params) -> ResumableJob:
    return ResumableJob({"sae": sae.pk, "model": "tiny", "replaces": False, "limit": None, **params})


@pytest.fixture
def open_sae(sae) -> SAE:
    """Features 10 to 19 are of rain and have no label; 0 has a person's label; 20 to 39 are of something else."""
    sae.features.filter(index__range=(10, 19)).update(examples=[EXAMPLE] * 5)
    sae.features.filter(index=0).update(examples=[EXAMPLE] * 5, label="mine", label_source="rita, in the admin")
    other = {"tokens": ["A", " cat"], "values": [0.0, 1.0]}
    sae.features.filter(index__range=(20, 39)).update(examples=[other])
    return sae


class TestJob:
    def test_labels_and_scores(self, open_sae):
        result = run_interpretation(job_of(open_sae), FakeInterpreter())
        assert result == {"sae": open_sae.pk, "labelled": 10, "nonsense": 0, "failed": 0, "edited": 0}
        row = open_sae.features.get(index=19)
        assert (row.label, row.label_source) == ("rain showers", "interpreted by fake")
        assert row.label_score > 0.5
        assert open_sae.features.get(index=0).label == "mine"
        assert not open_sae.features.filter(index__gte=20).exclude(label="").exists(), "one example is too few"
        assert not open_features(open_sae, replaces=False).exists()
        assert open_features(open_sae, replaces=True).count() == 10

    def test_resumes_where_it_stopped(self, open_sae):
        class StoppedJob(ResumableJob):
            def progress(self, done, total, message=""):
                if done == 8:
                    raise JobCancelled

        job = StoppedJob(job_of(open_sae).params)
        with pytest.raises(JobCancelled):
            run_interpretation(job, FakeInterpreter(label="the, of, and"))
        assert job.checkpoint == {"after": 17, "counts": {"nonsense": 8}}
        again = ResumableJob(job.params, checkpoint=job.checkpoint)
        assert run_interpretation(again, FakeInterpreter())["labelled"] == 2
        assert open_sae.features.get(index=10).label == ""

    def test_detection_sees_weaker_texts_too(self, open_sae):
        weak = [{"tokens": [f" {name} rain"], "values": [1.0]} for name in ("middling", "faint")]
        bands = [
            {"low": low, "high": 1, "num_texts": 1, "examples": [one]}
            for low, one in zip((0.25, 0.0), weak, strict=True)
        ]
        open_sae.features.filter(index=10).update(example_bands=bands)
        asked = FakeInterpreter()
        run_interpretation(job_of(open_sae, limit=1), asked)
        assert sum("middling" in prompt for prompt in asked.prompts) == 1
        assert not any("faint" in prompt for prompt in asked.prompts)

    def test_limit(self, open_sae):
        assert run_interpretation(job_of(open_sae, limit=3), FakeInterpreter())["labelled"] == 3

    def test_a_label_given_meanwhile_stays(self, open_sae):
        class Slow(FakeInterpreter):
            def answer(self, prompts, max_tokens):
                Feature.objects.filter(sae=open_sae, index=10).update(label="drizzle", label_source="rita")
                return super().answer(prompts, max_tokens)

        assert run_interpretation(job_of(open_sae, limit=1), Slow())["edited"] == 1
        assert open_sae.features.get(index=10).label == "drizzle"

    def test_failures_are_counted_and_end_it_if_nothing_works(self, open_sae, monkeypatch):
        assert run_interpretation(job_of(open_sae), FakeInterpreter(label=None))["failed"] == 10
        monkeypatch.setattr(interpretation, "GIVE_UP_AFTER", 4)
        with pytest.raises(EvaluationError, match="answered none of 4 requests"):
            run_interpretation(job_of(open_sae), FakeInterpreter(label=None))

    def test_endpoint_that_fails(self):
        class Endpoint(ChatEndpoint):
            def complete(self, messages, *, max_tokens, sleep=None):
                raise ChatEndpointError("It is away.", is_final="final" in messages[0]["content"])

        interpreter = EndpointInterpreter(Endpoint("http://127.0.0.1:1/v1", "judge"))
        assert interpreter.answer(["a", "b"], 5) == [None, None]
        with pytest.raises(EvaluationError, match="It is away"):
            interpreter.answer(["final"], 5)

    @pytest.mark.parametrize("fields", [{"model": "none"}, {"model": "endpoint"}, {"model": "tiny", "limit": 0}])
    def test_refusals(self, sae, fields, settings):
        settings.MILLM_JUDGE_BASE_URL = ""
        with pytest.raises(EvaluationError):
            request_interpretation(sae=sae, **fields)

    def test_command(self, sae, capsys):
        call_command("interpret_features", sae.name, model="tiny", no_wait=True)
        assert f"Label features of {sae.name}" in capsys.readouterr().out
        with pytest.raises(CommandError, match="does not exist"):
            call_command("interpret_features", "none", model="tiny")


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_model_of_this_server_answers(transactional_db):
    with serving_demo():
        answers = LocalInterpreter("demo").answer(["Tell me a story.", "What do cats eat?"], 4)
        sae = SAE.objects.get(name="demo-sae")
        sae.features.exclude(index__in=(3, 4)).update(examples=[])
        sae.features.filter(index__in=(3, 4)).update(label="", examples=[EXAMPLE] * 4)
        result = run_interpretation(job_of(sae, model="demo"))
    assert all(answers)
    assert result["labelled"] + result["nonsense"] == 2
