"""What belongs to somebody else is as if it were not there: pages, lists, counts, search, choices, API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse

from audit.models import AuditEvent
from inference.models import LanguageModel
from openai_api.keys.services import create_api_key
from openai_api.models import ApiKey
from steering import services
from steering.exchange.exports import version_document
from steering.exchange.imports import ImportOptions, import_profiles, plan_import
from steering.models import (
    Evaluation,
    Feature,
    FeatureEdit,
    PlainVector,
    ProfileVersion,
    SteeringPolicy,
    SteeringProfile,
    VectorSet,
)
from tests.management_api.conftest import Api, api_of, make_user, refusal
from tests.steering.pages import login

pytestmark = pytest.mark.slow

SECRET = "hushhush"
PROFILES = "admin:steering_steeringprofile_changelist"


@pytest.fixture
def owner(db: None) -> User:
    return make_user("olga", "Researchers")


@pytest.fixture
def stranger(researcher_api: Api) -> Api:
    return researcher_api


@pytest.fixture
def page_of_stranger(stranger: Api) -> Client:
    return login(stranger.user)


@pytest.fixture
def hidden(model: LanguageModel, feature: Feature, owner: User) -> ProfileVersion:
    """A published profile, a policy, a report and a vector of somebody else's."""
    profile = services.create_profile(name=SECRET, model=model, owner=owner)
    FeatureEdit.objects.create(profile=profile, feature=feature, strength=0.5)
    version = services.publish_profile(profile=profile, user=owner)
    SteeringPolicy.objects.create(version=version, reason="None of your business.")
    Evaluation.objects.create(kind="sweep", version=version, result={})
    vectors = VectorSet.objects.create(
        name=f"{SECRET}-vectors", model=model, created_by=owner, origin="f", checksum="0"
    )
    PlainVector.objects.create(vector_set=vectors, layer=1, data=PlainVector.pack([1.0]), norm=1.0)
    return version


def share(version: ProfileVersion, group: str = "Researchers") -> None:
    version.profile.shared_with.add(Group.objects.get(name=group))


def test_lists_and_counts(page_of_stranger, stranger, hidden, profile):
    page = page_of_stranger.get(reverse(PROFILES)).content.decode()
    assert SECRET not in page
    assert "olga" not in page, "the owner's name is among the filter's choices"
    assert "1 steering profile" in page
    assert [row["name"] for row in stranger.found("profiles")] == ["gloomy"]


@pytest.mark.parametrize("path", ["profiles", "versions", "evaluations", "vectors"])
def test_api_lists(path, stranger, hidden):
    assert stranger.found(path) == []


@pytest.mark.parametrize("name", ["steeringprofile", "profileversion", "evaluation", "vectorset"])
@pytest.mark.parametrize("query", ["", f"?q={SECRET[:4]}"])
def test_pages_and_their_search(name, query, page_of_stranger, hidden):
    response = page_of_stranger.get(reverse(f"admin:steering_{name}_changelist") + query)
    assert response.status_code == 200
    assert SECRET not in response.content.decode()
    assert "olga" not in response.content.decode()


def test_addresses(page_of_stranger, stranger, hidden):
    evaluation, vectors = Evaluation.objects.get(), VectorSet.objects.get()
    for name, pk in (
        ("steeringprofile", hidden.profile_id),
        ("profileversion", hidden.pk),
        ("evaluation", evaluation.pk),
        ("vectorset", vectors.pk),
    ):
        response = page_of_stranger.get(reverse(f"admin:steering_{name}_change", args=[pk]))
        assert response.status_code == 302, "the admin leads back to its index"
        assert response.headers["Location"] == "/admin/"
    for path in (
        f"profiles/{hidden.profile_id}",
        f"profiles/{hidden.profile_id}/export",
        f"versions/{hidden.pk}",
        f"evaluations/{evaluation.pk}",
        f"vectors/{vectors.pk}",
    ):
        assert refusal(stranger.get(path)) == (404, "not_found", None)


@pytest.mark.parametrize("act", ["publish", "duplicate", "archive", "export", "history", "delete", "compare", "review"])
def test_acts_on_pages(act, page_of_stranger, hidden):
    url = f"/admin/steering/steeringprofile/{hidden.profile_id}/{act}/"
    for send in (page_of_stranger.get, page_of_stranger.post):
        response = send(url)
        assert response.status_code in {302, 404, 405}
        assert SECRET not in response.content.decode()
    assert ProfileVersion.objects.count() == 1
    assert SteeringProfile.objects.get().archived_at is None


