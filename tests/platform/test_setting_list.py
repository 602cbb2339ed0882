"""The console's page of the settings: values, where they come from, and no secrets."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path

import pytest
from django.contrib.auth.models import Group, User

from millm_site import setting_list
from millm_site.env import Environment
from millm_site.options import apply_setting_options
from millm_site.setting_list import SettingValue, setting_docs, setting_values, text_of
from tests.console.test_pages import client_of, staff
from tests.live import clean_environment

URL = "/admin/settings/"
SECRET = "a-secret-of-the-tests-0123456789"
LOOKS_SECRET = re.compile(r"password|secret|_key$|_token$|database_url")


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variables but those that the test sets."""
    for name in os.environ.keys() - clean_environment().keys():
        monkeypatch.delenv(name)


def values(env: Environment) -> dict[str, SettingValue]:
    return {each.doc.name: each for each in setting_values(env)}


@pytest.mark.usefixtures("plain")
def test_sources_are_named_in_their_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "millm.toml"
    path.write_text('port = 8080\nlog_level = "ERROR"\nhost = "10.0.0.1"\n')
    monkeypatch.setenv("MILLM_CONFIG", str(path))
    monkeypatch.setenv("MILLM_LOG_LEVEL", "WARNING")
    monkeypatch.setenv("millm_drain_seconds", "7")
    monkeypatch.setenv("MILLM_DEMO", "")
    monkeypatch.setenv("MILLM_HOST", "10.0.0.2")
    monkeypatch.setattr("millm_site.options._applied", {})
    apply_setting_options(["manage.py", "serve", "--host", "10.0.0.3"])
    found = values(Environment())
    path.unlink()  # the page does not read it again
    assert {
        name: (found[name].value, found[name].source) for name in ("host", "log_level", "drain_seconds", "port")
    } == {
        "host": ("10.0.0.3", "option --host"),
        "log_level": ("WARNING", "environment"),
        "drain_seconds": ("7", "environment"),
        "port": ("8080", "config file"),
    }
    assert (found["demo"].value, found["demo"].source) == ("tiny", "default")


def test_values_are_written_as_variables_have_them():
    env = Environment.model_validate(
        {"tls": True, "cors_origins": "https://a.example,https://b.example", "trusted_proxies": "none", "seed": 0}
    )
    found = values(env)
    assert found["tls"].value == "true"
    assert found["cors_origins"].value == "https://a.example,https://b.example"
    assert (found["trusted_proxies"].value, found["trusted_proxies"].is_set) == ("none", True)
    assert (found["seed"].value, found["seed"].is_set) == ("0", True)
    assert (found["judge_model"].value, found["judge_model"].is_set) == ("", False)
    assert found["auth"].value == "required"  # what an empty value stands for
    assert text_of(0.5) == "0.5"


def test_secrets_are_only_said_to_be_set():
    given = {doc.name: SECRET for doc in setting_docs() if doc.is_secret}
    given["database_url"] = f"postgresql://millm:{SECRET}@db/millm"
    given["judge_base_url"] = f"https://judge:{SECRET}/@judge.example/v1"
    found = values(Environment.model_validate(given))
    assert SECRET not in repr(list(found.values()))
    assert {name for name, each in found.items() if each.doc.is_secret} >= {"secret_key", "database_url"}
    assert all(found[name].is_set for name in given)
    assert found["judge_base_url"].value == "https://…@judge.example/v1"


def test_settings_that_sound_secret_are():
    assert {doc.name for doc in setting_docs() if LOOKS_SECRET.search(doc.name)} == {
        doc.name for doc in setting_docs() if doc.is_secret
    }


@pytest.mark.django_db
def test_the_page_shows_every_setting_to_admins(monkeypatch: pytest.MonkeyPatch):
    env = Environment.model_validate({"metrics_token": SECRET, "judge_model": "<script>alert(1)</script>"})
    monkeypatch.setattr(setting_list, "environment", lambda: env)
    ada = User.objects.create_user("ada", is_staff=True)
    ada.groups.add(Group.objects.get(name="Admins"))
    page = client_of(ada).get(URL).content.decode()
    for doc in setting_docs():
        assert f"<code>{doc.variable}</code>" in page
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    for doc in setting_docs():
        assert doc.description.replace("`", "") in text
    assert SECRET not in page
    assert "secret, set" in page
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert 'href="/admin/settings/" aria-current="page"' in page


@pytest.mark.django_db
@pytest.mark.parametrize("group", ["Researchers", "Auditors"])
def test_others_do_not_see_it(group: str):
    user = User.objects.create_user(group, is_staff=True)
    user.groups.add(Group.objects.get(name=group))
    client = client_of(user)
    assert client.get(URL).status_code == 403
    assert URL not in client.get("/admin/").content.decode()


@pytest.mark.django_db
def test_the_permission_alone_is_enough():
    client = client_of(staff("view_settings"))
    assert client.get(URL).status_code == 200
    assert client.post(URL).status_code == 405
