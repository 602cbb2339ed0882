"""One document for /v1 and /api, and what /api answers agrees with it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from management_api.openapi import document
from management_api.urls import router
from openai_api.neuronpedia.routes import ROUTES as NEURONPEDIA_ROUTES
from steering import services
from steering.models import ProfileVersion, SteeringProfile
from tests.management_api.conftest import Api

NEURONPEDIA = {route.plain_path for route in NEURONPEDIA_ROUTES}
DOCS = (Path(__file__).parents[2] / "docs" / "management-api.md").read_text()


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return document()


def operation(described: dict[str, Any], method: str, path: str) -> dict[str, Any]:
    found: dict[str, Any] = described["paths"][path][method]
    return found


def validate(described: dict[str, Any], method: str, path: str, status: int, body: Any) -> None:
    schema = operation(described, method, path)["responses"][str(status)]["content"]["application/json"]["schema"]
    Draft202012Validator({**schema, "components": described["components"]}).validate(body)


def test_both_are_described(described):
    assert "/v1/chat/completions" in described["paths"]
    assert "/api/profiles/{id}/publish" in described["paths"]
    assert described["openapi"].startswith("3.1")


def path_of(action: Any) -> str:
    """Return the path of an action, with the names of its parts that vary."""
    return re.sub(r"\(\?P<(\w+)>[^)]*\)", r"{\1}", action.url_path)


def test_every_act_of_every_resource_is_described(described):
    for prefix, resource, _ in router.registry:
        paths = [path for path in described["paths"] if path.split("/")[1:3] == ["api", prefix]]
        assert f"/api/{prefix}" in paths
        for action in resource.get_extra_actions():
            assert any(path.endswith(f"/{path_of(action)}") for path in paths), f"{prefix}: {path_of(action)}"


def test_every_operation_tells_of_refusals_and_of_who_may(described):
    for path, item in described["paths"].items():
        if not path.startswith("/api/") or path in NEURONPEDIA:
            continue
        for method, each in item.items():
            assert {"400", "401", "403", "404"} <= each["responses"].keys(), f"{method} {path}"
            assert each["security"] == [{"bearer": []}, {"session": []}]
            assert each["tags"]


def test_operation_ids_are_unique(described):
    ids = [
        each["operationId"] for item in described["paths"].values() for each in item.values() if "operationId" in each
    ]
    assert len(ids) == len(set(ids))


def test_answers_match_it(described, researcher_api: Api, profile: SteeringProfile, sae: Any):
    version: ProfileVersion = services.publish_profile(profile=profile)
    for path, address in (
        ("/api/profiles", "profiles"),
        ("/api/profiles/{id}", f"profiles/{profile.pk}"),
        ("/api/versions", "versions"),
        ("/api/versions/{id}", f"versions/{version.pk}"),
        ("/api/saes", "saes"),
        ("/api/saes/{id}", f"saes/{sae.pk}"),
        ("/api/features", "features"),
        ("/api/models", "models"),
        ("/api/keys", "keys"),
        ("/api/jobs", "jobs"),
        ("/api/evaluations", "evaluations"),
        ("/api/vectors", "vectors"),
    ):
        validate(described, "get", path, 200, researcher_api.get(address).json())
    validate(described, "get", "/api/profiles/{id}", 404, researcher_api.get("profiles/0").json())
    exported = researcher_api.get(f"versions/{version.pk}").json()
    assert exported["number"] == 1
    document_of_profile = researcher_api.get(f"profiles/{profile.pk}/export").json()
    body = {"model": profile.model_id, "file_name": "x.json", "text": json.dumps(document_of_profile), "name": "again"}
    imported = researcher_api.post("profiles/import", body)
    validate(described, "post", "/api/profiles/import", 201, imported.json())
    job = researcher_api.post(f"versions/{version.pk}/sweep", {"prompts": ["Hi."]})
    validate(described, "post", "/api/versions/{id}/sweep", 202, job.json())


def test_reviews_are_a_list_as_described(described, researcher_api: Api, profile: SteeringProfile, settings: Any):
    settings.MILLM_PROFILE_REVIEW = True
    path = f"profiles/{profile.pk}"
    for note in ("first", "second"):
        assert researcher_api.post(f"{path}/request_review", {"note": note}).status_code == 201
        profile.reviews.filter(state="open").update(state="rejected")
    whole = researcher_api.get(f"{path}/reviews").json()
    validate(described, "get", "/api/profiles/{id}/reviews", 200, whole)
    assert [row["note"] for row in whole["data"]] == ["second", "first"]
    page = researcher_api.get(f"{path}/reviews?limit=1").json()
    rest = researcher_api.get(f"{path}/reviews?limit=1&cursor={page['next']}").json()
    assert [row["note"] for row in page["data"] + rest["data"]] == ["second", "first"]
    assert researcher_api.get(f"{path}/reviews?limit=0").status_code == 400


def test_every_code_in_the_sources_is_documented():
    folder = Path(__file__).parents[2] / "management_api"
    sources = "\n".join(path.read_text() for path in folder.rglob("*.py"))
    codes = set(re.findall(r'(?<!error_)(?<!default_)code ?= ?"(\w+)"', sources))
    documented = set(re.findall(r"`(\w+)`", DOCS.split("## Errors")[1]))
    assert codes <= documented


def test_every_resource_and_act_is_documented():
    table = DOCS.split("## Resources")[1].split("## ")[0]
    for prefix, resource, _ in router.registry:
        line = next(line for line in table.splitlines() if line.startswith(f"| `{prefix}`"))
        for action in resource.get_extra_actions():
            path = path_of(action)
            assert f"`{path}`" in line or f"{prefix}/{path}`" in line, f"{prefix}: {path}"


def test_the_document_is_json(described):
    assert json.loads(json.dumps(described)) == described