@pytest.mark.parametrize(
    ("act", "body"),
    [
        ("publish", {}),
        ("archive", {}),
        ("request_review", {}),
        ("decide_review", {"approve": True}),
        ("roll_back", {"number": 1}),
        ("duplicate", {"name": "mine"}),
        ("share", {"groups": ["Researchers"]}),
    ],
)
def test_acts_through_the_api(act, body, stranger, hidden):
    assert refusal(stranger.post(f"profiles/{hidden.profile_id}/{act}", body)) == (404, "not_found", None)
    assert SteeringProfile.objects.count() == 1


def test_selected_rows_of_an_action(page_of_stranger, hidden):
    data = {"action": "duplicate_selected", "_selected_action": [hidden.profile_id]}
    page_of_stranger.post(reverse(PROFILES), data)
    assert SteeringProfile.objects.count() == 1


def test_autocomplete(page_of_stranger, hidden):
    query = {"app_label": "steering", "model_name": "featureedit", "field_name": "plain_vector", "term": ""}
    response = page_of_stranger.get(reverse("admin:autocomplete"), query)
    assert response.json()["results"] == []


def test_choices_of_a_comparison(page_of_stranger, stranger, hidden, profile):
    mine = services.publish_profile(profile=profile)
    url = reverse("admin:steering_profileversion_compare", args=[mine.pk])
    assert SECRET not in page_of_stranger.get(url).content.decode()
    response = stranger.post(f"versions/{mine.pk}/compare", {"other": hidden.pk})
    assert refusal(response) == (404, "not_found", "other")


def test_a_comparison_with_it_is_hidden_too(stranger, hidden, profile):
    mine = services.publish_profile(profile=profile)
    Evaluation.objects.create(kind="comparison", version=mine, other=hidden, result={})
    assert stranger.found("evaluations") == []
    share(hidden)
    assert len(stranger.found("evaluations")) == 2


def test_an_import_does_not_replace_it(stranger, hidden, model):
    document = version_document(hidden)
    body = {"model": model.pk, "file_name": "x.json", "text": json.dumps(document), "replaces": True}
    assert refusal(stranger.post("profiles/import", body))[0] == 400
    options = ImportOptions(model, replaces=True)
    plan = plan_import(json.dumps(document).encode(), "x.json", options)
    assert import_profiles(plan=plan, options=options, user=hidden.profile.owner) == [hidden.profile]


def test_sharing_with_a_group(page_of_stranger, stranger, hidden):
    share(hidden)
    assert [row["name"] for row in stranger.found("profiles")] == [SECRET]
    assert stranger.found("versions")[0]["name"] == f"{SECRET}@1"
    assert SECRET in page_of_stranger.get(reverse(PROFILES)).content.decode()
    assert stranger.post(f"profiles/{hidden.profile_id}/duplicate", {"name": "mine"}).status_code == 201


def test_a_group_that_one_is_not_in_changes_nothing(stranger, hidden):
    share(hidden, "Auditors")
    assert stranger.found("profiles") == []


def test_a_profile_in_two_groups_is_listed_once(stranger, hidden):
    second = Group.objects.create(name="Second")
    stranger.user.groups.add(second)
    share(hidden)
    share(hidden, "Second")
    assert len(stranger.found("profiles")) == 1


def test_only_the_owner_shares(stranger, hidden, page_of_stranger):
    share(hidden)
    body: dict[str, Any] = {"groups": []}
    assert refusal(stranger.post(f"profiles/{hidden.profile_id}/share", body))[:2] == (403, "permission_denied")
    url = reverse("admin:steering_steeringprofile_change", args=[hidden.profile_id])
    assert 'name="shared_with"' not in page_of_stranger.get(url).content.decode()
    assert hidden.profile.shared_with.count() == 1


def test_the_owner_shares_with_groups_of_their_own(owner, hidden):
    api = api_of(owner)
    path = f"profiles/{hidden.profile_id}/share"
    assert refusal(api.post(path, {"groups": ["Auditors"]})) == (400, "invalid_value", "groups")
    assert api.post(path, {"groups": ["Researchers"]}).json()["shared_with"] == ["Researchers"]
    event = AuditEvent.objects.filter(subject=SECRET).first()
    assert event is not None
    assert (event.action, event.user, event.changes) == ("change", "olga", {"shared_with": [[], ["Researchers"]]})
    assert event.key.startswith("olga's")


