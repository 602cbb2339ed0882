"""The admin of models: live state, actions with permissions, forms that explain what is wrong."""

from __future__ import annotations

import html
import re
import shutil
from concurrent.futures import Future

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.urls import reverse

from core.runtime import runtime
from inference import services
from inference.client import ENGINE_CLIENT, EngineDownError, LocalEngineClient
from inference.engine.config import EngineConfig
from inference.engine.stats import EngineStats, ModelLimits, ModelStats
from inference.models import LanguageModel
from inference.permissions import GROUPS, ensure_groups
from inference.registry.memory_plan import MemoryBudget
from inference.registry.registry import MODEL_REGISTRY, ModelRegistry
from tests.inference.fakes import FakeDevice, FakeLoop

pytestmark = pytest.mark.django_db
LIST = "/admin/inference/languagemodel/"


class FakeRegistry(ModelRegistry):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []
        self.refusal: Exception | None = None

    def load(self, name: str) -> Future[None]:
        return self._note("load", name)

    def unload(self, name: str, *, now: bool = False) -> Future[None]:
        return self._note("unload now" if now else "unload", name)

    def _note(self, what: str, name: str) -> Future[None]:
        if self.refusal is not None:
            raise self.refusal
        self.calls.append((what, name))
        return Future()


@pytest.fixture
def registry():
    fake = FakeRegistry()
    runtime.install(MODEL_REGISTRY, fake)
    yield fake
    runtime.remove(MODEL_REGISTRY)


@pytest.fixture
def models(model_dir):
    return [services.register_model(name=name, source=str(model_dir)) for name in ("org/a", "b")]


@pytest.fixture
def researcher(client):
    ensure_groups()
    user = User.objects.create_user("rita", password="x", is_staff=True)
    user.groups.add(Group.objects.get(name="Researchers"))
    client.force_login(user)
    return client


def act(client, action, models):
    data = {"action": action, "_selected_action": [model.pk for model in models], "index": 0}
    return client.post(LIST, data, follow=True)


def said(response) -> str:
    return " ".join(str(message) for message in response.context["messages"])


def form(model_dir, **values):
    data = {
        "name": "m", "source": str(model_dir), "aliases": "x, org/y", "revision": "", "dtype": "auto", "device": "auto",
        "quantization": "none", "context_length": 0, "keep_alive_s": 0, "default_profile": "", "default_sampling": "{}",
        "chat_template": "",
    }  # fmt: skip
    return {**data, **values}


def test_the_list_shows_live_state(admin_client, models):
    LanguageModel.objects.filter(name="b").update(state="failed", error="It is broken.", memory_bytes=3 * 2**30)
    page = admin_client.get(LIST).content.decode()
    detail = admin_client.get(reverse("admin:inference_languagemodel_change", args=[models[1].pk])).content.decode()

    assert "3.0\xa0GB" in page
    assert "Failed" in page
    assert "It is broken." in detail


@pytest.mark.parametrize(("action", "call"), [("load_models", "load"), ("unload_models", "unload")])
def test_load_and_unload(admin_client, models, registry, action, call):
    response = act(admin_client, action, models)

    assert registry.calls == [(call, "b"), (call, "org/a")]
    assert "org/a" in said(response)
    history = admin_client.get(reverse("admin:inference_languagemodel_history", args=[models[0].pk])).content.decode()
    assert f"{call.capitalize()} of org/a requested" in history
    assert "ing org/a" not in said(response), "the state beside it may say that it is done"


def test_without_an_engine_the_reason_is_shown(admin_client, models, registry):
    registry.refusal = EngineDownError("No engine runs in this process.")

    assert "No engine runs" in said(act(admin_client, "load_models", models))


def test_set_as_default(admin_client, models, registry):
    act(admin_client, "make_default", models[:1])
    assert LanguageModel.objects.get(is_default=True) == models[0]

    assert "Select exactly one model" in said(act(admin_client, "make_default", models))
    assert LanguageModel.objects.get(is_default=True) == models[0]


@pytest.mark.parametrize("action", ["load_models", "unload_models", "make_default", "delete_selected"])
def test_who_may_only_look_cannot_act(researcher, models, registry, action):
    response = act(researcher, action, models[:1])

    assert researcher.get(LIST).status_code == 200
    assert response.status_code in {200, 403}
    assert registry.calls == []
    assert LanguageModel.objects.count() == 2
    assert not LanguageModel.objects.filter(is_default=True).exists()


