"""A model's page: acts with permissions, how it stands now, memory, preview, and what cannot be deleted."""

from __future__ import annotations

import asyncio
import html
import json
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from audit.models import AuditEvent
from core.runtime import runtime
from inference import services
from inference.admin import ACTS
from inference.client import ENGINE_CLIENT, EngineDownError, FinishedEvent, LocalEngineClient, Usage
from inference.engine.messages import Timings
from inference.models import LanguageModel
from inference.registry.availability import memory_need, model_availability
from inference.registry.loads import LoadProgress, LoadStatus
from inference.registry.memory_plan import MemoryBudget
from inference.registry.registry import MODEL_REGISTRY, ModelRegistry
from inference.validation import SAMPLING
from jobs.models import Job
from steering.models import SteeringProfile
from tests.inference.fakes import FakeDevice, FakeLoop
from tests.inference.test_admin import FakeRegistry

pytestmark = pytest.mark.django_db
LIST = "/admin/inference/languagemodel/"
EVIL = "<script>alert(1)</script>"


@pytest.fixture
def model(model_dir) -> LanguageModel:
    return services.register_model(name="org/a", source=str(model_dir))


@pytest.fixture
def registry():
    fake = FakeRegistry()
    runtime.install(MODEL_REGISTRY, fake)
    yield fake
    runtime.remove(MODEL_REGISTRY)
    runtime.remove(ENGINE_CLIENT)


class Standing(FakeRegistry):
    """Serves, and says what the test wants of each load."""

    is_serving = True

    def __init__(self, standing: LoadStatus) -> None:
        super().__init__()
        self.said = standing

    def load_status(self, name: str) -> LoadStatus:
        return self.said


def page(model: LanguageModel) -> str:
    return reverse("admin:inference_languagemodel_change", args=[model.pk])


def act(model: LanguageModel, name: str) -> str:
    return reverse("admin:inference_languagemodel_act", args=[model.pk, name])


