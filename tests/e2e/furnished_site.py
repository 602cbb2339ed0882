"""A server on which people have worked: something on every page of the console, good, bad and under way."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import psycopg
from openai import BadRequestError, NotFoundError, OpenAI

from tests import live
from tests.conftest import LiveSite
from tests.embedding_builders import build_embedder

STORY: list[Any] = [{"role": "user", "content": "Tell me a story."}]
STORM: list[Any] = [{"role": "user", "content": "Tell me a story about a storm and the rain."}]
WAIT_S = 300
PAIRS = [
    {"positive": f"Tell me a story about {who} in the rain.", "negative": f"Tell me a story about {who} in the sun."}
    for who in ("a cat", "a dog", "a fox", "an owl")
]


def furnish(site: LiveSite, folder: Path) -> None:
    """Leaves behind profiles, rules and jobs of every kind; for a site of one's own."""
    embedder = build_embedder(folder / "embedder")
    (folder / "pairs.json").write_text(json.dumps(PAIRS), "utf-8")
    commands = (
        ("add_model", "vectors", str(embedder), "--dtype", "float32"),
        ("shell", "-c", PEOPLE_AND_PROFILES),
        ("extract_vectors", "rain", str(folder / "pairs.json"), "--model", "demo", "--layer", "1"),
        ("shell", "-c", KEYS),
    )
    key = live.manage_all(commands, environment=site.server.environment).strip().splitlines()[-1]
    _ask(OpenAI(base_url=site.api_url, api_key=key, max_retries=0))
    _keep(OpenAI(base_url=site.api_url, api_key="none", max_retries=0))
    _wait_for_jobs(site, RULES_AND_JOBS)
    _wait_for_jobs(site, ENDED_JOBS)
    _rain(OpenAI(base_url=site.api_url, api_key=key, max_retries=0))


def _ask(client: OpenAI) -> None:
    """Requests of every outcome."""
    chat = client.chat.completions.create
    told = {"session_id": "visit-42", "experiment": "b"}
    for seed, profile in enumerate(("gloomy", "joyful", "sea", None, "harbour", "harbour@1")):
        options: Any = {"user": "laptop-7", "metadata": told, "extra_body": {"profile": profile}}
        chat(model="demo", messages=STORY, max_tokens=40, seed=seed, **options)
    for part in chat(model="demo", messages=STORM, max_tokens=40, seed=3, stream=True):
        assert part.id
    shown = {"return_activations": {"top_k": 4}, "profile": "gloomy"}
    chat(model="demo", messages=STORY, max_tokens=24, seed=1, logprobs=True, top_logprobs=3, extra_body=shown)
    client.completions.create(model="demo", prompt="Once upon a time", max_tokens=24)
    tool = {"name": "get_population", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    asked: list[Any] = [{"role": "user", "content": "What is the population of Lisbon?"}]
    tools: list[Any] = [{"type": "function", "function": tool}]
    chat(model="demo", messages=asked, tools=tools, temperature=0, max_tokens=60)
    for wrong, refusal in (({"profile": "nobody"}, NotFoundError), ({"steering_intensity": 9}, BadRequestError)):
        try:
            chat(model="demo", messages=STORY, extra_body=wrong)
        except refusal:
            continue
        raise AssertionError(f"{wrong} was not refused")


def _rain(client: OpenAI) -> None:
    """What the watch rules look for; they hold once the server has heard of them."""
    deadline = time.monotonic() + WAIT_S
    while True:
        raw = client.chat.completions.with_raw_response.create(model="demo", messages=STORM, max_tokens=40, seed=3)
        if raw.headers.get("x-millm-policies") == "watch:dry":
            return
        assert time.monotonic() < deadline, "no rule acted"
        time.sleep(0.5)


def _keep(client: OpenAI) -> None:
    """What clients leave on the server."""
    talk = client.conversations.create(items=[{"type": "message", "role": "user", "content": "My name is Zorvik."}])
    answer = client.responses.create(
        model="demo", input="What is my name?", conversation=talk.id, max_output_tokens=24, temperature=0
    )
    assert answer.output_text
    client.chat.completions.create(model="demo", messages=STORY, max_tokens=24, store=True, metadata={"run": "nightly"})
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}
        for name, body in (
            ("good", {"model": "demo", "messages": STORY, "max_tokens": 12}),
            ("bad", {"model": "demo", "messages": STORY, "profile": "nobody"}),
        )
    ]
    data = "\n".join(json.dumps(line) for line in lines).encode()
    file = client.files.create(file=("requests.jsonl", io.BytesIO(data)), purpose="batch")
    client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    store = client.vector_stores.create(name="handbook")
    for name, text in (("cats.txt", b"the cat sat on a mat"), ("numbers.txt", b"9 8 7 6 5")):
        client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=(name, text), poll_interval_ms=200)


