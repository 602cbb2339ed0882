"""The page of a feature: what it shows, and “steer with this”."""

from __future__ import annotations

import math
import re

import pytest
import torch
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from steering import services
from steering.effects.recipe import EffectResult, Sample
from steering.effects.store import store_effects
from steering.errors import InvalidProfileError
from steering.features.drawing import example_rows, histogram_picture
from steering.features.services import steer_with_feature
from steering.features.tested_text import ActiveFeature
from steering.models import Feature, SteeringProfile
from steering.profiles.compilation import get_compiler
from steering.profiles.drafts import draft_edits
from steering.profiles.snapshot import source_of
from tests.steering.pages import login, page, said, staff

CHANGE = "admin:steering_feature_change"
STEER = "admin:steering_feature_steer"
NASTY = "<script>alert(1)</script>"


@pytest.fixture
def admin(db):
    return login(User.objects.create_superuser("admin"))


@pytest.fixture
def measured(feature) -> Feature:
    feature.histogram = {"width": 0.5, "counts": [90, 9, 0, 1] + [0] * 28}
    feature.examples = [{"tokens": ["A ", NASTY, "\n"], "values": [0.0, 2.0, 1.0]}]
    feature.examples_source = "default abc"
    feature.traffic_examples = [{"tokens": ["secret"], "values": [1.0]}]
    feature.save()
    return feature


