"""Pages of SAEs: what a source holds, preview, adding, measuring, loading and unloading."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from core.runtime import runtime
from inference.steering_refs import STEERING_COMPILER
from jobs.kinds import find_kind
from jobs.models import Job
from steering.corpora.corpus import CorpusError
from steering.corpora.corpus_registry import corpus_names, open_corpus
from steering.models import SAE
from steering.profiles.compilation import get_compiler
from steering.profiles.snapshot import source_of
from steering.sae_registry.jobs import add_sae
from steering.sae_registry.registration import SAELocation, inspect_sae, prepare_sae
from tests.steering.format_files import saelens_transcoder
from tests.steering.pages import login, page, said, staff
from tests.steering.sae_files import sae_config, write_sae

ADD = "admin:steering_sae_add"
CHANGE = "admin:steering_sae_change"


@pytest.fixture
def admin(db):
    return login(User.objects.create_superuser("admin"))


@pytest.fixture
def cold_saes():
    runtime.remove(STEERING_COMPILER)
    yield
    runtime.remove(STEERING_COMPILER)


class TestAdd:
    @pytest.fixture
    def source(self, tmp_path):
        write_sae(tmp_path / "all" / "layer_1")
        write_sae(tmp_path / "all" / "layer_2", sae_config("topk", metadata={"hook_name": "blocks.9.hook_resid_post"}))
        return str(tmp_path / "all")

    def post(self, client, model, **data):
        return client.post(reverse(ADD), {"model": model.pk, **data}).content.decode()

    def test_listing(self, admin, model, source):
        html = self.post(admin, model, source=source, _list="1")
        assert "2 SAEs in" in html
        assert '<button type="submit" class="button" name="_preview" value="layer_1"' in html
        assert not SAE.objects.exists()

    def test_preview_of_one_of_them(self, admin, model, source):
        html = self.post(admin, model, source=source, _preview="layer_1")
        assert "saelens: jumprelu with 40 features of width 12, trained on tiny. It fits tiny" in html
        assert "Width, layer and model name match." in html
        assert "4.1\xa0KB of memory" in html
        assert 'value="layer_1"' in html
        assert not SAE.objects.exists()

    def test_doubts_are_shown_before_it_is_added(self, admin, model, tmp_path):
        config = sae_config(metadata={"hook_name": "blocks.1.hook_resid_post", "model_name": "gemma-2-2b"})
        folder = write_sae(tmp_path / "doubtful", config)
        html = self.post(admin, model, source=str(folder), _preview="")
        assert "The SAE was trained on gemma-2-2b; this model is" in html

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ({"_preview": "layer_2"}, "The model has layers 0 to 2, got layer 9"),
            ({"_preview": "../../etc"}, "must be a relative path"),
            ({"_list": "1", "subfolder": "/etc"}, "must be a relative path"),
            ({"_list": "1", "source": "/no/such/folder"}, "MILLM_MODEL_ROOTS"),
            ({"_list": "1", "source": "a b c"}, "neither a directory nor a Hub id"),
            ({"_list": "1", "source": ""}, "This field is required"),
            ({"_preview": "", "layer": "-1"}, "greater than or equal to 0"),
            ({}, "This field is required"),
        ],
    )
    def test_refusals(self, data, message, admin, model, source):
        assert message in self.post(admin, model, **{"source": source, **data})
        assert not SAE.objects.exists()

    def test_is_measured_when_it_is_added(self, admin, model, source):
        """The box is ticked unless somebody takes the tick away."""
        html = admin.get(reverse(ADD)).content.decode()
        assert re.search(r'<input type="checkbox" name="measures"[^>]* checked', html)
        data = {"model": model.pk, "source": f"{source}/layer_1", "name": "new", "measures": "on", "_save": "Add"}
        response = admin.post(reverse(ADD), data)
        job = Job.objects.get()
        assert (job.kind, job.params["sae"]) == ("steering.health", SAE.objects.get().pk)
        assert job.owner == User.objects.get(username="admin")
        assert reverse("admin:jobs_job_change", args=[job.pk]) in said(response)

    def test_is_not_measured_unless_wanted(self, admin, model, source):
        response = admin.post(reverse(ADD), {"model": model.pk, "source": f"{source}/layer_1", "name": "new"})
        assert said(response) == "Added new."
        assert not Job.objects.exists()

    def test_transcoders_cannot_be_measured(self, model, tmp_path):
        saelens_transcoder(tmp_path / "mlp")
        location = SAELocation(str(tmp_path / "mlp"))
        candidate = inspect_sae(location, model, layer=1, site="mlp_out")
        added = add_sae(prepared=prepare_sae("mlp", model, candidate), measures=True)
        assert added.sae.architecture == "transcoder"
        assert added.measurement is None
        assert not Job.objects.exists()

    def test_nothing_found(self, admin, model, tmp_path):
        assert "No SAEs found" in self.post(admin, model, source=str(tmp_path), _list="1")

    def test_needs_permission(self, model, source):
        client = staff("view_sae", "change_sae")
        assert client.get(reverse(ADD)).status_code == 403
        assert client.post(reverse(ADD), {"model": model.pk, "source": source, "_list": "1"}).status_code == 403


class TestCheck:
    def test_is_a_job(self, admin, sae):
        response = admin.post(reverse("admin:steering_sae_check", args=[sae.pk]), {"corpus": "default", "tokens": 500})
        job = Job.objects.get()
        assert response.url == reverse("admin:jobs_job_change", args=[job.pk])
        assert (job.kind, job.title, job.owner) == ("steering.health", "Measure tiny-sae", User.objects.get())
        assert job.params == {"sae": sae.pk, "corpus": "default", "tokens": 500, "replaces_imports": False}

    @pytest.mark.parametrize("data", [{"corpus": "/etc/passwd", "tokens": 5}, {"corpus": "default", "tokens": 10**9}])
    def test_refusals(self, data, admin, sae):
        response = admin.post(reverse("admin:steering_sae_check", args=[sae.pk]), data)
        assert response.url == reverse(CHANGE, args=[sae.pk])
        assert said(response)
        assert not Job.objects.exists()

    def test_needs_permission_and_a_post(self, admin, sae):
        url = reverse("admin:steering_sae_check", args=[sae.pk])
        assert admin.get(url).status_code == 405
        assert staff("view_sae").post(url).status_code == 403
        assert not Job.objects.exists()


class TestLabel:
    URL = "admin:steering_sae_interpret"

    def test_is_a_job(self, admin, sae, settings):
        assert "1 of 40 features have a label" not in page(admin, CHANGE, sae.pk)
        assert f"{sae.features.exclude(label='').count()} of 40 features have a label" in page(admin, CHANGE, sae.pk)
        response = admin.post(reverse(self.URL, args=[sae.pk]), {"model": "tiny", "limit": "5", "replaces": "on"})
        job = Job.objects.get()
        assert response.url == reverse("admin:jobs_job_change", args=[job.pk])
        assert (job.kind, job.owner) == ("steering.interpret", User.objects.get())
        assert job.params == {"sae": sae.pk, "model": "tiny", "limit": 5, "replaces": True}
        settings.MILLM_JUDGE_BASE_URL, settings.MILLM_JUDGE_MODEL = "https://example.org/v1", "large"
        assert "external endpoint (large)" in page(admin, CHANGE, sae.pk)
        admin.post(reverse(self.URL, args=[sae.pk]), {"model": "endpoint"})
        assert Job.objects.latest("created_at").params["model"] == "endpoint"

    @pytest.mark.parametrize("data", [{}, {"model": "endpoint"}, {"model": "tiny", "limit": "0"}])
    def test_refusals(self, data, admin, sae):
        response = admin.post(reverse(self.URL, args=[sae.pk]), data)
        assert response.url == reverse(CHANGE, args=[sae.pk])
        assert said(response)
        assert not Job.objects.exists()

    def test_needs_permission(self, sae):
        assert staff("view_sae").post(reverse(self.URL, args=[sae.pk])).status_code == 403

    def test_its_result(self):
        show = find_kind("steering.interpret").load_show()
        html = show({"sae": 3, "labelled": 1200, "nonsense": 2, "failed": 0, "edited": 1})
        assert "1,200 features labelled, 2 answers were no labels, 1 labelled by somebody meanwhile." in html
        assert "?sae__id__exact=3" in html


class TestTrain:
    URL = "admin:steering_sae_train"

    @pytest.fixture(autouse=True)
    def home(self, settings, tmp_path):
        settings.MILLM_HOME = str(tmp_path / "home")

    def form(self, model, **fields):
        values = {"model": model.pk, "name": "own", "site": "resid_post", "activation": "topk", "k": 4}
        values |= {"corpora": ["default"], "tokens": 640, "batch": 64, "max_activations": 10_000}
        return {**values, "learning_rate": "0.001", "seed": 0, **fields}

    def test_defaults_of_the_model(self, admin, model):
        assert reverse(self.URL) in page(admin, "admin:steering_sae_changelist")
        form = admin.get(reverse(self.URL)).context["form"]
        assert [form[name].value() for name in ("name", "layer", "features", "k", "tokens", "corpora")] == [
            "tiny-layer1",
            1,
            96,
            32,
            4_000_000,
            ["default"],
        ]

    def test_is_a_job(self, admin, model):
        response = admin.post(reverse(self.URL), self.form(model))
        job = Job.objects.get()
        assert response.url == reverse("admin:jobs_job_change", args=[job.pk])
        assert (job.kind, job.params["name"], job.params["corpora"]) == ("steering.train_sae", "own", ["default"])
        assert (job.params["layer"], job.params["site"]) == (1, "resid_post")
        assert (job.params["recipe"]["features"], job.params["recipe"]["k"]) == (96, 4)
        again = admin.post(reverse(self.URL), self.form(model))
        assert "already training" in str(again.context["form"].errors["name"])
        assert Job.objects.count() == 1

    def test_with_a_corpus_of_ones_own(self, admin, model):
        file = SimpleUploadedFile("sea.txt", b"The sea.\n\nThe rain.")
        admin.post(reverse(self.URL), self.form(model, corpora=[], file=file))
        assert Job.objects.get().params["corpora"] == ["sea.txt"]
        assert "sea.txt" in corpus_names()
        assert "sea.txt" in page(admin, self.URL)

    @pytest.mark.parametrize(
        ("fields", "name", "text"),
        [
            ({"name": "../x"}, "name", "without slashes"),
            ({"name": "tiny-sae"}, "name", "already exists"),
            ({"layer": "3"}, "layer", "layers 0 to 2, got layer 3"),
            ({"site": "mlp_raw"}, "site", "valid choice"),
            ({"k": "97"}, "k", "at most the number of features (96)"),
            ({"tokens": "10"}, "tokens", "at least the batch"),
            ({"learning_rate": "0"}, "learning_rate", "between"),
            ({"max_activations": "5"}, "max_activations", "between the batch"),
            ({"max_activations": "4000000", "features": "1048576"}, "max_activations", "GB free"),
            ({"corpora": []}, "corpora", "Choose a corpus"),
            ({"corpora": ["../secret.txt"]}, "corpora", "valid choice"),
            ({"file": SimpleUploadedFile("x.pdf", b"x")}, "file", "end with"),
            ({"file": SimpleUploadedFile("bad.jsonl", b"{")}, "file", "bad.jsonl"),
        ],
    )
    def test_refusals(self, fields, name, text, admin, model, sae, monkeypatch):
        monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=5 * 10**8))
        if "file" in fields:
            fields["file"].seek(0)
        response = admin.post(reverse(self.URL), self.form(model, **fields))
        assert text in " ".join(response.context["form"].errors[name])
        assert not Job.objects.exists()

    def test_needs_permission(self, model):
        client = staff("view_sae", "change_sae")
        assert client.get(reverse(self.URL)).status_code == 403
        assert client.post(reverse(self.URL), self.form(model)).status_code == 403
        User.objects.all().delete()
        assert "file" not in staff("add_sae").get(reverse(self.URL)).context["form"].fields


class TestWeights:
    def test_load_and_unload(self, admin, sae, cold_saes):
        assert "not loaded (4.1" in page(admin, CHANGE, sae.pk)
        admin.post(reverse("admin:steering_sae_load", args=[sae.pk]))
        assert get_compiler().loaded_bytes(sae.checksum) == 4 * (2 * 12 * 40 + 2 * 40 + 12)
        assert "loaded, 4.1" in page(admin, CHANGE, sae.pk)
        admin.post(reverse("admin:steering_sae_unload", args=[sae.pk]))
        assert get_compiler().loaded_bytes(sae.checksum) is None

    def test_unloading_forgets_what_was_compiled(self, profile, sae, cold_saes):
        from steering.services import publish_profile

        publish_profile(profile=profile)
        compiler = get_compiler()
        compiler.sae(source_of(sae))
        compiler.unload_sae(sae.checksum)
        compiler.unload_sae(sae.checksum)
        assert compiler.loaded_bytes(sae.checksum) is None

    def test_files_that_are_gone(self, admin, sae, cold_saes):
        SAE.objects.update(source="/gone")
        response = admin.post(reverse("admin:steering_sae_load", args=[sae.pk]))
        assert "was not loaded. The directory '/gone' does not exist" in said(response)


class TestShelf:
    def test_names_files_and_nothing_else(self, settings, tmp_path):
        settings.MILLM_HOME = tmp_path
        folder = tmp_path / "corpora"
        (folder / "deep.txt").mkdir(parents=True)
        (folder / "own.txt").write_text("The sea.")
        (folder / "notes.md").write_text("no")
        (tmp_path / "secret.txt").write_text("secret")
        (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
        assert corpus_names()[:2] == ("default", "own.txt")
        assert open_corpus("own.txt").name == "own"
        for name in ("link.txt", "deep.txt", "notes.md", "../secret.txt", "/etc/passwd"):
            with pytest.raises(CorpusError, match="There is no corpus"):
                open_corpus(name)
