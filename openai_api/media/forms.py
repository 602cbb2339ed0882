"""Multipart forms of media endpoints: files, numbers and booleans as text, and arrays as repeated fields."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, ParamSpec, TypeVar, get_args, get_origin

from django.conf import settings
from pydantic import ConfigDict

from openai_api.http.call import Call
from openai_api.http.errors import invalid
from openai_api.http.file_uploads import FilesForm, SentFile, check_multipart, read_files
from openai_api.schemas.base import RequestSchema

P = ParamSpec("P")
T = TypeVar("T")
_threads = ThreadPoolExecutor(4, thread_name_prefix="media-forms")


class FormSchema(RequestSchema):
    """The text fields of a multipart form."""

    model_config = ConfigDict(strict=False, extra="ignore", frozen=True, allow_inf_nan=False)

    @classmethod
    def body_of(cls, form: FilesForm) -> dict[str, Any]:
        """Return the fields as a body; of a field that is not an array, the last value counts."""
        lists = {name for name, field in cls.model_fields.items() if _is_list(field.annotation)}
        return {name: list(values) if name in lists else values[-1] for name, values in form.fields.items()}


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list or any(get_origin(kind) is list for kind in get_args(annotation))


async def read_media_form(call: Call, stack: ExitStack, most: Mapping[str, int]) -> FilesForm:
    """Read a form. ``most``: the number of files by field. They are deleted with ``stack``. Raises MillmError."""
    check_multipart(call)
    limit = settings.MILLM_MAX_MEDIA_BYTES
    return await in_media_thread(read_files, call.request, stack, most=most, max_bytes=limit)


async def in_media_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run work on files in a pool of its own, so that it does not delay tokenizers, which use the default pool."""
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(work, *args, **kwargs))


def form_schema(schema: type[FormSchema], *, file: str, more_files: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return the JSON schema of a form for the OpenAPI document. ``more_files`` are optional."""
    found = schema.model_json_schema()
    found = _inlined(found, found.get("$defs", {}))
    binary = {"type": "string", "format": "binary"}
    return {
        "type": "object",
        "required": [file, *found.get("required", ())],
        "properties": {**dict.fromkeys((file, *more_files), binary), **found["properties"]},
        "x-millm-refused": sorted(schema.REFUSED),
    }


def _inlined(value: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a JSON schema with definitions in place of references to them."""
    if isinstance(value, list):
        return [_inlined(item, definitions) for item in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        return _inlined(definitions[value["$ref"].removeprefix("#/$defs/")], definitions)
    return {name: _inlined(item, definitions) for name, item in value.items()}


def one_file(form: FilesForm, name: str) -> SentFile:
    """Return the file of a field. Raises MillmError 400."""
    files = form.files.get(name, ())
    if not files:
        message = f"`{name}` is required and must be a file with a name."
        raise invalid(message, param=name, code="missing_required_parameter")
    return files[0]


def last_value(form: FilesForm, name: str) -> str:
    values = form.fields.get(name)
    return values[-1] if values else ""
