"""Every other path under /v1."""

from __future__ import annotations

from django.http.response import HttpResponseBase

from openai_api.http.call import Call
from openai_api.http.endpoint import endpoint
from openai_api.http.errors import unknown_url


async def refuse_url(call: Call) -> HttpResponseBase:
    raise unknown_url(call.request.method or "", call.request.path)


unknown = endpoint("/v1/*", ANY=refuse_url)
