"""The search in the bar: results by permission, and odd input."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from console.search import MAX_FOUND
from inference.models import LanguageModel
from steering.models import SteeringProfile
from tests.console.test_pages import client_of, staff

pytestmark = pytest.mark.django_db
EVIL = "<script>alert(1)</script>"


@pytest.fixture
def model() -> LanguageModel:
    return LanguageModel.objects.create(name="rainmaker", source="/m")


@pytest.fixture
def root() -> User:
    return User.objects.create_superuser("root")


def found(user: User, text: str) -> str:
    answer = client_of(user).get("/admin/search/", {"q": text})
    assert answer.status_code == 200
    return answer.content.decode().split('<main id="content-start"')[1]


def test_names_and_descriptions_are_found_by_parts(root: User, model: LanguageModel):
    SteeringProfile.objects.create(name="gloomy", description="Rain and mist.", model=model)
    text = found(root, "RAIN")
    assert "rainmaker" in text
    assert "gloomy" in text
    assert "No results for" in found(root, "sunshine")


def test_only_what_one_may_see(model: LanguageModel):
    SteeringProfile.objects.create(name="rainy", model=model)
    text = found(staff("view_steeringprofile"), "rain")
    assert "rainy" in text
    assert "rainmaker" not in text
    assert "No results for" in found(staff(), "rain")


def test_somebody_else_s_profiles_are_as_if_they_were_not_there(model: LanguageModel, root: User):
    SteeringProfile.objects.create(name="rainy", model=model, owner=root)
    assert "No results for" in found(staff("view_steeringprofile"), "rain")


def test_many_are_cut_with_a_link_to_the_list(root: User, model: LanguageModel):
    for number in range(MAX_FOUND + 1):
        SteeringProfile.objects.create(name=f"p{number}", model=model)
    text = found(root, "p")
    assert text.count("/change/") == MAX_FOUND
    assert "/admin/steering/steeringprofile/?q=p" in text


@pytest.mark.parametrize(
    "text", ["", "  ", "\0", "a\0b", "%", "'; drop table", "x" * 10_000, "🙂", '"', "or", "-a", EVIL]
)
def test_strange_texts_are_texts(root: User, model: LanguageModel, text: str):
    page = found(root, text)
    assert EVIL not in page


def test_texts_of_strangers_are_escaped(root: User, model: LanguageModel):
    SteeringProfile.objects.create(name="p", description=EVIL, model=model)
    page = found(root, "p")
    assert EVIL not in page
    assert "&lt;script&gt;" in page


def test_the_bar_holds_what_was_searched_there_and_nothing_else(root: User, model: LanguageModel):
    client = client_of(root)
    assert 'name="q" value="rain"' in client.get("/admin/search/", {"q": "rain"}).content.decode()
    assert 'name="q" value=""' in client.get("/admin/openai_api/requestlog/", {"model": "m"}).content.decode()