def test_vectors_are_shared_alike(owner, hidden, stranger):
    path = f"vectors/{VectorSet.objects.get().pk}"
    assert refusal(stranger.post(f"{path}/share", {"groups": []}))[0] == 404
    assert api_of(owner).post(f"{path}/share", {"groups": ["Researchers"]}).json()["shared_with"] == ["Researchers"]
    assert stranger.get(path).status_code == 200
    assert refusal(stranger.post(f"{path}/share", {"groups": []}))[0] == 403


def test_the_owner_shares_on_the_page(owner, hidden):
    client = login(owner)
    url = reverse("admin:steering_steeringprofile_change", args=[hidden.profile_id])
    page = client.get(url).content.decode()
    assert "Researchers" in page
    assert "Auditors" not in page, "the names of other groups are nobody's business"


def test_auditors_see_everything_and_change_nothing(auditor_api, hidden):
    assert [row["name"] for row in auditor_api.found("profiles")] == [SECRET]
    assert len(auditor_api.found("evaluations")) == 1
    assert refusal(auditor_api.post(f"profiles/{hidden.profile_id}/publish"))[0] == 403


def test_what_belongs_to_nobody_is_everybodys(stranger, owner, hidden):
    owner.delete()
    assert [row["name"] for row in stranger.found("profiles")] == [SECRET]


def test_keys_are_ones_own(stranger, owner, page_of_stranger):
    create_api_key(name=SECRET, owner=owner)
    assert [row["name"] for row in stranger.found("keys")] == ["rita's"]
    page = page_of_stranger.get("/admin/openai_api/apikey/").content.decode()
    assert "rita" in page
    assert SECRET not in page
    assert "olga" not in page


def test_jobs_are_ones_own(stranger, owner):
    from jobs.models import Job

    job = Job.objects.create(kind="example.none", title=SECRET, owner=owner)
    assert stranger.found("jobs") == []
    assert refusal(stranger.post(f"jobs/{job.pk}/cancel")) == (404, "not_found", None)


class TestKeysThatActForOthers:
    """A key gives away its owner's objects, and one that manages the owner's rights."""

    @pytest.fixture
    def keeper(self, db: None) -> Api:
        """May do everything with keys, and nothing else."""
        api = api_of(make_user("kim"))
        names = ("add_apikey", "change_apikey", "view_apikey", "see_all_apikeys")
        api.user.user_permissions.set(Permission.objects.filter(codename__in=names))
        return api

    def test_none_for_somebody_who_may_more(self, keeper, admin_api):
        body = {"name": "trick", "owner": "ada", "scopes": ["manage"]}
        assert refusal(keeper.post("keys", body))[:2] == (403, "permission_denied")
        assert not ApiKey.objects.filter(name="trick").exists()

    def test_nor_by_rotating_or_changing_one(self, keeper, admin_api):
        key = ApiKey.objects.get(owner=admin_api.user)
        assert refusal(keeper.post(f"keys/{key.pk}/rotate"))[0] == 403
        plain = create_api_key(name="plain", owner=admin_api.user).api_key
        assert refusal(keeper("PATCH", f"keys/{plain.pk}", {"scopes": ["manage"]}))[0] == 403

    def test_nor_on_the_page(self, keeper, admin_api):
        data = {"name": "trick", "owner": admin_api.user.pk, "scopes": "manage"}
        data |= {"priority": "0", "min_intensity": "0", "max_intensity": "2"}
        assert login(keeper.user).post("/admin/openai_api/apikey/add/", data).status_code == 403
        assert not ApiKey.objects.filter(name="trick").exists()

    def test_nor_one_that_does_not_manage(self, keeper, admin_api):
        """It would read the owner's files, responses and chats."""
        assert refusal(keeper.post("keys", {"name": "plain", "owner": "ada"}))[:2] == (403, "permission_denied")


def test_refusals_of_a_hidden_profile_say_nothing(stranger, hidden, model):
    """But that a name is taken, which nobody can hide."""
    response = stranger.post("profiles", {"name": SECRET, "model": model.pk})
    assert refusal(response)[0] == 400
    assert "olga" not in response.content.decode()
