"""Public pages of features and vectors: who shares, what visitors see, and that a link ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from audit.models import AuditEvent
from console import sharing
from console.models import SharedPage
from inference.interventions import Site
from inference.models import LanguageModel
from inference.permissions import ensure_groups
from steering.effects.store import store_effects, store_vector_effect
from steering.features.admin import feature_url
from steering.features.logit_lens import LensToken, LogitLens
from steering.models import Feature, PlainVector
from steering.vectors.dashboard import vector_url
from steering.vectors.services import NewVector, delete_vectors, save_vectors
from tests.console.test_pages import client_of, staff
from tests.steering.conftest import cold_snapshots, feature, model, sae  # noqa: F401 - fixtures
from tests.steering.pages import said
from tests.steering.sae_files import D_IN
from tests.steering.test_vector_effects import RESULT, STORED

pytestmark = pytest.mark.django_db
SHARE = reverse("admin:console_share")
NASTY = "<script>alert(1)</script>"
LENS = LogitLens((LensToken(7, " sea\n", 2.5),), (LensToken(8, NASTY, -1.5),))


@pytest.fixture
def rita() -> User:
    """A user who may share features."""
    return staff("view_feature", "add_sharedpage")


@pytest.fixture(autouse=True)
def lens(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the engine answers: a lens, or a problem."""
    answer: dict[str, Any] = {"lens": LENS}
    monkeypatch.setattr(sharing, "lens_context", lambda target: answer)
    return answer


@pytest.fixture
def told(feature: Feature) -> Feature:  # noqa: F811
    """A feature with texts that could be dangerous, and an example of a request."""
    feature.label, feature.description = f"the sea {NASTY}", NASTY
    feature.density, feature.max_activation = 0.0123, 4.5
    feature.histogram = {"width": 1.0, "counts": [100, 10, 1]}
    feature.examples = [{"tokens": ["The", " waves", NASTY], "values": [0.0, 4.0, 1.0]}]
    feature.traffic_examples = [{"tokens": ["a", " secret"], "values": [0.0, 4.0]}]
    feature.save()
    return feature


def shared(user: User, feature: Feature, **fields: str) -> Any:  # noqa: F811
    return client_of(user).post(SHARE, {"kind": "feature", "key": feature.pk, **fields})


def link_of(user: User, feature: Feature) -> str:  # noqa: F811
    shared(user, feature)
    return reverse("shared-page", args=["features", SharedPage.objects.get(feature=feature).token])


def test_anyone_with_the_link_reads_the_page(rita: User, told: Feature):
    html = client_of(rita).get(feature_url(told)).content.decode()
    assert "Create link" in html
    answer = shared(rita, told)
    assert answer.url == feature_url(told)
    assert said(answer) == "The page is public. Copy its link under Share."
    url = reverse("shared-page", args=["features", SharedPage.objects.get().token])
    html = client_of(rita).get(feature_url(told)).content.decode()
    assert f'value="http://localhost{url}"' in html
    assert f"&lt;iframe src=&quot;http://localhost{url}&quot;" in html
    assert "the sea &amp;lt;script&amp;gt;" in html, "escaped for the other site's HTML, too"

    page = Client().get(url)
    assert page.status_code == 200
    text = page.content.decode()
    for part in ("the sea", "1.230% of tokens", "<svg", "waves</mark>", " sea⏎", "2.50", "Open in miLLM"):
        assert part in text
    assert "secret" not in text, "examples of requests are not public"
    assert "<script" not in text
    assert "<form" not in text
    assert not page.cookies
    assert not page.has_header("X-Frame-Options")
    assert "frame-ancestors *" in page["Content-Security-Policy"]
    assert "default-src 'none'" in page["Content-Security-Policy"]
    assert page["X-Robots-Tag"] == "noindex"


def test_a_link_stays_until_it_is_removed(rita: User, told: Feature):
    url = link_of(rita, told)
    assert link_of(rita, told) == url
    told.label = "the ocean"
    told.save()
    assert "the ocean" in Client().get(url).content.decode()
    assert said(shared(rita, told, act="stop")) == "The public page was removed."
    assert Client().get(url).status_code == 404
    shared(rita, told, act="stop")  # twice does no harm
    assert link_of(rita, told) != url
    events = AuditEvent.objects.filter(kind="console.sharedpage").order_by("pk")
    assert [event.action for event in events] == ["add", "delete", "add"]
    assert SharedPage.objects.get().token not in str(list(events.values()))


def test_the_page_shows_the_measured_effect(rita: User, told: Feature):
    url = link_of(rita, told)
    assert "Effect on the output" not in Client().get(url).content.decode()
    result = replace(RESULT, index=told.index)
    store_effects(sae=told.sae, results=[result], recipe="r", measured_at=timezone.now())
    text = Client().get(url).content.decode()
    for part in ("Effect on the output", "It rained on the cat.", "Steers well", "<meter"):
        assert part in text


def test_without_a_lens_the_page_says_so(rita: User, told: Feature, lens: dict[str, Any]):
    del lens["lens"]
    lens["problem"] = "The server is busy."
    assert said(shared(rita, told)) == "The page is public, without the logit lens. The server is busy."
    text = Client().get(link_of(rita, told)).content.decode()
    assert "Logit lens" not in text
    assert "the sea" in text


