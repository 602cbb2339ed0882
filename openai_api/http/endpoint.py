"""The wrapper of every /v1 handler: key, limits, errors, headers, and exactly one log row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pydantic_core
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from core.errors import MillmError
from openai_api.backend import get_backend
from openai_api.http.call import Call
from openai_api.http.errors import (
    anthropic_error,
    client_error,
    error_headers,
    method_not_allowed,
    openai_error,
    speaks_anthropic,
)
from openai_api.keys.authentication import authenticate, prefix_of, presented_key
from openai_api.keys.record import KeyRecord
from openai_api.keys.scopes import Scope, check_scope

Handler = Callable[..., Coroutine[Any, Any, HttpResponseBase]]
View = Handler
ErrorBody = Callable[[MillmError], object]
LinkCheck = Callable[..., bool]


def endpoint(
    name: str,
    *,
    scope: Scope | None,
    error_body: ErrorBody = openai_error,
    link_check: LinkCheck | None = None,
    **handlers: Handler,
) -> View:
    """Return a view that dispatches each HTTP method to its handler, with the :class:`Call` and the URL's values.

    ``name`` is the endpoint in the log, ``scope`` what a key needs, ``error_body`` the form of errors. GET also serves
    HEAD; ANY serves all methods without a handler of their own. ``link_check`` returns whether a request's link, with
    the URL's values, allows it without a key; it may raise MillmError. A ``deployment`` in the URL names the model.
    """

    async def view(request: HttpRequest, **values: Any) -> HttpResponseBase:
        call = Call(request, name, deployment=values.pop("deployment", ""))
        return await _finished(call, _answer(call, scope, handlers, values, error_body, link_check))

    return csrf_exempt(view)


async def respond_as(call: Call, key: KeyRecord | None, handler: Handler) -> HttpResponseBase:
    """Run a handler for a request that was authenticated elsewhere, such as by a console session. May stream."""

    async def work() -> HttpResponseBase:
        call.enter()
        await call.admit(key)
        return await handler(call)

    return await _finished(call, _guarded(call, work))


async def _finished(call: Call, answer: Coroutine[Any, Any, HttpResponseBase]) -> HttpResponseBase:
    """Add the headers to the response and close the call. A stream closes the call itself, at its end."""
    try:
        response = await answer
    except asyncio.CancelledError:
        call.leave()
        call.close()
        raise
    call.status = response.status_code
    for header, value in call.headers().items():
        response.headers[header] = value
    if not response.streaming:
        call.close()
    return response


def json_response(body: object, status: int = 200) -> HttpResponse:
    return HttpResponse(pydantic_core.to_json(body), status=status, content_type="application/json")


async def _answer(
    call: Call,
    scope: Scope | None,
    handlers: Mapping[str, Handler],
    values: dict[str, Any],
    error_body: ErrorBody,
    link_check: LinkCheck | None,
) -> HttpResponseBase:
    async def work() -> HttpResponseBase:
        call.enter()
        call.key_prefix = prefix_of(presented_key(call.request) or "")  # a refused request may hold a revoked key
        if link_check is not None and link_check(call.request, **values):
            await call.admit(None)
        else:
            await call.admit(await authenticate(call.request, get_backend().keys))
            check_scope(call.key, scope, call.endpoint)
        return await _handler_for(call.request.method or "", handlers)(call, **values)

    return await _guarded(call, work, error_body)


async def answer_as(
    call: Call, key: KeyRecord | None, handler: Handler, *, scope: Scope = Scope.GENERATE
) -> HttpResponseBase:
    """Run a handler that needs ``scope``, for a request that this server makes itself, with the rights of ``key``."""

    async def work() -> HttpResponseBase:
        call.enter()
        await call.admit(key)
        check_scope(key, scope, call.endpoint)
        return await handler(call)

    try:
        response = await _guarded(call, work)
        call.status = response.status_code
    except asyncio.CancelledError:
        call.leave()
        raise
    finally:
        call.close()
    return response


async def _guarded(
    call: Call,
    work: Callable[[], Coroutine[Any, Any, HttpResponseBase]],
    error_body: ErrorBody = openai_error,
) -> HttpResponseBase:
    """Return the response of ``work``, or its error as a response."""
    try:
        return await work()
    except Exception as error:  # noqa: BLE001 - the last resort is a 500 with its log line
        return _error_response(call, client_error(error, call.id), error_body)


def _handler_for(method: str, handlers: Mapping[str, Handler]) -> Handler:
    handler = handlers.get("GET" if method == "HEAD" else method, handlers.get("ANY"))
    if handler is None:
        raise method_not_allowed(method, sorted(handlers))
    return handler


def _error_response(call: Call, error: MillmError, error_body: ErrorBody) -> HttpResponse:
    call.refuse(error)
    form = anthropic_error if speaks_anthropic(call.request) else error_body
    response = json_response(form(error), error.status)
    for header, value in error_headers(error).items():
        response.headers[header] = value
    return response
