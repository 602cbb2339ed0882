"""Import and export in the admin."""

from __future__ import annotations

import json
from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from audit.models import AuditEvent
from steering import services
from steering.models import SAE, SteeringProfile
from steering.profiles.drafts import draft_edits
from steering.spec.rendering import fingerprint
from tests.steering.pages import page, said, staff
from tests.steering.test_exchange import CLUSTER, NEURONPEDIA, changed

IMPORT = "admin:steering_steeringprofile_import"
CONFIRM = "admin:steering_steeringprofile_confirm_import"
EXPORT = "admin:steering_steeringprofile_export"
EXPORT_VERSION = "admin:steering_steeringprofile_export_version"
CHANGE = "admin:steering_steeringprofile_change"


def upload(client: Client, content: object, **fields: object) -> Any:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return client.post(reverse(IMPORT), {"file": SimpleUploadedFile("wave.json", data), **fields})


def confirm(client: Client, response: Any, **fields: object) -> Any:
    return client.post(reverse(CONFIRM), response.context["hidden"] | fields)


class TestImport:
    def test_shows_first_and_makes_then(self, admin, sae, model):
        response = upload(admin, NEURONPEDIA, model=model.pk)
        html = response.content.decode()
        assert "tiny-sae #3: add 2 raw, special tokens too" in html
        assert "is matched to tiny-sae" in html
        assert not SteeringProfile.objects.exists()
        done = confirm(admin, response)
        assert "Imported wave as a draft" in said(done)
        profile = SteeringProfile.objects.get()
        assert (profile.owner.username, len(draft_edits(profile))) == ("admin", 1)
        assert AuditEvent.objects.get(action="import").user == "admin"

    def test_everything_wrong_is_said_beside_the_file(self, admin, sae, model):
        document = changed(NEURONPEDIA, features=[{"layer": "1-x", "index": 99, "strength": "x"}])
        html = upload(admin, document, model=model.pk).content.decode()
        assert "file.features[0].index: tiny-sae has features 0 to 39, got 99." in html
        assert "file.features[0].strength: Expected a number" in html

    def test_bad_files_break_nothing(self, admin, model):
        for content in (b"", b"\xff", b"[" * 100_000, b'"\\ud800"', b"{}"):
            assert upload(admin, content, model=model.pk).status_code == 200
        assert admin.post(reverse(IMPORT), {"model": model.pk}).status_code == 200
        assert upload(admin, NEURONPEDIA).status_code == 200
        assert not SteeringProfile.objects.exists()

    def test_texts_of_the_file_are_no_markup(self, admin, sae, model):
        document = changed(CLUSTER, narrative="<script>alert(1)</script>")
        html = upload(admin, document, model=model.pk).content.decode()
        assert "<script>alert" not in html
        assert "&lt;script&gt;alert" in html

    def test_sae_of_another_model(self, admin, sae, model, other_sae):
        html = upload(admin, NEURONPEDIA, model=model.pk, sae=other_sae.pk).content.decode()
        assert "other-sae is an SAE of the model other, not of tiny." in html

    def test_what_was_not_shown_is_not_made(self, admin, sae, model):
        response = upload(admin, NEURONPEDIA, model=model.pk)
        text = response.context["hidden"]["text"].replace("0.5}", "0.75}")
        done = confirm(admin, response, text=text)
        assert "changed since the preview" in said(done)
        assert not SteeringProfile.objects.exists()

    def test_what_became_impossible_is_told(self, admin, sae, model):
        response = upload(admin, NEURONPEDIA, model=model.pk)
        services.create_profile(name="wave", model=model)
        assert "has a profile wave" in said(confirm(admin, response))

    def test_replaces_when_told_to(self, admin, profile, sae, model):
        options = {"model": model.pk, "name": "gloomy"}
        assert "has a profile gloomy" in upload(admin, NEURONPEDIA, **options).content.decode()
        response = upload(admin, NEURONPEDIA, **options, replaces="on")
        assert "replaces its draft" in response.content.decode()
        confirm(admin, response)
        assert profile.edits.get().strength == 2.0

    def test_permissions(self, sae, model):
        client = staff("view_steeringprofile", "change_steeringprofile")
        assert client.get(reverse(IMPORT)).status_code == 403
        assert upload(client, NEURONPEDIA, model=model.pk).status_code == 403
        assert client.post(reverse(CONFIRM), {}).status_code == 403
        assert client.get(reverse(CONFIRM)).status_code == 405
        assert Client().get(reverse(IMPORT)).status_code == 302

    def test_replacing_needs_the_right_to_change(self, profile, sae, model):
        client = staff("add_steeringprofile")
        response = upload(client, NEURONPEDIA, model=model.pk, name="gloomy", replaces="on")
        assert confirm(client, response).status_code == 403
        assert profile.edits.get().strength == 0.5


class TestExport:
    def test_draft_and_version(self, admin, profile):
        version = services.publish_profile(profile=profile)
        profile.edits.update(strength=0.25)
        draft = admin.get(reverse(EXPORT, args=[profile.pk]))
        published = admin.get(reverse(EXPORT_VERSION, args=[profile.pk, 1]))
        assert draft["Content-Disposition"] == 'attachment; filename="gloomy-draft.json"'
        assert draft.json()["profiles"][0]["edits"][0]["strength"] == 0.25
        assert published.json()["profiles"][0]["fingerprint"] == version.fingerprint
        html = page(admin, CHANGE, profile.pk)
        assert reverse(EXPORT_VERSION, args=[profile.pk, 1]) in html
        assert admin.get(reverse(EXPORT_VERSION, args=[profile.pk, 2])).status_code == 404

    def test_comes_back_after_its_sae_was_registered_anew(self, admin, profile, sae, model):
        """As on another server: the checksum says that it is the same one, whatever it is called there."""
        document = admin.get(reverse(EXPORT, args=[profile.pk])).json()
        before = fingerprint(draft_edits(profile))
        SAE.objects.update(name="renamed")
        confirm(admin, upload(admin, document, model=model.pk, replaces="on"))
        assert fingerprint(draft_edits(profile)) == before

    def test_draft_without_sense_is_a_message(self, admin, profile):
        profile.edits.update(strength=float("inf"))
        assert "was not exported" in said(admin.get(reverse(EXPORT, args=[profile.pk])))

    def test_permissions(self, profile):
        assert staff("add_steeringprofile").get(reverse(EXPORT, args=[profile.pk])).status_code == 403
        assert Client().get(reverse(EXPORT, args=[profile.pk])).status_code == 302
