"""CORS: the origins whose pages may call the API from a browser, and the headers that they may send and read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

MIDDLEWARE = "corsheaders.middleware.CorsMiddleware"
NEURONPEDIA = "feature|activation|search-all|search-topk-by-token|explanation|steer|steer-chat"  # below /api
API_ROOTS = f"v1|v2|openai|ollama|tokenize|detokenize|tokenizer_info|rerank|score|api/(?:{NEURONPEDIA})"
API_PATHS = rf"^/({API_ROOTS})(/|$)"
DEFAULT_PORTS = {"http": 80, "https": 443}
HOST = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?|[0-9a-f:.]+:[0-9a-f:.]*")
ORIGIN = re.compile(r"https?://[^/\s?#@*]+")
REQUEST_HEADERS = (
    "accept",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "anthropic-version",
    "api-key",
    "authorization",
    "content-type",
    "openai-organization",
    "openai-project",
    "user-agent",
    "x-api-key",
    "x-client-request-id",
    "x-millm-profile",
    # what the official clients add to each request
    "x-stainless-arch",
    "x-stainless-async",
    "x-stainless-helper-method",
    "x-stainless-lang",
    "x-stainless-os",
    "x-stainless-package-version",
    "x-stainless-retry-count",
    "x-stainless-runtime",
    "x-stainless-runtime-version",
    "x-stainless-timeout",
)
RESPONSE_HEADERS = (
    "openai-processing-ms",
    "request-id",
    "retry-after",
    "x-millm-ignored-fields",
    "x-millm-policies",
    "x-millm-profile",
    "x-millm-steering",
    "x-ratelimit-limit-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-requests",
    "x-ratelimit-reset-tokens",
    "x-request-id",
    "x-should-retry",
)


def public_origin(url: str) -> str:
    """Return the origin of a server's URL as browsers write it. Raise ValueError for anything but an origin."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"is not an address such as https://models.example.com: {error}") from None
    host = (parts.hostname or "").lower().removesuffix(".")
    if (
        parts.scheme not in DEFAULT_PORTS
        or not HOST.fullmatch(host)
        or parts.username is not None
        or url != url.strip()
    ):
        raise ValueError("is not an address such as https://models.example.com, with http or https")
    if parts.path not in {"", "/"} or parts.query or parts.fragment or url.endswith(("?", "#")):
        raise ValueError(
            "must have no path and no query: pages of the console link to each other from the root of their host. Give "
            "the server a host name of its own"
        )
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{port}" if port not in {None, DEFAULT_PORTS[parts.scheme]} else "")


def is_origin(value: str) -> bool:
    """Return whether ``value`` is ``*`` or consists of a scheme, a host and an optional port only."""
    return value == "*" or ORIGIN.fullmatch(value) is not None


def cors_middleware(origins: Sequence[str]) -> list[str]:
    """Return the CORS middleware; empty without allowed origins, so that requests to /v1 pass fewer middlewares."""
    return [MIDDLEWARE] if origins else []
