"""The database before the first request, and what the server says."""

from __future__ import annotations

import json
import shlex
from io import StringIO
from pathlib import Path

import pytest
from django.contrib.auth import authenticate, get_user_model
from pytest_django.fixtures import Settings

from console.first_steps import curl
from millm_site.first_run import Login, ensure_superuser, keep_first_password, welcome
from millm_site.management.commands.serve import Command

URL = "http://127.0.0.1:8000"


@pytest.mark.django_db
def test_first_superuser_gets_a_random_password_once() -> None:
    login = ensure_superuser()
    assert len(login.password) >= 12
    assert authenticate(username=login.user, password=login.password) is not None
    assert ensure_superuser() == Login(login.user, password="")
    assert get_user_model().objects.filter(is_superuser=True).count() == 1


@pytest.mark.django_db
def test_given_password_is_used_and_not_shown(settings: Settings) -> None:
    settings.MILLM_ADMIN_USER, settings.MILLM_ADMIN_PASSWORD = "root", "given-password-1"
    assert ensure_superuser() == Login("root", password="")
    assert authenticate(username="root", password="given-password-1") is not None


@pytest.mark.django_db
def test_deactivated_superuser_does_not_count() -> None:
    get_user_model().objects.create_superuser("gone", "", "x", is_active=False)
    assert ensure_superuser().user == "admin"


def test_curl_line_is_one_shell_command_whose_answer_can_be_read(settings: Settings) -> None:
    settings.MILLM_AUTH = "loopback"
    words = shlex.split(curl(URL, profile="gloomy"))
    body = json.loads(words[words.index("-d") + 1])
    assert words[0] == "curl"
    assert f"{URL}/v1/chat/completions" in words
    assert (body["model"], body.get("stream"), body["profile"]) == ("demo", None, "gloomy")


def test_welcome_shows_addresses_login_and_both_requests(settings: Settings) -> None:
    settings.MILLM_AUTH = "loopback"
    text = welcome(URL, Login("admin", "s3cret"))
    for part in (f"{URL}/admin/", f"{URL}/v1", f"{URL}/docs", "admin", "s3cret", '"profile":"gloomy"'):
        assert part in text
    assert text.count("  curl http") == 2
    assert "API_KEY" not in text


def test_a_password_that_nobody_watches_for_is_in_a_file(tmp_path: Path) -> None:
    file = keep_first_password("s3cret", tmp_path)
    file.chmod(0o644)
    assert keep_first_password("s3cret-2", tmp_path) == file  # of a second try; never through somebody else's file
    assert file.read_text() == "s3cret-2\n"
    assert file.stat().st_mode & 0o777 == 0o600
    text = welcome(URL, Login("admin", "s3cret-2"), password_file=file)
    assert "s3cret" not in text
    assert str(file) in text


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_serve_shows_a_password_on_a_terminal_only(tmp_path: Path, settings: Settings) -> None:
    settings.MILLM_HOME = tmp_path
    login = Login("admin", "s3cret")
    assert Command(stdout=Terminal())._hidden_password(login) is None
    assert Command(stdout=StringIO())._hidden_password(Login("admin", "")) is None
    assert Command(stdout=StringIO())._hidden_password(None) is None
    assert list(tmp_path.iterdir()) == []
    file = Command(stdout=StringIO())._hidden_password(login)
    assert file == tmp_path / "first_password"
    assert file.read_text() == "s3cret\n"


def test_welcome_tells_how_to_get_a_key_where_one_is_needed(settings: Settings) -> None:
    settings.MILLM_AUTH = "required"
    assert welcome(URL, None).count("$MILLM_API_KEY") == 2


def test_welcome_shows_the_public_address_and_the_one_listened_on(settings: Settings) -> None:
    settings.MILLM_PUBLIC_URL = "https://models.example.com"
    text = welcome(URL, None)
    assert text.startswith(f"miLLM serves on {URL}\n")
    assert "https://models.example.com/admin/" in text
    assert text.count("curl https://models.example.com/v1/") == 2
    assert text.count(URL) == 1


def test_known_password_is_not_repeated(settings: Settings) -> None:
    assert "password as set before" in welcome(URL, Login("admin", ""))