def test_who_may_only_look_cannot_change(researcher, models, model_dir):
    url = reverse("admin:inference_languagemodel_change", args=[models[0].pk])

    assert researcher.get(url).status_code == 200
    assert researcher.post(url, form(model_dir, name="org/a", aliases="taken")).status_code == 403
    assert researcher.get(reverse("admin:inference_languagemodel_add")).status_code == 403
    assert LanguageModel.objects.get(name="org/a").aliases == []


def test_actions_by_get_do_nothing(admin_client, models, registry):
    admin_client.get(LIST, {"action": "load_models", "_selected_action": models[0].pk})

    assert registry.calls == []


def test_a_model_is_added_with_its_aliases(admin_client, model_dir):
    response = admin_client.post(reverse("admin:inference_languagemodel_add"), form(model_dir, is_default="on"))

    assert response.status_code == 302
    assert LanguageModel.objects.get().aliases == ["x", "org/y"]


def test_a_new_default_takes_the_place_of_the_old_one(admin_client, models, model_dir):
    services.set_default_model(model=models[0])
    admin_client.post(reverse("admin:inference_languagemodel_add"), form(model_dir, is_default="on"))

    assert LanguageModel.objects.get(is_default=True).name == "m"


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"source": "/nowhere"}, "MILLM_MODEL_ROOTS"),
        ({"source": "https://x"}, "neither a directory nor a Hub id"),
        ({"default_sampling": '{"temperature": 9}'}, "temperature must be between 0 and 2"),
        ({"default_sampling": "{"}, "valid JSON"),
        ({"default_sampling": "[]"}, "must be a JSON object"),
        ({"chat_template": "{% for %}"}, "cannot be compiled"),
        ({"device": "tpu"}, "device must be"),
        ({"name": "org/a"}, "already exists"),
        ({"aliases": "org/a"}, "The model org/a already uses"),
        ({"name": "a b"}, "is not a valid model name"),
    ],
)
def test_the_form_says_what_is_wrong_at_its_field(admin_client, models, model_dir, values, told):
    response = admin_client.post(reverse("admin:inference_languagemodel_add"), form(model_dir, **values))
    errors = response.context["adminform"].form.errors

    assert any(told in message for messages in errors.values() for message in messages), errors
    assert LanguageModel.objects.count() == 2


def test_live_fields_cannot_be_posted(admin_client, models, model_dir):
    url = reverse("admin:inference_languagemodel_change", args=[models[1].pk])
    admin_client.post(url, form(model_dir, name="b", aliases="", state="loaded", memory_bytes=5, error="<b>"))

    model = LanguageModel.objects.get(name="b")
    assert (model.state, model.memory_bytes, model.error) == ("unloaded", 0, "")


def test_deleting_needs_the_permission_and_removes_the_model(admin_client, models):
    admin_client.post(reverse("admin:inference_languagemodel_delete", args=[models[0].pk]), {"post": "yes"})
    act_and_confirm = {"action": "delete_selected", "_selected_action": [models[1].pk], "post": "yes"}
    admin_client.post(LIST, act_and_confirm)

    assert not LanguageModel.objects.exists()


def test_an_error_is_shown_as_text(admin_client, models):
    LanguageModel.objects.filter(pk=models[0].pk).update(state="failed", error="<script>alert(1)</script>")
    url = reverse("admin:inference_languagemodel_change", args=[models[0].pk])

    assert b"<script>alert(1)" not in admin_client.get(url).content


def test_groups_exist_after_migrating_with_what_they_may():
    keys = {
        name: {f"{p.content_type.app_label}.{p.codename}" for p in Group.objects.get(name=name).permissions.all()}
        for name in GROUPS
    }

    assert "inference.view_languagemodel" in keys["Researchers"]
    assert "inference.change_languagemodel" not in keys["Researchers"]
    assert {"steering.change_steeringprofile", "steering.add_sae"} <= keys["Researchers"]
    assert "openai_api.view_requestlog" in keys["Auditors"]
    assert "openai_api.change_apikey" not in keys["Auditors"]
    changes = {key for key in keys["Auditors"] if key.split(".")[1].startswith(("add_", "change_", "delete_"))}
    own = {"console.add_comment", "console.add_savedlist", "console.change_savedlist", "openai_api.add_requestscore"}
    assert changes == own, "auditors write their own notes and scores, and change nothing else"
    assert len(keys["Admins"]) == Permission.objects.count()


def test_every_permission_that_a_group_names_exists():
    existing = {f"{p.content_type.app_label}.{p.codename}" for p in Permission.objects.select_related("content_type")}

    for wanted in GROUPS.values():
        assert set(wanted or ()) <= existing


def test_groups_are_made_once_and_keep_what_was_added():
    group = Group.objects.get(name="Auditors")
    extra = Permission.objects.get(codename="change_languagemodel")
    group.permissions.add(extra)
    before = group.permissions.count()
    ensure_groups()
    ensure_groups()

    assert Group.objects.filter(name__in=GROUPS).count() == 3
    assert group.permissions.count() == before


