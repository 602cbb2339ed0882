"""The way to a stored file's page, by the file's name."""

from __future__ import annotations

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from storage.models import StoredFile


def file_link(file: StoredFile) -> SafeString:
    return format_html('<a href="{}">{}</a>', reverse("admin:storage_storedfile_change", args=[file.pk]), file.filename)