def test_who_may_share(told: Feature):
    viewer = staff("view_feature")
    assert "Create link" not in client_of(viewer).get(feature_url(told)).content.decode()
    assert shared(viewer, told).status_code == 403
    assert shared(staff("add_sharedpage"), told).status_code == 404
    anonymous: Any = Client().post(SHARE, {"kind": "feature", "key": told.pk})
    assert anonymous.url.startswith("/admin/login/")
    assert not SharedPage.objects.exists()
    ensure_groups()
    granted = {name: set(Group.objects.get(name=name).permissions.values_list("codename", flat=True)) for name in (
        "Researchers", "Auditors", "Admins"
    )}  # fmt: skip
    assert [name for name, has in granted.items() if "add_sharedpage" in has] == ["Researchers", "Admins"]
    assert all("view_sharedpage" in has for has in granted.values())


@pytest.mark.parametrize("key", ["", "0", "9" * 30, "x", "1\0"])
def test_features_that_do_not_exist(key: str, rita: User):
    for kind in ("feature", "vector", "", "x"):
        assert client_of(rita).post(SHARE, {"kind": kind, "key": key}).status_code == 404


@pytest.mark.parametrize("token", ["x", "a" * 300, "%00", "..%2f"])
def test_links_that_do_not_exist(token: str):
    assert Client().get(f"/shared/features/{token}").status_code == 404


def test_the_list_of_public_pages(rita: User, told: Feature):
    link_of(rita, told)
    url = reverse("admin:console_sharedpage_changelist")
    viewer = client_of(staff("view_sharedpage"))
    html = viewer.get(url).content.decode()
    assert feature_url(told) in html
    assert rita.username in html
    assert client_of(staff("view_feature")).get(url).status_code == 403
    change: Any = viewer.get(reverse("admin:console_sharedpage_change", args=[SharedPage.objects.get().pk]))
    assert change.url == feature_url(told)


class TestVectors:
    @pytest.fixture
    def nina(self) -> User:
        """A user who may share vectors."""
        return staff("view_vectorset", "add_sharedpage", "view_sharedpage")

    @pytest.fixture
    def vector(self, model: LanguageModel, nina: User) -> PlainVector:  # noqa: F811
        rows = [NewVector(Site(2), tuple(map(float, range(D_IN))), 20.0)]
        found = save_vectors(name="calm", model=model, vectors=rows, origin="secret.npz", description=NASTY, user=nina)
        vector = found.vectors.get()
        store_vector_effect(vector=vector, result=RESULT, measured_at=timezone.now(), **STORED)  # type: ignore[arg-type]
        return vector

    @staticmethod
    def share(user: User, vector: PlainVector, **fields: str) -> Any:
        return client_of(user).post(SHARE, {"kind": "vector", "key": vector.pk, **fields})

    def test_anyone_with_the_link_reads_the_page(self, nina: User, vector: PlainVector):
        assert "Create link" in client_of(nina).get(vector_url(vector)).content.decode()
        answer = self.share(nina, vector)
        assert answer.url == vector_url(vector)
        url = reverse("shared-page", args=["vectors", SharedPage.objects.get().token])
        assert f'value="http://localhost{url}"' in client_of(nina).get(vector_url(vector)).content.decode()
        page = Client().get(url)
        assert page.status_code == 200
        text = page.content.decode()
        parts = ("calm", "layer 2", "Residual norm", "20", "It rained on the cat.", " rain", " sea⏎", "&lt;script&gt;")
        for part in parts:
            assert part in text, part
        for absent in ("secret.npz", "<script", "<form", "/admin/steering/sae"):
            assert absent not in text
        assert "default-src 'none'" in page["Content-Security-Policy"]
        assert Client().get(url.replace("vectors", "features")).status_code == 404
        assert said(self.share(nina, vector, act="stop")) == "The public page was removed."
        assert Client().get(url).status_code == 404

    def test_vectors_of_others(self, nina: User, vector: PlainVector):
        self.share(nina, vector)
        rita = staff("view_feature", "view_vectorset", "add_sharedpage", "view_sharedpage")
        assert self.share(rita, vector, act="stop").status_code == 404
        listed = reverse("admin:console_sharedpage_changelist")
        change = reverse("admin:console_sharedpage_change", args=[SharedPage.objects.get().pk])
        assert vector_url(vector) in client_of(nina).get(listed).content.decode()
        assert client_of(nina).get(change).headers["location"] == vector_url(vector)
        assert "calm" not in client_of(rita).get(listed).content.decode()
        assert client_of(rita).get(change).headers["location"] == reverse("admin:index")
        assert self.share(staff("add_sharedpage"), vector).status_code == 404, "without the permission for vectors"

    def test_the_page_ends_with_its_set(self, nina: User, vector: PlainVector):
        self.share(nina, vector)
        delete_vectors(vector_set=vector.vector_set, user=nina)
        assert not SharedPage.objects.exists()

    def test_without_a_measured_effect(self, nina: User, vector: PlainVector):
        vector.effect.delete()
        self.share(nina, vector)
        url = reverse("shared-page", args=["vectors", SharedPage.objects.get().token])
        assert "Effect on the output" not in Client().get(url).content.decode()
