"""Judging answers: labels of a model here, digits of an endpoint, and what fails on the way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from core.chat_endpoint import ChatEndpoint, ChatEndpointError
from inference.models import LanguageModel
from steering.errors import EvaluationError
from steering.evaluation.judging import EndpointRater, Judge, LocalRater, Scores, check_judge, make_judge
from steering.evaluation.params import ENDPOINT, JudgeParams, judge_params
from steering.evaluation.runner import EvaluationRunner
from tests.http_server import QuietHandler, serving_http

KEY = "sk-very-secret"
Reply = tuple[int, Any]


def completion(text: str) -> Reply:
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}


@dataclass
class FakeEndpoint:
    """Answers with ``replies`` in turn, the last one again and again."""

    replies: list[Reply]
    requests: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def next(self) -> Reply:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


@contextmanager
def serving(*replies: Reply) -> Iterator[FakeEndpoint]:
    fake = FakeEndpoint(list(replies))

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = json.loads(self.read_body())
            fake.requests.append({"path": self.path, "key": self.headers["Authorization"], **body})
            status, value = fake.next()
            content = json.dumps(value).encode()
            self.send_response(status)
            if status in (302, 307):
                self.send_header("Location", f"{fake.url}/elsewhere")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with serving_http(Handler) as url:
        fake.url = f"{url}/v1"
        yield fake


def endpoint(fake: FakeEndpoint) -> ChatEndpoint:
    return ChatEndpoint(fake.url, "judge", KEY, timeout_s=10, pause_s=0)


def ask(one: ChatEndpoint) -> str:
    return one.complete([{"role": "user", "content": "Rate."}], max_tokens=4)


def test_an_endpoint_is_asked_for_its_model_with_the_key() -> None:
    with serving(completion("2")) as fake:
        assert ask(endpoint(fake)) == "2"
    (request,) = fake.requests
    assert request == {
        "path": "/v1/chat/completions",
        "key": f"Bearer {KEY}",
        "model": "judge",
        "messages": [{"role": "user", "content": "Rate."}],
        "temperature": 0,
        "max_tokens": 4,
    }


@pytest.mark.parametrize("status", [429, 500, 503])
def test_busy_endpoints_are_asked_again(status: int) -> None:
    with serving((status, {}), (status, {}), completion("1")) as fake:
        assert ask(endpoint(fake)) == "1"
    assert len(fake.requests) == 3


@pytest.mark.parametrize(
    ("reply", "num_requests", "is_final"),
    [
        ((503, {}), 3, False),
        ((401, {}), 1, True),
        ((404, {}), 1, True),
        ((307, {}), 1, True),
        ((200, {"a": 1}), 1, False),
    ],
)
def test_failures_name_the_host_and_never_the_key(reply: Reply, num_requests: int, is_final: bool) -> None:
    with serving(reply) as fake, pytest.raises(ChatEndpointError) as caught:
        ask(endpoint(fake))
    assert len(fake.requests) == num_requests, "redirects are not followed"
    assert caught.value.is_final == is_final
    assert "127.0.0.1" in caught.value.message
    assert KEY not in caught.value.message + repr(endpoint(fake))


def test_an_endpoint_that_is_down_is_no_answer() -> None:
    with serving(completion("1")) as fake:
        pass
    with pytest.raises(ChatEndpointError, match="could not be reached"):
        ask(endpoint(fake))


@pytest.mark.parametrize(("text", "rating"), [("2", 2), (" Rating: 1.", 1), ("0 - nothing", 0)])
def test_the_first_digit_is_the_rating(text: str, rating: int) -> None:
    with serving(completion(text)) as fake:
        assert EndpointRater(endpoint(fake)).rate("Rate.") == rating


@pytest.mark.parametrize("text", ["", "good", "10", "7"])
def test_an_answer_without_a_rating_is_a_failure(text: str) -> None:
    with serving(completion(text)) as fake, pytest.raises(ChatEndpointError, match="no rating"):
        EndpointRater(endpoint(fake)).rate("Rate.")


# The judge


@dataclass(frozen=True)
class FakeRater:
    answer: Callable[[str], int]
    asked: list[str] = field(default_factory=list)

    def rate(self, question: str) -> int:
        self.asked.append(question)
        return self.answer(question)


def rates(question: str) -> int:
    if "lost" in question:
        raise ChatEndpointError("No answer.")
    return 2 if "gloomy" in question else 1


@pytest.mark.parametrize("at_once", [1, 3])
def test_each_answer_has_three_scores(at_once: int) -> None:
    rater = FakeRater(rates)
    judge = Judge(rater, "gloomy {mood}", lambda: None, at_once)
    answers = [("Tell {me}.", "It {rained}.", False), ("x", "", False), ("x", "Half", True), ("x", "lost", False)]
    found = judge.scores(answers)
    assert found == [
        Scores(2, 1, 1),
        Scores(0, 0, 0),
        Scores(0, 0, 0),
        Scores(None, None, None, "No answer."),
    ], "empty and failed answers count as zero, lost ratings as unknown"
    asked = [question for question in rater.asked if "rained" in question]
    assert "Concept: gloomy {mood}" in asked[0]
    assert "Request: Tell {me}." in asked[1]


def test_a_judge_that_rates_nothing_ends_the_job() -> None:
    with pytest.raises(EvaluationError, match="rated none of 1 answers: No answer"):
        Judge(FakeRater(rates), "gloom", lambda: None).scores([("x", "lost", False)])


def test_an_endpoint_that_refuses_the_key_ends_the_job() -> None:
    with serving((401, {})) as fake:
        judge = Judge(EndpointRater(endpoint(fake)), "gloom", lambda: None, 4)
        with pytest.raises(EvaluationError, match=r"The judge cannot be used: .* status 401"):
            judge.scores([("x", "y", False)])


def test_an_endpoint_needs_settings(settings: Any) -> None:
    params = JudgeParams(ENDPOINT, "gloom")
    with pytest.raises(EvaluationError, match="MILLM_JUDGE_BASE_URL"):
        check_judge(params)
    settings.MILLM_JUDGE_BASE_URL, settings.MILLM_JUDGE_MODEL = "http://127.0.0.1:9/v1", "judge"
    settings.MILLM_JUDGE_API_KEY = KEY
    check_judge(params)
    assert KEY not in repr(make_judge(params, lambda: None))


def test_a_judge_is_a_generation_model(model: LanguageModel) -> None:
    check_judge(JudgeParams(model.name, "gloom"))
    assert isinstance(make_judge(JudgeParams(model.name, "gloom"), lambda: None).rater, LocalRater)
    with pytest.raises(EvaluationError, match="'nobody' is no generation model"):
        check_judge(JudgeParams("nobody", "gloom"))


@pytest.mark.parametrize(("model_name", "concept"), [("demo", ""), ("", "gloom"), ("demo", "x" * 1_001)])
def test_a_judge_needs_a_concept(model_name: str, concept: str) -> None:
    with pytest.raises(EvaluationError, match="needs a model, and a `concept`"):
        judge_params(model_name, concept)
    assert judge_params("", " ") is None


class FixedRunner(EvaluationRunner):
    def score(self, prompt: str, texts: Any, speaker: Any, *, at_answer: bool = False) -> list[list[float]]:
        assert at_answer
        return [[-3.0], [-1.0, -1.5], [-2.0]]


def test_a_model_here_rates_by_the_most_probable_label() -> None:
    assert LocalRater(FixedRunner("demo")).rate("Rate.") == 2, "label 1 is less probable: its tokens are summed"