def staff(*codenames: str) -> Client:
    user = User.objects.create_user("rita", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


class TestActs:
    @pytest.mark.parametrize(("name", "call"), [("load", "load"), ("unload", "unload")])
    def test_loading_and_unloading(self, admin_client, model, registry, name, call):
        response = admin_client.post(act(model, name))
        assert response.status_code == 302
        assert registry.calls == [(call, "org/a")]
        event = AuditEvent.objects.latest("pk")
        assert (event.action, event.subject, event.user) == (name, "org/a", "admin")

    def test_pin_unpin_and_default(self, admin_client, model, registry):
        for name, values in (("pin", (True, False)), ("unpin", (False, False)), ("default", (False, True))):
            admin_client.post(act(model, name))
            model.refresh_from_db()
            assert (model.pinned, model.is_default) == values

    def test_warming_is_a_job(self, admin_client, model, registry):
        admin_client.post(act(model, "warm"))
        job = Job.objects.get()
        assert (job.kind, job.params, job.owner.get_username()) == ("inference.warm", {"model": "org/a"}, "admin")

    @pytest.mark.parametrize("name", sorted(ACTS))
    def test_who_may_only_look_may_not_act(self, model, registry, name):
        client = staff("view_languagemodel")
        assert client.post(act(model, name)).status_code == 403
        assert "model-acts" not in client.get(page(model)).content.decode()
        model.refresh_from_db()
        assert (registry.calls, model.pinned, model.is_default, Job.objects.count()) == ([], False, False, 0)

    @pytest.mark.parametrize("name", sorted(ACTS))
    def test_a_link_does_nothing(self, admin_client, model, registry, name):
        assert admin_client.get(act(model, name)).status_code == 405
        assert registry.calls == []

    def test_an_act_or_a_model_that_is_not_there(self, admin_client, model, registry):
        assert admin_client.post(act(model, "explode")).status_code == 404
        gone = reverse("admin:inference_languagemodel_act", args=[model.pk + 1, "load"])
        assert admin_client.post(gone, follow=True).status_code == 404

    def test_a_refusal_is_said_and_leaves_no_event(self, admin_client, model, registry):
        registry.refusal = EngineDownError("No engine runs in this process.")
        before = AuditEvent.objects.count()
        response = admin_client.post(act(model, "load"), follow=True)
        assert "No engine runs in this process." in response.content.decode()
        assert AuditEvent.objects.count() == before


class TestStanding:
    @pytest.mark.parametrize(
        ("standing", "words", "percent", "is_moving"),
        [
            (LoadStatus(LoadProgress("looking", 1, 3 * 2**30, 12 * 2**30)), "3.0\xa0GB of 12.0\xa0GB", 25, True),
            (LoadStatus(LoadProgress("reading weights", 7.6)), "Reading weights (8 s).", None, True),
            (LoadStatus(LoadProgress("freeing memory", 0, 5, 5)), "Freeing memory (0 s).", None, True),
            (LoadStatus(is_waiting=True), "Waiting for other loads", None, True),
        ],
    )
    def test_a_load_says_how_far_it_is(self, model, standing, words, percent, is_moving):
        runtime.install(MODEL_REGISTRY, Standing(standing))
        found = model_availability(model)
        runtime.remove(MODEL_REGISTRY)
        assert words in found.sentence
        assert (found.percent, found.is_moving) == (percent, is_moving)

    def test_a_failure_says_why_and_when_it_is_tried_again(self, model):
        model.state, model.error = "failed", EVIL
        runtime.install(MODEL_REGISTRY, Standing(LoadStatus(retry_in_s=9.6)))
        found = model_availability(model)
        runtime.remove(MODEL_REGISTRY)
        assert "retry in 10 s" in found.sentence
        assert found.error == EVIL

    @pytest.mark.parametrize(
        ("state", "words"),
        [("loaded", "Ready"), ("unloaded", "The next request loads it"), ("loading", "another process")],
    )
    def test_elsewhere_the_row_is_what_is_known(self, model, state, words):
        model.state, model.loaded_at = state, timezone.now()
        assert words in model_availability(model).sentence


class TestLive:
    def test_it_has_what_the_page_shows(self, admin_client, model):
        LanguageModel.objects.update(state="failed", error=EVIL)
        answer = admin_client.get(f"{LIST}live/?pk={model.pk},999,junk")
        found = answer.json()["models"]
        assert list(found) == [str(model.pk)]
        assert "The last load failed" in found[str(model.pk)]
        assert EVIL not in found[str(model.pk)]
        assert "no-store" in answer["Cache-Control"]

    @pytest.mark.parametrize("query", ["", "?pk=", "?pk=" + "9" * 50, "?pk=" + "1," * 5000, "?pk=%00"])
    def test_whatever_is_asked(self, admin_client, model, query):
        assert admin_client.get(f"{LIST}live/{query}").status_code == 200

    def test_it_needs_the_permission(self, model):
        assert staff().get(f"{LIST}live/?pk={model.pk}").status_code == 403
        assert Client().get(f"{LIST}live/?pk={model.pk}").status_code == 302

    def test_one_query_for_the_rows_however_many(self, admin_client, model_dir):
        counts = []
        for more in (1, 10):
            pks = [
                str(services.register_model(name=f"m{more}-{number}", source=str(model_dir)).pk)
                for number in range(more)
            ]
            with CaptureQueriesContext(connection) as queries:
                admin_client.get(f"{LIST}live/?pk={','.join(pks)}")
            counts.append(len(queries))
        assert counts[0] == counts[1] <= 3


class TestPage:
    def test_memory_is_two_numbers_and_a_bar(self, admin_client, model):
        runtime.install(
            MODEL_REGISTRY, ModelRegistry(FakeLoop(), budget=MemoryBudget(8 * 2**30, FakeDevice(4 * 2**30)))
        )
        need = memory_need(model)
        text = html.unescape(admin_client.get(page(model)).content.decode())
        runtime.remove(MODEL_REGISTRY)
        assert need.fits
        assert 0 <= need.share <= 100
        assert need.text in text
        assert '<meter id="model-memory"' in text

    def test_a_model_that_does_not_fit_says_so(self, admin_client, model):
        runtime.install(MODEL_REGISTRY, ModelRegistry(FakeLoop(), budget=MemoryBudget(1, FakeDevice(1))))
        text = admin_client.get(page(model)).content.decode()
        need = memory_need(model)
        runtime.remove(MODEL_REGISTRY)
        assert (need.fits, need.share) == (False, 100)
        assert "Idle models are unloaded to make room" in text

    def test_sampling_is_explained_and_defaults_are_shown(self, admin_client, model):
        LanguageModel.objects.update(default_sampling={"temperature": 0.25, "min_p": 0})
        text = html.unescape(admin_client.get(page(model)).content.decode())
        assert all(found.help in text for found in SAMPLING.values())
        assert "<td>0.25</td>" in text

    def test_its_own_chat_template_is_shown_as_text(self, admin_client, tmp_path):
        (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
        (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}" + EVIL)
        row = LanguageModel.objects.create(name="m", source=str(tmp_path))
        text = admin_client.get(page(row)).content.decode()
        assert "{% for m in messages %}" in text
        assert EVIL not in text

    def test_the_page_has_neither_inline_scripts_nor_styles(self, admin_client, model):
        text = admin_client.get(page(model)).content.decode()
        panel = text[text.index("model-panel") : text.index("</section>")]
        assert "<script" not in panel
        assert "style=" not in panel
        assert 'type="module"' in text

    def test_what_profiles_need_is_not_deleted(self, admin_client, model):
        SteeringProfile.objects.create(name="gloomy", model=model)
        url = reverse("admin:inference_languagemodel_delete", args=[model.pk])
        assert "gloomy" in admin_client.get(url).content.decode()
        assert admin_client.post(url, {"post": "yes"}).status_code in {200, 403}
        data = {"action": "delete_selected", "_selected_action": [model.pk], "post": "yes"}
        admin_client.post(LIST, data)
        assert LanguageModel.objects.filter(pk=model.pk).exists()


class TestPreview:
    @pytest.fixture
    def source(self, tmp_path) -> str:
        """A model that its own makers describe with a script."""
        config = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "max_position_embeddings": 2048}
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "model.safetensors").write_bytes(b"x" * 2_000)
        (tmp_path / "README.md").write_text(f"---\nlicense: '{EVIL}'\n---\n")
        return str(tmp_path)

    def test_it_shows_what_the_source_is_and_leads_to_the_form(self, admin_client, source):
        response = admin_client.post(f"{LIST}preview/", {"source": source, "revision": "v&1"})
        text = response.content.decode()
        for shown in (
            "LlamaForCausalLM",
            "bfloat16",
            "2.0\xa0KB",
            "2048 tokens",
            "open",
            "no tokenizer.json",
            "none: add one",
        ):
            assert shown in html.unescape(text)
        assert EVIL not in text
        name, path = Path(source).name, quote(source, safe="")
        assert f"{LIST}add/?name={name}&amp;source={path}&amp;revision=v%261" in text
        form = admin_client.get(f"{LIST}add/?name={name}&source={path}&revision=v%261").content.decode()
        assert f'value="{source}"' in form
        assert not LanguageModel.objects.exists()

    def test_a_refusal_is_said_at_the_source(self, admin_client):
        text = admin_client.post(f"{LIST}preview/", {"source": "/nowhere"}).content.decode()
        assert "MILLM_MODEL_ROOTS" in text
        assert 'id="preview"' not in text

    @pytest.mark.parametrize("source", ["", "https://x", "a b", "../../..\0", "x" * 501, EVIL])
    def test_what_is_no_source(self, admin_client, source):
        response = admin_client.post(f"{LIST}preview/", {"source": source})
        assert response.status_code == 200
        assert 'id="preview"' not in response.content.decode()
        assert EVIL not in response.content.decode()

    def test_a_link_looks_at_nothing(self, admin_client, source):
        assert 'id="preview"' not in admin_client.get(f"{LIST}preview/?source={source}").content.decode()

    def test_it_is_for_those_who_may_register(self, source):
        client = staff("view_languagemodel")
        assert client.post(f"{LIST}preview/", {"source": source}).status_code == 403
        assert "Preview a model" not in client.get(LIST).content.decode()


