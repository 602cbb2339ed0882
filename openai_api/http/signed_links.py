"""Links to files that need no key, because an `<img>` cannot send one: signed, and valid for a limited time."""

from __future__ import annotations

import math
from urllib.parse import urlencode

from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone
from django.utils.crypto import constant_time_compare, salted_hmac

from core.errors import MillmError
from openai_api.http.errors import forbidden
from storage.models import StoredFile

SALT = "openai_api.http.signed_links"


def signed_link(file: StoredFile) -> str:
    """Return a link to the content of a file that expires, valid as long as the file."""
    assert file.expires_at is not None
    expires = str(math.floor(file.expires_at.timestamp()))
    query = urlencode({"expires": expires, "signature": _signature(file.public_id, expires)})
    return f"{settings.MILLM_PUBLIC_URL}/v1/files/{file.public_id}/content?{query}"


def is_signed(request: HttpRequest, file_id: str) -> bool:
    """Return whether the request's link is signed. Raises MillmError 403 for a wrong signature, 410 for an old link."""
    if "signature" not in request.GET:
        return False
    expires = request.GET.get("expires", "")
    if not constant_time_compare(request.GET["signature"], _signature(file_id, expires)):
        raise forbidden("The signature of this link is wrong. Use the link as the server sent it.", code="invalid_link")
    if int(expires) <= timezone.now().timestamp():
        raise MillmError("This link has expired. Create the image again.", status=410, code="link_expired")
    return True


def _signature(file_id: str, expires: str) -> str:
    return salted_hmac(SALT, f"{file_id} {expires}", algorithm="sha256").hexdigest()