class TestPage:
    def test_shows_what_is_known(self, admin, measured):
        html = page(admin, CHANGE, measured.pk)
        assert "<dd>4, imported</dd>" in html
        assert "2.000% of tokens" in html
        assert "<dd>1, 1.950 of 100 activations above 0</dd>" in html
        assert '<rect x="8.0" y="4.0" width="64.0" height="100.0">' in html
        assert "1.5 to 2: 1 tokens" in html
        assert "From default abc." in html
        assert NASTY not in html
        assert '<mark class="steering-heat-9" title="2.00">&lt;script&gt;' in html
        assert '<mark class="steering-heat-4" title="1.00">⏎</mark>' in html

    def test_an_sae_is_written_as_people_write_it(self, admin, measured, other_sae):
        html = page(admin, CHANGE, measured.pk)
        assert "SAE:" in html
        assert f'<a href="/admin/steering/sae/{measured.sae_id}/change/">{measured.sae.name}</a>' in html
        listed = admin.get("/admin/steering/feature/").content.decode()
        assert "<summary>SAE</summary>" in listed
        narrowed = admin.get("/admin/steering/feature/", {"sae__id__exact": measured.sae_id, "o": "3"})
        assert narrowed.status_code == 200
        for text in (html, listed, narrowed.content.decode()):
            assert not re.search(r"\bSae\b|<summary>sae", text)

    def test_nothing_is_known(self, admin, sae):
        html = page(admin, CHANGE, sae.features.get(index=30).pk)
        assert "No histogram yet: the SAE has not been measured" in html
        assert f'<a href="/admin/steering/sae/{sae.pk}/change/#check">Measure</a>' in html
        assert "No examples yet." in html

    def test_no_styles_or_scripts_inline(self, admin, measured):
        html = page(admin, CHANGE, measured.pk)
        content = html[html.index('<div id="content"') : html.index("<footer")]
        assert "style=" not in content
        assert "onclick" not in content
        assert "<script>" not in content

    def test_texts_of_requests_are_for_those_who_may_read_the_log(self, admin, measured):
        assert "secret" in page(admin, CHANGE, measured.pk)
        assert "secret" not in page(staff("view_feature", "change_feature"), CHANGE, measured.pk)

    def test_neighbours(self, admin, sae):
        first, last = sae.features.get(index=0), sae.features.get(index=39)
        assert "#1 ›" in page(admin, CHANGE, first.pk)
        html = page(admin, CHANGE, last.pk)
        assert "‹ #38" in html
        assert "#40" not in html

    def test_label_is_edited(self, admin, measured):
        response = admin.post(reverse(CHANGE, args=[measured.pk]), {"label": "drizzle", "description": "Light rain."})
        assert response.status_code == 302
        measured.refresh_from_db()
        assert (measured.label, measured.label_source) == ("drizzle", "admin, in the admin")

    def test_lens_says_why_there_is_none(self, admin, measured):
        """The fixture's model has no weights."""
        html = page(admin, "admin:steering_feature_lens", measured.pk)
        assert "steering-note" in html
        assert "<table" not in html

    def test_effect_with_its_samples(self, admin, measured):
        assert "Not measured." in page(admin, CHANGE, measured.pk)
        found = EffectResult(
            0, 2.0, 0.31, 0.4, is_capped=True, output_score=0.25, base_output_score=0.05, fluency=1.25,
            curve=((1.0, 0.1), (2.0, 0.31)), samples=(Sample("Tell me.", "A cat.", NASTY),),
        )  # fmt: skip
        store_effects(sae=measured.sae, results=[found], recipe="r", measured_at=timezone.now())
        html = page(admin, CHANGE, measured.pk)
        assert "0.500 × max activation, raw 2 (at the cap)" in html
        assert "0.250 (unsteered 0.050)" in html
        assert "A cat." in html
        assert NASTY not in html

    def test_similar_directions_are_those_of_the_decoder(self, admin, sae):
        html = page(admin, "admin:steering_feature_neighbours", sae.features.get(index=0).pk)
        rows = get_compiler().sae(source_of(sae)).weights.W_dec
        cosines = torch.nn.functional.cosine_similarity(rows, rows[:1])
        cosines[0] = -2
        found = re.findall(r"#(\d+) [^<]*</a></td><td>(-?[\d.]+)<", html)
        assert [int(index) for index, _ in found] == cosines.topk(10).indices.tolist()
        assert float(found[0][1]) == pytest.approx(float(cosines.max()), abs=0.006)

    def test_features_that_fire_together_and_weaker_activations(self, admin, measured):
        html = page(admin, CHANGE, measured.pk)
        assert f'Not measured. <a href="/admin/steering/sae/{measured.sae_id}/change/#check">Measure</a>' in html
        assert "Weaker activations" not in html
        other = {"tokens": ["some ", NASTY], "values": [0.0, 1.0]}
        measured.cofiring = {"num_tokens": 900, "features": [[7, 0.51, 40], [8, 0.2, 9]]}
        measured.example_bands = [
            {"low": 0.5, "high": 0.75, "num_texts": 12, "examples": [other]},
            {"low": 0.25, "high": 0.5, "num_texts": 1, "examples": []},
        ]
        measured.save()
        Feature.objects.filter(sae=measured.sae, index=7).update(label="drizzle")
        html = page(admin, CHANGE, measured.pk)
        assert "Active on the same of 900 tokens" in html
        assert re.search(r'\.7/change/">#7 drizzle</a></td><td>40</td><td>0.51</td>', html)
        assert "50% to 75%" in html
        assert "12 texts" in html
        assert "1 text, shown above" in html
        assert NASTY not in html

    def test_text_is_asked_for_separately(self, admin, measured):
        html = page(admin, CHANGE, measured.pk)
        assert 'id="id_test_text"' in html
        assert "test/?text=" not in html
        html = admin.get(reverse(CHANGE, args=[measured.pk]), {"text": "sad & rain"}, follow=True).content.decode()
        assert "test/?text=sad%20%26%20rain" in html
        tested = admin.get(reverse("admin:steering_feature_test", args=[measured.pk]), {"text": "rain"})
        assert "steering-note" in tested.content.decode(), "this process has no engine"
        client = staff("view_feature")
        assert 'id="id_test_text"' not in page(client, CHANGE, measured.pk)
        page(client, "admin:steering_feature_test", measured.pk, status=403)

    def test_features_of_a_text_are_sorted_by_distinction(self, sae):
        def active(index: int, largest: float, density: float | None, maximum: float | None) -> ActiveFeature:
            row = Feature(sae=sae, index=index, density=density, max_activation=maximum)
            return ActiveFeature(row, ["a", "b"], [0.0, largest])

        dense, weak = active(1, 60.0, 0.4, 90.0), active(2, 30.0, 0.001, 100.0)
        own, unknown = active(3, 20.0, 0.001, 22.0), active(4, 9.0, None, None)
        found = sorted([dense, weak, own, unknown], key=ActiveFeature.order)
        assert [one.feature.index for one in found] == [4, 3, 2, 1]
        assert own.distinction == pytest.approx(20 / 22 * math.log(1000))

    def test_features_of_a_text(self, admin, measured):
        """What they are is tested with an engine, in tests/e2e/test_first_hour.py."""
        asked = reverse("admin:steering_feature_text")
        assert asked in admin.get(reverse("admin:steering_feature_changelist")).content.decode()
        assert "This field is required." not in admin.get(asked).content.decode()
        assert "This field is required." in admin.get(asked, {"sae": measured.sae_id, "text": " "}).content.decode()
        told = admin.get(asked, {"sae": measured.sae_id, "text": NASTY}).content.decode()
        assert "steering-note" in told, "this process has no engine"
        assert NASTY not in told
        client = staff("view_feature")
        assert asked not in client.get(reverse("admin:steering_feature_changelist")).content.decode()
        assert client.get(asked).status_code == 403

    def test_needs_permission(self, measured):
        client = staff("view_steeringprofile")
        for name in (CHANGE, "admin:steering_feature_lens"):
            page(client, name, measured.pk, status=403)

    def test_number_of_queries(self, admin, measured, django_assert_max_num_queries):
        page(admin, CHANGE, measured.pk)
        with django_assert_max_num_queries(16):
            page(admin, CHANGE, measured.pk)


