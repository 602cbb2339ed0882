"""Parse and validate the lines of a batch's input file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_LINES = 50_000
MAX_ERRORS = 50
MAX_CUSTOM_ID = 512
# Endpoints where `model` is optional.
WITHOUT_MODEL = frozenset({"/v1/images/generations", "/v1/moderations", "/v1/videos"})


@dataclass(frozen=True, slots=True)
class LineError:
    """An error in the input file. ``line`` counts from 1; None if the error concerns the whole file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request. ``end`` is the offset of the end of its line in the file."""

    number: int
    custom_id: str
    body: bytes
    end: int


@dataclass(frozen=True, slots=True)
class Validation:
    """Result of validating a file. ``model`` is the one of the first request."""

    total: int
    model: str
    errors: tuple[LineError, ...]


class LineRefusedError(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


def validate_lines(path: Path, *, endpoint: str, max_line_bytes: int) -> Validation:
    """Validate the whole file and collect the first errors."""
    errors: list[LineError] = []
    seen: set[str] = set()
    total, model = 0, ""
    for number, raw, _ in _raw_lines(path, max_line_bytes):
        total += 1
        if total > MAX_LINES:
            errors = [LineError("too_many_requests", f"A batch must have at most {MAX_LINES} requests.")]
            break
        try:
            request = read_line(raw, endpoint=endpoint, max_line_bytes=max_line_bytes)
            if request["custom_id"] in seen:
                raise LineRefusedError(
                    "duplicate_custom_id", "`custom_id` must be unique; another line has the same one.", "custom_id"
                )
            seen.add(request["custom_id"])
            model = model or request["body"].get("model") or ""
        except LineRefusedError as error:
            if len(errors) < MAX_ERRORS:
                errors.append(LineError(error.code, error.message, number, error.param))
    if total == 0:
        errors.append(LineError("empty_file", "The file must not be empty."))
    return Validation(total, model[:200], tuple(errors))


def lines_from(path: Path, *, offset: int, number: int, max_line_bytes: int) -> Iterator[BatchLine]:
    """Yield the lines of a validated file from ``offset``, which ``number`` lines precede."""
    for position, raw, end in _raw_lines(path, max_line_bytes, offset=offset, number=number):
        request = json.loads(raw)
        yield BatchLine(position, request["custom_id"], json.dumps(request["body"]).encode(), end)


def read_line(raw: bytes, *, endpoint: str, max_line_bytes: int) -> dict[str, Any]:
    """Parse one line. Raise LineRefusedError if it is invalid."""
    if len(raw) > max_line_bytes:
        raise LineRefusedError("line_too_long", f"A line must have at most {max_line_bytes} bytes.")
    try:
        request = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise LineRefusedError("invalid_json_line", "The line is not a JSON object in UTF-8.") from None
    if not isinstance(request, dict):
        raise LineRefusedError("invalid_json_line", "The line is not a JSON object.")
    _check_fields(request, endpoint)
    return request


def _check_fields(request: dict[str, Any], endpoint: str) -> None:
    custom_id, body = request.get("custom_id"), request.get("body")
    if not (isinstance(custom_id, str) and 0 < len(custom_id) <= MAX_CUSTOM_ID):
        message = f"`custom_id` must be a string of 1 to {MAX_CUSTOM_ID} characters."
        raise LineRefusedError("invalid_custom_id", message, "custom_id")
    try:
        custom_id.encode()
    except UnicodeEncodeError:
        raise LineRefusedError("invalid_custom_id", "`custom_id` is not valid Unicode.", "custom_id") from None
    if request.get("method") != "POST":
        raise LineRefusedError("invalid_method", "`method` must be POST.", "method")
    if request.get("url") != endpoint:
        raise LineRefusedError("invalid_url", f"`url` must be the endpoint of the batch, {endpoint}.", "url")
    if not isinstance(body, dict):
        raise LineRefusedError("invalid_body", "`body` must be an object.", "body")
    has_model = isinstance(body.get("model"), str) and body["model"]
    if not has_model and not (endpoint in WITHOUT_MODEL and body.get("model") is None):
        raise LineRefusedError("missing_required_parameter", "`body.model` must be the name of a model.", "body.model")
    if body.get("stream"):
        raise LineRefusedError("unsupported_parameter", "`body.stream` is not supported in a batch.", "body.stream")
    if body.get("background"):
        message = "`body.background` is not supported in a batch, which already runs in the background."
        raise LineRefusedError("unsupported_parameter", message, "body.background")


def _raw_lines(
    path: Path, max_line_bytes: int, *, offset: int = 0, number: int = 0
) -> Iterator[tuple[int, bytes, int]]:
    """Yield the number, bytes and end offset of each line that is not blank; lines that are too long are cut."""
    with path.open("rb") as file:
        file.seek(offset)
        while raw := file.readline(max_line_bytes + 2):
            number += 1
            rest = raw
            while not rest.endswith(b"\n") and (rest := file.readline(2**20)):
                pass
            if raw.strip():
                yield number, raw.strip(b"\r\n"), file.tell()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON.")
