"""A server without the packages for media answers 501 on each of its routes."""

from __future__ import annotations

import pytest

from openai_api.http.route import Route
from openai_api.keys.scopes import Scope
from openai_api.routes import ROUTES
from tests.openai_api.conftest import Api


@pytest.mark.parametrize(
    "route", [each for each in ROUTES if each.scope is Scope.MEDIA], ids=lambda each: f"{each.method} {each.path}"
)
async def test_it_says_what_to_install(api: Api, route: Route) -> None:
    path = route.plain_path.replace("{video_id}", "video_1")
    response = await api.client.generic(route.method, path, b"{}", content_type="application/json")
    assert (response.status_code, response.json()["error"]["code"]) == (501, "media_not_installed")
    assert "make run MEDIA=1" in response.json()["error"]["message"]
    assert api.log.only.status == 501
