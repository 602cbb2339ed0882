"""Request bodies: the same strict JSON as of /v1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from django.conf import settings
from rest_framework.parsers import BaseParser

from openai_api.http.errors import invalid_json, request_too_large
from openai_api.http.json_body import parse_json


class StrictJSONParser(BaseParser):
    """Refuses NaN, halves of surrogate pairs and deep nesting; an absent body is an empty object."""

    media_type = "application/json"

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        limit: int = settings.MILLM_MAX_BODY_BYTES
        body = stream.read(limit + 1)
        if len(body) > limit:
            raise request_too_large(limit)
        value = parse_json(body) if body.strip() else {}
        if not isinstance(value, dict):
            raise invalid_json("The body must be a JSON object.")
        return value
