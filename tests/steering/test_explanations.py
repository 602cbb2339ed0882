"""Explanations beside a feature's label: added, voted for, made the label; and labels that were replaced."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.urls import reverse

from audit.models import AuditEvent
from steering.features.catalog import FeatureCatalog
from steering.features.explanations import MAX_EXPLANATIONS, add_explanation
from steering.features.label_import import import_labels
from steering.features.labels import FeatureLabel, LabelSet
from steering.features.services import label_feature
from steering.interpretation.job import SOURCE, _store
from steering.models import ExplanationVote, Feature, FeatureExplanation
from tests.steering.pages import login, page, said, staff

pytestmark = pytest.mark.django_db
CHANGE, ACT = "admin:steering_feature_change", "admin:steering_feature_explanations"
NASTY = "<script>alert(1)</script>"


@pytest.fixture
def labelled(feature: Feature) -> Feature:
    Feature.objects.filter(pk=feature.pk).update(label="rain", label_source="Neuronpedia", label_score=0.75)
    return Feature.objects.get(pk=feature.pk)


@pytest.fixture
def ann() -> Any:
    return login(User.objects.create_superuser("ann"))


@pytest.fixture
def bob() -> Any:
    return login(User.objects.create_superuser("bob"))


def send(client: Any, feature: Feature, **fields: object) -> Any:
    return client.post(reverse(ACT, args=[feature.pk]), fields)


def texts(feature: Feature) -> list[str]:
    return list(feature.explanations.values_list("text", flat=True))


def test_people_explain_and_vote(ann: Any, bob: Any, labelled: Feature):
    send(ann, labelled, text=f"wet weather {NASTY}")
    send(bob, labelled, text="umbrellas")
    send(ann, labelled, text="umbrellas")  # a vote for the same
    umbrellas = labelled.explanations.get(text="umbrellas")
    assert (umbrellas.source, umbrellas.author) == ("bob", User.objects.get(username="bob"))
    html = page(ann, CHANGE, labelled.pk)
    assert NASTY not in html
    assert html.index("umbrellas") < html.index("wet weather"), "the one with most votes comes first"
    assert "bob, 2 votes" in html
    send(ann, labelled, explanation=umbrellas.pk, act="up")  # takes the vote back
    send(bob, labelled, explanation=umbrellas.pk, act="down")
    assert list(ExplanationVote.objects.filter(explanation=umbrellas).values_list("value", flat=True)) == [-1]
    send(bob, labelled, explanation=umbrellas.pk, act="delete")
    assert texts(labelled) == [f"wet weather {NASTY}"]
    events = AuditEvent.objects.filter(kind="steering.featureexplanation").order_by("pk")
    assert [(event.user, event.action) for event in events] == [("ann", "add"), ("bob", "add"), ("bob", "delete")]


def test_an_explanation_becomes_the_label(ann: Any, labelled: Feature):
    explanation = FeatureExplanation.objects.create(feature=labelled, text="storms", source="bob", score=0.9)
    send(ann, labelled, explanation=explanation.pk, act="use")
    labelled.refresh_from_db()
    assert (labelled.label, labelled.label_source, labelled.label_score) == ("storms", "bob", 0.9)
    [kept] = labelled.explanations.all()
    assert (kept.text, kept.source, kept.score) == ("rain", "Neuronpedia", 0.75)
    send(ann, labelled, explanation=kept.pk, act="use")
    labelled.refresh_from_db()
    assert (labelled.label, labelled.label_score) == ("rain", 0.75)
    assert texts(labelled) == ["storms"]


def test_a_label_that_is_replaced_stays_as_an_explanation(labelled: Feature):
    assert _store(labelled, "snow", 0.6, "judge")
    labelled.refresh_from_db()
    assert (labelled.label, labelled.label_source, labelled.label_score) == ("snow", f"{SOURCE}judge", 0.6)
    assert texts(labelled) == ["rain"]
    assert not _store(Feature(pk=labelled.pk, label="rain", sae=labelled.sae), "hail", 0.6, "judge"), "it was changed"
    labelled.label = "rain"
    label_feature(feature=labelled)
    assert texts(labelled) == ["snow"]
    label_feature(feature=labelled)
    labelled.label = ""
    label_feature(feature=labelled)
    assert sorted(texts(labelled)) == ["rain", "snow"]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"text": ""}, "required"),
        ({"text": "a\0b"}, "Null characters"),
        ({"text": "x" * 501}, "at most 500"),
        ({"text": "rain"}, "This is the label."),
        ({"explanation": "", "act": "up"}, "does not exist any more"),
        ({"explanation": "9" * 30, "act": "use"}, "does not exist any more"),
        ({"explanation": "one", "act": "love"}, "Choose what to do"),
    ],
)
def test_what_is_refused(ann: Any, labelled: Feature, fields: dict[str, str], problem: str):
    one = FeatureExplanation.objects.create(feature=labelled, text="storms")
    fields = {name: str(one.pk) if value == "one" else value for name, value in fields.items()}
    assert problem in said(send(ann, labelled, **fields))
    assert texts(labelled) == ["storms"]


def test_their_number_is_limited(ann: Any, labelled: Feature):
    FeatureExplanation.objects.bulk_create(
        FeatureExplanation(feature=labelled, text=str(number)) for number in range(MAX_EXPLANATIONS)
    )
    assert f"{MAX_EXPLANATIONS} explanations already" in said(send(ann, labelled, text="one more"))


def test_who_may_write(labelled: Feature):
    reader = staff("view_feature")
    FeatureExplanation.objects.create(feature=labelled, text="storms", source="bob")
    html = page(reader, CHANGE, labelled.pk)
    assert "storms" in html
    assert "Use as label" not in html
    assert send(reader, labelled, text="hail").status_code == 403
    assert reader.get(f"/admin/steering/feature/{labelled.pk}/explanations/").status_code == 405
    assert texts(labelled) == ["storms"]


def test_labels_that_an_import_replaces_are_kept(labelled: Feature):
    first, second = ("wet weather", "umbrellas")
    for text in (first, second, second, first):
        found = LabelSet((FeatureLabel(index=labelled.index, label=text, source="a file"),))
        import_labels(sae=labelled.sae, found=found)
    kept = FeatureExplanation.objects.order_by("pk").values_list("text", "source", "score")
    assert list(kept) == [("rain", "Neuronpedia", 0.75), (second, "a file", None)]
    labelled.refresh_from_db()
    assert (labelled.label, labelled.label_score) == (first, None)
    import_labels(sae=labelled.sae, found=LabelSet((FeatureLabel(index=labelled.index, density=0.5),)))
    assert len(texts(labelled)) == 2


@pytest.mark.django_db(transaction=True)
def test_programs_get_them_with_the_feature(feature: Feature):
    catalog = FeatureCatalog()
    author = User.objects.create_user("ann")
    add_explanation(feature=feature, text="wet weather", source="a method", score=0.9, user=author)
    add_explanation(feature=feature, text="umbrellas", user=author)
    detail = async_to_sync(catalog.detail)(async_to_sync(catalog.sae)(feature.sae.name), feature.index)
    assert detail.explanations == (("umbrellas", "ann"), ("wet weather", "a method"))