class TestSteer:
    def steer(self, client, feature, **data):
        fields = {"profile": "", "new_name": "", "operation": "add", "strength": "0.5"} | data
        return client.post(reverse(STEER, args=[feature.pk]), fields)

    def test_begins_a_profile(self, admin, feature):
        response = self.steer(admin, feature, new_name="drizzle")
        profile = SteeringProfile.objects.get(name="drizzle")
        assert response.url == reverse("admin:steering_steeringprofile_change", args=[profile.pk])
        assert profile.owner == User.objects.get(username="admin")
        (edit,) = draft_edits(profile)
        assert (edit.operation, edit.strength, edit.unit) == ("add", 0.5, "max_act")

    @pytest.mark.parametrize(("index", "shown"), [(0, "0.5"), (30, "2.0")], ids=["max act", "raw"])
    def test_starts_at_the_calibrated_strength(self, admin, sae, index, shown):
        found = EffectResult(index, 2.0, 0.3, 0.2, is_capped=False)
        store_effects(sae=sae, results=[found], recipe="r", measured_at=timezone.now())
        html = page(admin, CHANGE, sae.features.get(index=index).pk)
        assert f'<input type="number" name="strength" value="{shown}"' in html
        assert "is the calibrated strength" in html

    def test_adds_to_a_draft(self, admin, profile, sae):
        self.steer(admin, sae.features.get(index=1), profile=profile.pk, operation="ablate")
        assert [edit.operation for edit in draft_edits(profile)] == ["add", "ablate"]

    def test_unit_is_raw_where_no_maximum_is_known(self, admin, sae):
        self.steer(admin, sae.features.get(index=30), new_name="raw", strength="3")
        (edit,) = draft_edits(SteeringProfile.objects.get(name="raw"))
        assert (edit.unit, edit.raw) == ("raw", 3.0)

    def test_contradiction_changes_nothing(self, admin, profile, feature):
        response = self.steer(admin, feature, profile=profile.pk, operation="ablate")
        assert "The feature was not added." in said(response)
        assert profile.edits.count() == 1

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ({}, "Enter a name for the new profile."),
            ({"new_name": "gloomy"}, "The model already has a profile gloomy."),
            ({"new_name": "a b"}, "Enter a valid"),
            ({"new_name": "x", "strength": "nan"}, "Enter a number"),
            ({"new_name": "x", "strength": "1e9"}, "less than or equal"),
            ({"new_name": "x", "operation": "norm_preserving"}, "not one of the available choices"),
            ({"profile": "999"}, "not one of the available choices"),
        ],
    )
    def test_refusals(self, data, message, admin, profile, feature):
        response = self.steer(admin, feature, **data)
        assert message in response.content.decode()
        assert SteeringProfile.objects.count() == 1

    def test_only_own_drafts_of_the_model(self, profile, other_model, feature):
        client = staff("view_feature", "change_steeringprofile", "add_steeringprofile")
        own = services.create_profile(name="mine", model=profile.model, owner=User.objects.get(username="staff"))
        services.create_profile(name="elsewhere", model=other_model, owner=User.objects.get(username="staff"))
        html = page(client, CHANGE, feature.pk)
        assert f'<option value="{own.pk}">mine</option>' in html
        assert "gloomy" not in html
        assert "elsewhere" not in html
        assert self.steer(client, feature, profile=profile.pk).status_code == 200
        assert profile.edits.count() == 1

    def test_needs_permission_and_a_post(self, admin, feature):
        client = staff("view_feature")
        assert 'id="steer"' not in page(client, CHANGE, feature.pk)
        assert self.steer(client, feature, new_name="x").status_code == 403
        assert admin.get(reverse(STEER, args=[feature.pk])).status_code == 405

    def test_profile_of_another_model(self, feature, other_model):
        other = services.create_profile(name="other", model=other_model)
        with pytest.raises(InvalidProfileError, match="belongs to the model tiny, not to other"):
            steer_with_feature(feature=feature, profile=other)


