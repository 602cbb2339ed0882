"""A route of the API: one method of one path, with everything that the rest of the server derives from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from django.urls import URLPattern, re_path

from openai_api.http.endpoint import ErrorBody, Handler, LinkCheck, endpoint
from openai_api.http.errors import openai_error
from openai_api.http.sse import EVENT_STREAM
from openai_api.keys.scopes import Scope
from openai_api.schemas.base import ListQuery, RequestSchema

_ROOT = re.compile(r"^/(?:(?:v1|api)/)?")  # what the patterns are relative to
_PARAMETER = re.compile(r"\{(\w+)(:path)?\}")
Schema = Mapping[str, Any]
Method = Literal["GET", "POST", "DELETE"]


@dataclass(frozen=True, slots=True)
class Route:
    """``{id}`` in the path matches up to the next slash, ``{id:path}`` may contain slashes.

    The URL pattern, the endpoint's name in the request log, the key scope and the operation of the OpenAPI document are
    derived from it. ``name`` and ``summary`` are those of the operation.
    """

    method: Method
    path: str
    handler: Handler
    name: str
    summary: str
    tag: str
    response: type[Any]  # ``bytes`` for a file, ``dict`` for any object
    request: type[RequestSchema] | None = None
    form: Schema | None = None  # the schema of a multipart body
    query: type[ListQuery] | Sequence[Schema] = ()  # parameters of the query string
    events: type[Any] | None = None  # of the response as a stream
    event_type: str = EVENT_STREAM  # the stream's media type
    returns: str = "The answer."
    errors: tuple[int, ...] = ()  # statuses beyond those that every such request may get
    is_steered: bool = False  # accepts the header with a profile
    scope: Scope | None = Scope.GENERATE  # which a key needs; None: any key
    error_body: ErrorBody = openai_error
    link_check: LinkCheck | None = None  # whether the link of a request allows it without a key
    log_name: str = ""  # in the request log, if not the path with ``{id}`` for every parameter that ends in ``_id``
    alias: str = ""  # an optional prefix under which other servers have the route
    is_at_root: bool = False  # also served without /v1, where clients know it from other servers
    is_deployed: bool = False  # also served under /openai/deployments/{deployment}, as by Azure OpenAI

    @property
    def endpoint(self) -> str:
        """Return the name in the request log."""
        return self.log_name or _PARAMETER.sub(
            lambda match: "{id}" if match[1].endswith("_id") else f"{{{match[1]}}}", self.path
        )

    @property
    def parameters(self) -> list[str]:
        """Return the names of the path's parameters."""
        return [match[1] for match in _PARAMETER.finditer(self.path)]

    @property
    def plain_path(self) -> str:
        """Return the path as OpenAPI writes it."""
        return _PARAMETER.sub(r"{\1}", self.path)


def by_path(routes: Iterable[Route]) -> dict[str, list[Route]]:
    """Group routes by path, in their order."""
    found: dict[str, list[Route]] = {}
    for route in routes:
        found.setdefault(route.path, []).append(route)
    return found


def url_patterns(routes: Iterable[Route]) -> list[URLPattern]:
    """Return one URL pattern, relative to /v1, /api or the root, for each path; a trailing slash is accepted."""
    return [_url_pattern(group) for group in by_path(routes).values()]


def deployment_patterns(routes: Iterable[Route]) -> list[URLPattern]:
    """Return the URL patterns of deployments, relative to /openai: the URL names the model, as in Azure OpenAI."""
    deployed = by_path(route for route in routes if route.is_deployed)
    return [_url_pattern(group, r"deployments/(?P<deployment>[^/].*?)/") for group in deployed.values()]


def _url_pattern(routes: Sequence[Route], start: str = "") -> URLPattern:
    first = routes[0]
    path = _ROOT.sub("", first.path, count=1)
    pattern = _PARAMETER.sub(lambda match: f"(?P<{match[1]}>{'.+?' if match[2] else '[^/]+'})", path)
    prefix = f"(?:{first.alias}/)?" if first.alias else ""
    handlers = {route.method: route.handler for route in routes}
    view = endpoint(
        first.endpoint, scope=first.scope, error_body=first.error_body, link_check=first.link_check, **handlers
    )
    return re_path(rf"^{start}{prefix}{pattern}/?\Z", view, name=re.sub(r"[^a-z]+", "-", path).strip("-"))