def detail_of(admin_client, model) -> str:
    return admin_client.get(reverse("admin:inference_languagemodel_change", args=[model.pk])).content.decode()


def test_a_model_s_page_shows_what_it_needs_and_what_is_free(admin_client, models):
    runtime.install(MODEL_REGISTRY, ModelRegistry(FakeLoop(), budget=MemoryBudget(8 * 2**30, FakeDevice(4 * 2**30))))
    page = detail_of(admin_client, models[0])

    assert re.search(
        r"needs about \d\.\d\d MiB: \d\.\d\d MiB for weights, at least \d\.\d\d MiB for the KV cache, "
        r"\d\.\d\d MiB for a step; 4\.00 GiB free on cpu; limit for all models: 8\.00 GiB",
        page,
    )


def test_a_model_s_page_shows_the_engine_s_settings(admin_client, models):
    loop = FakeLoop(config=EngineConfig(max_batch_size=7))
    runtime.install(ENGINE_CLIENT, LocalEngineClient(lambda publish: loop))
    page = detail_of(admin_client, models[0])

    assert "<dt>max batch size</dt><dd>7</dd>" in page
    assert "<dt>kv cache backend</dt>" in page


def test_a_model_s_page_shows_the_kernels_that_run_it(admin_client, models):
    loop = FakeLoop(by_model=(ModelStats("b", kernels="of b"), ModelStats("org/a", kernels="CPU: native")))
    runtime.install(ENGINE_CLIENT, LocalEngineClient(lambda publish: loop))

    assert "CPU: native" in detail_of(admin_client, models[0])


def test_a_loaded_model_s_page_shows_its_cache_and_what_else_was_chosen_for_it(admin_client, models):
    class Attached(FakeLoop):
        def stats(self):
            limits = ModelLimits("cpu", "float32", 2, 256, 16, "contiguous", 3 * 2**20, 3072, 512, 0)
            return EngineStats("idle", by_model=(ModelStats(models[0].name, limits),))

    runtime.install(ENGINE_CLIENT, LocalEngineClient(lambda publish: Attached()))
    page = html.unescape(detail_of(admin_client, models[0])).replace("\xa0", " ")

    for name, shown in (("kv bytes", "3.0 MB"), ("kv tokens", "3072"), ("max seq len", "256"), ("device", "cpu")):
        assert f"<dt>{name}</dt><dd>{shown}</dd>" in page
    assert "Shown while the model is loaded." in detail_of(admin_client, models[1])


def test_the_page_shows_the_sizes_that_were_chosen_where_the_setting_is_zero(admin_client, models):
    class Attached(FakeLoop):
        def stats(self):
            limits = ModelLimits("cuda:0", "bfloat16", 2, 256, 64, "paged", 3 * 2**20, 3072, 4096, 512)
            return EngineStats("idle", by_model=(ModelStats(models[0].name, limits),))

    loop = Attached(config=EngineConfig(max_batch_size=0, max_prefill_tokens=0))
    runtime.install(ENGINE_CLIENT, LocalEngineClient(lambda publish: loop))
    page = html.unescape(detail_of(admin_client, models[0])).replace("\xa0", " ")

    for name, shown in (("max batch size", 64), ("max prefill tokens", 4096), ("min prefill tokens", 512)):
        assert f"<dt>{name}</dt><dd>{shown}, chosen for cuda:0</dd>" in page
    assert "<dt>kv cache bytes</dt><dd>3.0 MB, chosen for cuda:0</dd>" in page
    assert "<dt>max batch size</dt><dd>automatic</dd>" in detail_of(admin_client, models[1])


def test_outside_the_server_the_page_says_why_it_does_not_know(admin_client, models):
    page = detail_of(admin_client, models[0])

    assert "Only the running server can measure it." in page
    assert "No engine runs in this process" in page


def test_a_model_that_is_not_there_yet_or_is_broken_says_so(admin_client, model_dir, tmp_path):
    shutil.copytree(model_dir, tmp_path / "copy")
    runtime.install(MODEL_REGISTRY, ModelRegistry(FakeLoop(), budget=MemoryBudget(0, FakeDevice())))
    remote = services.register_model(name="remote", source="org/never-downloaded")
    broken = services.register_model(name="broken", source=str(tmp_path / "copy"))
    (tmp_path / "copy" / "model.safetensors").write_bytes(b"\xff" * 100)

    assert "Unknown until the model is downloaded." in detail_of(admin_client, remote)
    assert "broken could not be loaded" in detail_of(admin_client, broken)