def test_a_job_that_runs_warms_the_model(parts, model, transactional_db):
    """The job's function, with a registry and an engine of the test's."""
    from inference.job_kinds import warm

    told: list[tuple[int, int]] = []

    class Told:
        id = uuid.uuid4()
        params = {"model": "org/a"}

        def progress(self, done: int, total: int, message: str = "") -> None:
            told.append((done, total))

    registry = ModelRegistry(parts.engine, locate=parts.located, loading=parts.loader.parts(), clock=parts.clock)
    runtime.install(MODEL_REGISTRY, registry)

    class Finishing(FakeLoop):
        def submit(self, requests: Any, sink: Any) -> None:
            super().submit(requests, sink)
            done = FinishedEvent(index=0, reason="length", usage=Usage(1, 1), timings=Timings())
            asyncio.get_running_loop().call_soon(lambda: self.publish([(sink, done)]))

    loop = Finishing()

    def make(publish: Any) -> Finishing:
        loop.publish = publish
        return loop

    runtime.install(ENGINE_CLIENT, LocalEngineClient(make))
    try:
        assert warm(Told()) == {"model": "org/a", "kind": "generation"}
    finally:
        runtime.remove(ENGINE_CLIENT)
        registry.stop()
        runtime.remove(MODEL_REGISTRY)
    assert told == [(0, 2), (2, 2)]
    assert loop.submitted[0][0][0].sampling.max_tokens == 1
