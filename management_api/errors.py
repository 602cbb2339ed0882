"""Error responses in the same format as /v1: ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from django.core.exceptions import PermissionDenied as DjangoPermissionDenied
from django.core.exceptions import ValidationError as ModelError
from django.db.models import ProtectedError
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

from core.errors import MillmError, quote
from openai_api.http.errors import MAX_PROBLEMS, conflict, error_headers, forbidden, invalid, openai_error, wrong_key
from openai_api.http.errors import method_not_allowed as method_refused

logger = logging.getLogger(__name__)
_CODES = {
    "required": "missing_required_parameter",
    "invalid_type": "invalid_type",
    "unknown_parameter": "unknown_parameter",
}
_GENERAL = "non_field_errors"


def render_error(error: Exception, context: dict[str, Any]) -> Response | None:
    """Return the response to an exception (DRF's hook). None leaves it to the site's handler, which logs the cause.

    Unlike /v1, error messages of the management API may contain paths: its users register models and SAEs by path.
    """
    found = error if isinstance(error, MillmError) else _framework_error(error, context)
    if found is None:
        return None
    set_rollback()
    body = openai_error(found, names_files=True)
    return Response(body, status=found.status, headers=error_headers(found))


def _framework_error(error: Exception, context: dict[str, Any]) -> MillmError | None:
    match error:
        case exceptions.ValidationError():
            return _invalid(list(_problems(error.detail)))
        case exceptions.NotAuthenticated() | exceptions.AuthenticationFailed():
            return wrong_key()
        case exceptions.PermissionDenied() | DjangoPermissionDenied():
            code = getattr(error, "default_code", "permission_denied")
            code = code if isinstance(code, str) else "permission_denied"
            return forbidden(str(error), code=code, param=getattr(error, "param", None))
        case Http404() | exceptions.NotFound():
            return not_found()
        case exceptions.MethodNotAllowed():
            return method_refused(context["request"].method, sorted(context["view"].allowed_methods))
        case exceptions.UnsupportedMediaType():
            types = " or ".join(parser.media_type for parser in context["view"].parser_classes)
            return MillmError(f"Send `Content-Type: {types}`.", status=415, code="unsupported_media_type")
        case exceptions.NotAcceptable():
            return MillmError("Responses are application/json.", status=406, code="not_acceptable")
        case ModelError():
            return _invalid(list(_model_problems(error)))
        case ProtectedError():
            names = ", ".join(str(row) for row in list(error.protected_objects)[:3])
            return conflict(f"It cannot be deleted because it is used by {names}.", code="in_use")
    return None


def not_found() -> MillmError:
    """Return the same error for objects that do not exist and for those that the caller may not see."""
    return MillmError("The object does not exist, or you do not have access to it.", status=404, code="not_found")


def _invalid(problems: list[tuple[str, str, str]]) -> MillmError:
    """Return one 400 for all problems, with ``param`` and ``code`` of the first."""
    lines = [f"{path}: {text}" if path else text for path, text, _ in problems[:MAX_PROBLEMS]]
    path, _, code = problems[0]
    return invalid(" ".join(lines), param=quote(path) or None, code=_CODES.get(code, "invalid_value"))


def _problems(detail: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the path, message and code of each problem in DRF's nested structure."""
    if isinstance(detail, dict):
        for name, inner in detail.items():
            part = "" if name == _GENERAL else f"[{name}]" if isinstance(name, int) else str(name)
            yield from _problems(
                inner, f"{path}.{part}" if path and part and not isinstance(name, int) else path + part
            )
    elif isinstance(detail, list):
        for number, inner in enumerate(detail):
            yield from _problems(inner, path if isinstance(inner, str) else f"{path}[{number}]" if inner else path)
    else:
        text = str(detail)
        yield path, text if not path else text[:1].lower() + text[1:], getattr(detail, "code", "invalid")


def _model_problems(error: ModelError) -> Iterator[tuple[str, str, str]]:
    if hasattr(error, "error_dict"):
        for name, messages in error.message_dict.items():
            yield from (("" if name == "__all__" else name, message, "invalid") for message in messages)
    else:
        yield from (("", message, "invalid") for message in error.messages)
