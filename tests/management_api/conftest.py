"""A server with things of several people, and clients of each role."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from openai_api.keys.authentication import snapshot
from openai_api.keys.services import create_api_key
from tests.steering.conftest import (  # noqa: F401 - fixtures
    cold_snapshots,
    feature,
    model,
    other_model,
    other_sae,
    profile,
    sae,
)


@dataclass
class Api:
    """/api for one user, with a key."""

    user: User
    headers: dict[str, str]
    client: Client

    def __call__(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        data = body if isinstance(body, str | bytes) else json.dumps(body or {})
        send = getattr(self.client, method.lower())
        options: dict[str, Any] = {"headers": self.headers}
        if method in {"GET", "DELETE"}:
            return send(f"/api/{path}", query, **options)
        return send(f"/api/{path}", data, content_type="application/json", **options)

    def get(self, path: str, **query: Any) -> Any:
        return self("GET", path, **query)

    def post(self, path: str, body: Any = None) -> Any:
        return self("POST", path, body)

    def found(self, path: str, **query: Any) -> list[Any]:
        """The rows of a list that is not refused."""
        response = self.get(path, **query)
        assert response.status_code == 200, response.content
        rows: list[Any] = response.json()["data"]
        return rows


def make_user(name: str, *groups: str, **fields: Any) -> User:
    user = User.objects.create_user(name, **{"is_staff": True, **fields})
    user.groups.set(Group.objects.filter(name__in=groups))
    return user


def api_of(user: User) -> Api:
    created = create_api_key(name=f"{user}'s", owner=user, scopes=["manage"])
    snapshot.forget()
    return Api(user, {"Authorization": f"Bearer {created.plain}"}, Client())


def refusal(response: Any) -> tuple[int, str | None, str | None]:
    """Status, code and param of the contract's body."""
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return response.status_code, error["code"], error["param"]


@pytest.fixture(autouse=True)
def cold_keys() -> Iterator[None]:
    snapshot.forget()
    yield
    snapshot.forget()


@pytest.fixture
def admin_api(db: None) -> Api:
    return api_of(make_user("ada", "Admins"))


@pytest.fixture
def researcher_api(db: None) -> Api:
    return api_of(make_user("rita", "Researchers"))


@pytest.fixture
def auditor_api(db: None) -> Api:
    return api_of(make_user("aldo", "Auditors"))
