"""What proxies tell."""

from __future__ import annotations

import pytest
from pytest_django.fixtures import Settings

from millm_site.http.hosts import with_forwarded_scheme


def scope(client: str | None, *headers: tuple[bytes, bytes]) -> dict[str, object]:
    return {"type": "http", "scheme": "http", "client": [client, 1] if client else None, "headers": list(headers)}


@pytest.mark.parametrize(
    ("client", "said", "scheme"),
    [
        ("10.0.0.7", b"https", "https"),
        ("10.0.0.7", b"http", "http"),
        ("10.0.0.7", b"javascript", "http"),
        ("192.168.0.7", b"https", "http"),
        ("unix:", b"https", "http"),
        (None, b"https", "http"),
    ],
)
def test_scheme_is_believed_from_trusted_proxies_only(
    settings: Settings, client: str | None, said: bytes, scheme: str
) -> None:
    settings.MILLM_TRUSTED_PROXIES = ("10.0.0.0/8",)
    assert with_forwarded_scheme(scope(client, (b"x-forwarded-proto", said)))["scheme"] == scheme


def test_request_without_the_header_is_left_alone(settings: Settings) -> None:
    settings.MILLM_TRUSTED_PROXIES = ("10.0.0.0/8",)
    plain = scope("10.0.0.7")
    assert with_forwarded_scheme(plain) is plain