class TestView:
    def test_heat_follows_the_largest_value(self):
        (row,) = example_rows([{"tokens": list("abc"), "values": [0.0, 0.001, 9.0]}])
        assert [token.heat for token in row.tokens] == [0, 0, 9]

    def test_example_that_never_fires(self):
        (row,) = example_rows([{"tokens": ["a"], "values": [0.0]}])
        assert row.tokens[0].heat == 0

    @pytest.mark.parametrize("stored", [None, {"width": 0.0, "counts": [0] * 32}])
    def test_no_picture_of_nothing(self, stored):
        assert histogram_picture(stored) is None

    def test_picture_leaves_out_empty_ends(self):
        picture = str(histogram_picture({"width": 1.0, "counts": [3, 0, 1] + [0] * 29}))
        assert picture.count("<rect") == 3
        assert "4 activations between 0 and 3" in picture


class TestTable:
    def test_counts_are_bounded(self, admin, sae, monkeypatch):
        monkeypatch.setattr("steering.features.admin.MAX_LISTED", 7)
        assert "7 features" in page(admin, "admin:steering_feature_changelist")

    def test_searches_and_lists_without_label(self, admin, sae):
        url = reverse("admin:steering_feature_changelist")
        html = admin.get(url, {"q": "#30"}).content.decode()
        assert "(no label)" in html
        assert "steering/search_as_you_type.js" in html

    @pytest.mark.parametrize("is_narrowed", [False, True], ids=["all", "of an SAE"])
    def test_rows_come_as_an_index_has_them(self, is_narrowed, admin, sae):
        """An SAE has tens of thousands, with kilobytes each, and sorting them for each page would take its time."""
        wanted = {"sae__id__exact": str(sae.pk)} if is_narrowed else {}
        with CaptureQueriesContext(connection) as queries:
            admin.get(reverse("admin:steering_feature_changelist"), wanted)
        (rows,) = (sql for query in queries if "decoder_norm" in (sql := query["sql"]))
        assert "feature_index_unique" in (plan := plan_of(f"{rows} LIMIT 50"))
        assert "Sort" not in plan
        counts = [sql for query in queries if "COUNT" in (sql := query["sql"])]
        assert counts
        assert not any("ORDER BY" in sql for sql in counts)

    def test_counting_what_was_found_ranks_nothing(self, admin, sae):
        with CaptureQueriesContext(connection) as queries:
            admin.get(reverse("admin:steering_feature_changelist"), {"q": "rain"})
        (count,) = (sql for query in queries if "COUNT" in (sql := query["sql"]))
        assert "ts_rank" not in count

    def test_queries_do_not_grow_with_rows(self, admin, sae, django_assert_max_num_queries):
        url = reverse("admin:steering_feature_changelist")
        admin.get(url)
        with django_assert_max_num_queries(10):
            admin.get(url)


def plan_of(sql: str) -> str:
    """Sorts where no index has the rows in their order, although so few would be sorted gladly."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_sort = off")
        cursor.execute("SET LOCAL enable_incremental_sort = off")
        cursor.execute(f"EXPLAIN {sql}")
        return "\n".join(row[0] for row in cursor.fetchall())


def test_permission_names_exist(db):
    """The page asks for a permission of a layer above by its name."""
    assert Permission.objects.filter(content_type__app_label="openai_api", codename="view_prompt_text").exists()