def _wait_for_jobs(site: LiveSite, begin: str) -> None:
    """Begins jobs, and waits until all but those that are waited for in vain have ended."""
    site.server.manage("shell", "-c", begin)
    deadline = time.monotonic() + WAIT_S
    with psycopg.connect(site.server.environment["MILLM_DATABASE_URL"], autocommit=True) as connection:
        while left := connection.execute(OPEN_JOBS).fetchall():
            assert time.monotonic() < deadline, left
            time.sleep(0.5)


OPEN_JOBS = """
SELECT kind, state FROM jobs_job
WHERE state IN ('queued', 'running') AND kind <> 'webhooks.deliver'  -- to a host that does not exist
"""
PEOPLE_AND_PROFILES = """
from datetime import UTC, datetime
from console.models import SharedPage
from django.contrib.auth.models import Group, User
from inference.models import LanguageModel
from media.models import Video, Voice
from steering import services, sharing
from steering.profiles import lifecycle
from steering.models import Feature, FeatureEdit, SteeringProfile

FAR = datetime(2099, 1, 1, tzinfo=UTC)
root = User.objects.get(is_superuser=True)
people = {}
for name, group, first, last in (
    ("rita", "Researchers", "Rita", "Moreau"), ("otto", "Auditors", "Otto", "Lindqvist"), ("nora", "", "Nora", "Stein"),
):
    person = people[name] = User.objects.create_user(
        name, f"{name}@example.org", "correct horse 7 battery", is_staff=True, first_name=first, last_name=last
    )
    if group:
        person.groups.add(Group.objects.get(name=group))
demo = LanguageModel.objects.get(name="demo")
LanguageModel.objects.create(
    name="large-one", source="/models/large-one", state="failed",
    error="/models/large-one is not there. Check the path, or mount the disk that holds it.",
)
for name, kind in (("whisper", "transcription"), ("vits", "speech"), ("painter", "image"), ("filmer", "video")):
    LanguageModel.objects.create(name=name, source=f"/models/{name}", kind=kind)
vits = LanguageModel.objects.get(name="vits")
Voice.objects.create(name="Rita", model=vits, reference=b"fLaC", consent="Rita Moreau, on 3 March, for the demos.")
Voice.objects.create(name="narrator", model=vits, speaker="7")
order = {"model": "filmer", "seed": 7, "width": 832, "height": 480, "seconds": 4, "fps": 16, "num_frames": 65}
for status, progress in (("queued", 0), ("failed", 40)):
    error = {"error_code": "out_of_memory", "error_message": "The video is too large."} if progress else {}
    times = {"owner": people["rita"], "not_before": FAR}
    Video.objects.create(prompt="A ship in the rain.", status=status, progress=progress, **times, **order, **error)
found = Feature.objects.filter(sae__name="demo-sae")
rain, sea = list(found.search("rain")[:2]), list(found.search("sea")[:2])
SharedPage.objects.create(feature=rain[0], token="furnished-site-0123456", shared_by=people["rita"])
harbour = services.create_profile(
    name="harbour", model=demo, owner=people["rita"],
    description="Stories by the water: ships, quays and gulls, without the storms that the sea profile brings.",
)
for feature, strength in ((sea[0], 0.6), (sea[1], 0.4)):
    FeatureEdit.objects.create(profile=harbour, feature=feature, strength=strength)
services.publish_profile(profile=harbour, user=people["rita"], note="A first guess.")
harbour.edits.filter(feature=sea[1]).update(strength=0.8)
FeatureEdit.objects.create(profile=harbour, feature=rain[0], operation="clamp", strength=0, phase="generation")
services.publish_profile(profile=harbour, user=people["rita"], note="Less rain, as Otto asked. Tried on 40 prompts.")
harbour.edits.filter(feature=sea[0]).update(strength=0.9)
sharing.share_with_groups(subject=harbour, groups=Group.objects.filter(name="Auditors"), user=people["rita"])
services.create_profile(name="empty-draft", model=demo, owner=root, description="Nothing in it yet.")
old = services.duplicate_profile(profile=SteeringProfile.objects.get(name="sea"), name="old-sea", user=root)
services.publish_profile(profile=old, user=root, note="Before harbour.")
lifecycle.archive_profile(profile=old, user=root)
"""
KEYS = """
from datetime import timedelta
from django.contrib.auth.models import User
from django.utils import timezone
from openai_api.models import ApiKey
from openai_api.keys.services import create_api_key, revoke_api_keys, rotate_api_key

root = User.objects.get(is_superuser=True)
used = create_api_key(
    name="nightly evaluation", owner=root, note="Runs on the cluster; ask Rita.", default_profile="harbour",
    requests_per_minute=600, tokens_per_day=20_000, expires_at=timezone.now() + timedelta(days=3),
)
create_api_key(name="dashboard", owner=User.objects.get(username="otto"), allowed_models=["demo"])
lost = create_api_key(name="lost laptop", owner=User.objects.get(username="rita")).api_key
revoke_api_keys(keys=ApiKey.objects.filter(pk=lost.pk), reason="The laptop was left on a train.", user=root)
turned = create_api_key(name="notebook", owner=root).api_key
rotate_api_key(api_key=turned, grace=timedelta(days=1), user=root)
print(used.plain)
"""
RULES_AND_JOBS = """
from django.contrib.auth.models import User
from openai_api.models import RequestLog
from openai_api.request_log.pages.search import save_search
from openai_api.request_log.replay import start_replay
from steering.profiles import lifecycle
from steering.watch.services import save_rule
from steering.evaluation.services import create_evaluation
from steering.evaluation.params import CalibrationParams, ComparisonParams, SweepParams, Texts
from steering.models import SAE, Feature, ProfileVersion, SteeringPolicy, WatchRule
from steering.sae_registry.jobs import request_measurement

root, rita = User.objects.get(is_superuser=True), User.objects.get(username="rita")
texts = Texts(prompts=("Tell me a story.", "Tell me about a house."), max_tokens=24)
first, second = ProfileVersion.objects.filter(profile__name="harbour").order_by("number")
sweep = SweepParams(second.pk, texts, (0.25, 0.5, 1.0, 1.5, 2.0), ("sea", "ship", "water"))
create_evaluation(params=sweep, owner=rita)
create_evaluation(params=CalibrationParams(second.pk, texts, 0.2), owner=rita)
create_evaluation(params=ComparisonParams(second.pk, first.pk, texts), owner=rita)
create_evaluation(params=ComparisonParams(second.pk, None, texts), owner=root)
for row in RequestLog.objects.filter(profile__startswith="gloomy")[:1]:
    start_replay(row=row, owner=root)
    start_replay(row=row, profile="none", owner=root)
request_measurement(sae=SAE.objects.get(name="demo-sae"), tokens=2000, owner=rita)
feature = Feature.objects.filter(sae__name="demo-sae").search("rain").first()
for name, action, threshold in (("storm", "alert", 0.1), ("dry", "cap", 0.05)):
    save_rule(
        rule=WatchRule(
            name=name, feature=feature, threshold=threshold, action=action, reason="Weather is another team's subject."
        ),
        user=root,
    )
from steering.models import VectorSet
probe = VectorSet.objects.get(name="rain").vectors.get()
save_rule(rule=WatchRule(name="clouds", vector=probe, threshold=1.0, unit="raw", reason="A probe on trial."), user=root)
from jobs.webhooks.models import WebhookEndpoint
from jobs.webhooks.services import create_endpoint, send_test_event
types = ["batch.completed", "job.failed"]
hook = WebhookEndpoint(name="ci", url="https://hooks.invalid/millm", event_types=types, owner=root)
send_test_event(endpoint=create_endpoint(endpoint=hook, user=root).endpoint)
calm = ProfileVersion.objects.filter(profile__name="joyful").first()
policy = SteeringPolicy(version=calm, reason="Public demos stay cheerful.", is_active=False)
lifecycle.save_policy(policy=policy, user=root)
from console.annotations.services import add_comment, create_list, save_to_list
from openai_api.request_log.scores import save_score
otto = User.objects.get(username="otto")
weather = create_list(name="Weather", description="Features and requests for the talk on rain.", user=rita)
logged = RequestLog.objects.filter(profile__startswith="gloomy").first()
for subject, note in ((feature, "Fires on storms, too."), (probe.vector_set, ""), (logged, "Too much rain.")):
    save_to_list(saved_list=weather, subject=subject, note=note, user=rita)
    add_comment(subject=subject, text="Compare it with the sea.\\nIt is close.", user=otto)
save_score(row=logged, value=0, note="Sad, where a story was asked for.", user=otto)
save_score(row=logged, value=0.75, note="", user=otto, name="fluent")
from steering.features.explanations import add_explanation
for text, who in (("bad weather", rita), ("wet things", otto), ("bad weather", otto)):
    add_explanation(feature=feature, text=text, user=who)
from inference.models import LanguageModel
LanguageModel.objects.filter(name="demo").update(input_price=0.1, output_price=0.4)
conditions = {"key": "nightly evaluation", "outcome": "error"}
save_search(owner=root, name="Failures of the nightly run", conditions=conditions)
save_search(owner=rita, name="Harbour", conditions={"profile": "harbour"}, is_shared=True)
"""
ENDED_JOBS = """
from django.contrib.auth.models import User
from jobs.services import cancel_job
from steering.models import SAE
from steering.sae_registry.jobs import request_measurement, request_sae
from steering.sae_registry.registration import SAELocation
from inference.models import LanguageModel

root = User.objects.get(is_superuser=True)
cancel_job(job=request_measurement(sae=SAE.objects.get(name="demo-sae"), tokens=200_000, owner=root))
demo = LanguageModel.objects.get(name="demo")
request_sae(name="missing", model=demo, location=SAELocation("/saes/missing"), owner=root)
"""
