"""Explanations of features through /api: those of a method, votes, and the label."""

from __future__ import annotations

from typing import Any

import pytest

from audit.models import AuditEvent
from steering.models import ExplanationVote, Feature
from tests.management_api.conftest import Api, refusal

pytestmark = pytest.mark.django_db


@pytest.fixture
def path(feature: Feature) -> str:
    Feature.objects.filter(pk=feature.pk).update(label="rain", label_source="Neuronpedia", label_score=0.75)
    return f"features/{feature.pk}/explanations"


def texts(api: Api, path: str) -> list[tuple[str, str, int, int]]:
    return [(one["text"], one["source"], one["votes"], one["own_vote"]) for one in api.found(path)]


def test_explained_voted_and_used(admin_api: Api, researcher_api: Api, path: str, feature: Feature):
    made = researcher_api.post(path, {"text": "wet weather", "source": "detection by a model", "score": 0.9})
    assert made.status_code == 201
    assert made.json()["votes"] == 0, "a method does not vote"
    mine = admin_api.post(path, {"text": "umbrellas"}).json()
    assert (mine["votes"], mine["own_vote"]) == (1, 1)
    again = researcher_api.post(path, {"text": "umbrellas"}).json()
    assert (again["id"], again["votes"]) == (mine["id"], 2)
    voted = researcher_api("PUT", f"{path}/{made.json()['id']}/vote", {"value": 1})
    assert voted.json()["own_vote"] == 1
    assert admin_api("PUT", f"{path}/{mine['id']}/vote", {"value": -1}).json()["votes"] == 0
    listed = texts(researcher_api, path)
    assert [text for text, *_ in listed] == ["wet weather", "umbrellas"]
    assert listed[0][1:] == ("detection by a model", 1, 1)

    used = researcher_api.post(f"{path}/{made.json()['id']}/use")
    assert used.status_code == 200
    assert [used.json()[name] for name in ("label", "label_source", "label_score")] == [
        "wet weather", "detection by a model", 0.9
    ]  # fmt: skip
    assert ("rain", "Neuronpedia") in [one[:2] for one in texts(admin_api, path)]
    assert admin_api("DELETE", f"{path}/{mine['id']}").status_code == 204
    assert "umbrellas" not in [text for text, *_ in texts(admin_api, path)]
    assert not ExplanationVote.objects.filter(explanation=mine["id"]).exists()
    assert AuditEvent.objects.filter(kind="steering.featureexplanation", action="delete").count() == 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": ""}, "text"),
        ({"text": 7}, "text"),
        ({"text": "x" * 501}, "text"),
        ({"text": "a\0b"}, "text"),
        ({"text": "rain"}, None),
        ({"text": "x", "score": 2}, "score"),
        ({"text": "x", "score": "high"}, "score"),
        ({"text": "x", "source": "s" * 301}, "source"),
        ({"text": "x", "author": 1}, "author"),
    ],
)
def test_explanations_that_are_refused(body: dict[str, Any], param: str | None, researcher_api: Api, path: str):
    status, _, found = refusal(researcher_api.post(path, body))
    assert (status, found) == (400, param)
    assert texts(researcher_api, path) == []


@pytest.mark.parametrize("value", [2, -2, 0.5, "1", True, None])
def test_votes_that_are_refused(value: object, researcher_api: Api, path: str):
    made = researcher_api.post(path, {"text": "wet"}).json()
    status, _, param = refusal(researcher_api("PUT", f"{path}/{made['id']}/vote", {"value": value}))
    assert (status, param) == (400, "value")


def test_explanations_of_others_and_none(researcher_api: Api, path: str):
    for key in ("0", "9" * 40):
        assert refusal(researcher_api("DELETE", f"{path}/{key}"))[0] == 404
        assert refusal(researcher_api("PUT", f"{path}/{key}/vote", {"value": 1}))[0] == 404
        assert refusal(researcher_api.post(f"{path}/{key}/use"))[0] == 404
    assert refusal(researcher_api.get("features/987654/explanations"))[0] == 404


def test_auditors_only_read(auditor_api: Api, researcher_api: Api, path: str):
    made = researcher_api.post(path, {"text": "wet"}).json()
    assert len(texts(auditor_api, path)) == 1
    for method, place, body in (
        ("POST", path, {"text": "x"}),
        ("PUT", f"{path}/{made['id']}/vote", {"value": 1}),
        ("POST", f"{path}/{made['id']}/use", None),
        ("DELETE", f"{path}/{made['id']}", None),
    ):
        assert refusal(auditor_api(method, place, body))[0] == 403
