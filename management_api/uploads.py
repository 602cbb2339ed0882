"""Multipart forms of /api: files are written to MILLM_HOME while they are read, and never held in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import IO, Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler
from django.http import HttpRequest
from rest_framework import serializers
from rest_framework.exceptions import ParseError
from rest_framework.parsers import MultiPartParser

from management_api.viewset import Resource
from openai_api.http.errors import invalid


class IncomingFiles(FileUploadHandler):
    """Writes each file to a temporary one in MILLM_HOME, which is deleted when it is closed."""

    chunk_size = 2**18

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        folder = settings.MILLM_HOME / "incoming"
        folder.mkdir(parents=True, exist_ok=True)
        suffix = PurePath(str(self.file_name)).suffix[:20]
        opened = tempfile.NamedTemporaryFile(dir=folder, suffix=suffix)  # noqa: SIM115 - closed with the request
        self.file = UploadedFile(opened, self.file_name, self.content_type, 0, self.charset)

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        self.file.write(raw_data)

    def file_complete(self, file_size: int) -> UploadedFile:  # type: ignore[type-arg]  # it takes none at run time
        self.file.flush()
        self.file.seek(0)
        self.file.size = file_size
        return self.file


class FormParser(MultiPartParser):
    """Parses a form. Raises MillmError 400 for a malformed one."""

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        try:
            return super().parse(stream, media_type, parser_context)
        except (ParseError, SuspiciousOperation, RequestDataTooBig) as error:
            message = "The body is not a valid multipart form, or has too many parts."
            raise invalid(message, code="invalid_multipart") from error


class UploadResource(Resource):
    """A resource some of whose actions, ``uploads``, take a multipart form instead of JSON."""

    uploads: frozenset[str] = frozenset()

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Choose parser and upload handlers, before anything reads the form."""
        if self.action_map and self.action_map.get((request.method or "").lower()) in self.uploads:
            self.parser_classes = (FormParser,)  # type: ignore[assignment]  # of this request alone
            request.upload_handlers = [IncomingFiles(request)]
        return super().initialize_request(request, *args, **kwargs)


class SentFile(serializers.FileField):
    """A file with a plain name."""

    def to_internal_value(self, data: Any) -> Any:
        sent = super().to_internal_value(data)
        if not _is_plain(str(sent.name)):
            message = "the file's name must consist of letters, digits and . _ + -, and start with a letter or digit."
            raise serializers.ValidationError(message)
        return sent


def _is_plain(name: str) -> bool:
    return len(name) <= 100 and name[:1].isalnum() and name.isascii() and all(c.isalnum() or c in "._+-" for c in name)


def opener(sent: Any) -> Callable[[], IO[bytes]]:
    """Return a function that opens the temporary file of a sent file from its start."""
    path = Path(sent.file.name)
    return lambda: path.open("rb")


def form(kind: type[serializers.Serializer[Any]]) -> Any:
    """Describe a multipart body for the OpenAPI document."""
    return {"multipart/form-data": kind}
