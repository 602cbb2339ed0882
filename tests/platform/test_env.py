"""The typed environment: every variable reaches the settings, bad values are explained."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from django.conf import settings
from pydantic import ValidationError

from inference.engine.config import EngineConfig
from jobs.lanes import Lane
from millm_site import env as env_module
from millm_site.apps import unknown_variables
from millm_site.env import ENGINE_OPTIONS, PROJECT_DIR, Environment, explain
from millm_site.http.hosts import allowed_hosts
from millm_site.secret_key import stored_key
from tests.live import clean_environment

# Read by Django's settings under Django's names only.
NOT_EXPOSED = {"config", "debug", "log_level", "allowed_hosts", "secret_key", "database_url", "database_pool_size"} | (
    set(ENGINE_OPTIONS) - {"max_batch_size", "max_seq_len", "max_waiting_requests"}
)
NOT_EXPOSED |= {f"job_workers_{lane}" for lane in Lane}  # they are in MILLM_JOB_WORKERS


def environment(**variables: object) -> Environment:
    return Environment.model_validate({name: str(value) for name, value in variables.items()})


def problems(**variables: object) -> str:
    with pytest.raises(ValidationError) as caught:
        environment(**variables)
    return explain(caught.value)


def test_every_variable_is_exposed_to_lower_layers() -> None:
    exposed = {name for name in Environment.model_fields if hasattr(settings, f"MILLM_{name.upper()}")}
    assert set(Environment.model_fields) - exposed == NOT_EXPOSED


@pytest.mark.parametrize(
    ("variables", "slots"),
    [
        ({}, {"interactive": 3, "bulk": 3, "system": 2, "media": 1, "webhooks": 4}),
        ({"job_workers_bulk": 7}, {"interactive": 3, "bulk": 7, "system": 2, "media": 1, "webhooks": 4}),
        ({"job_workers": 4, "job_workers_bulk": 7}, dict.fromkeys(Lane, 4)),
        ({"job_workers": 0, "job_workers_bulk": 7}, {}),
    ],
)
def test_one_number_sets_the_workers_of_all_lanes(variables: dict[str, int], slots: dict[str, int]) -> None:
    assert environment(**variables).job_slots == slots


def test_every_variable_has_a_description() -> None:
    assert all(field.description for field in Environment.model_fields.values())


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("port", 70_000, "65535"),
        ("port", "http", "integer"),
        ("drain_seconds", "nan", "finite"),
        ("drain_seconds", -1, "greater than or equal to 0"),
        ("max_batch_size", -1, "greater than or equal to 0"),
        ("auth", "off", "loopback"),
        ("log_content", "some", "hash"),
        ("trusted_proxies", "10.0.0.0/8,proxy", "proxy"),
        ("debug", "maybe", "boolean"),
        ("job_workers", -1, "greater than or equal to 0"),
        ("job_workers_bulk", 65, "less than or equal to 64"),
        ("job_max_share", 0, "greater than 0"),
        ("job_turn_seconds", "nan", "finite"),
        ("cors_origins", "https://a.example,b.example", "b.example"),
        ("cors_origins", "https://a.example/path", "is not an origin"),
    ],
)
def test_bad_value_is_explained_with_name_value_and_reason(name: str, value: object, complaint: str) -> None:
    message = problems(**{name: value})
    assert message.startswith(f"MILLM_{name.upper()}: ")
    assert complaint in message
    assert str(value) in message


@pytest.mark.parametrize("variables", [{"auth": "loopback"}, {"debug": 1}])
def test_no_page_of_any_site_may_use_a_server_without_keys(variables: dict[str, object]) -> None:
    message = problems(cors_origins="https://a.example,*", **variables)
    assert message.startswith("MILLM_AUTH: must be `required` if MILLM_CORS_ORIGINS is `*`")
    assert environment(cors_origins="*", auth="required", debug=1).auth_mode == "required"
    assert environment(cors_origins="https://a.example", **variables).auth_mode == "loopback"


@pytest.mark.parametrize(
    ("engine", "address"),
    [("thread", ""), ("process", ""), ("10.0.0.1:6379", "10.0.0.1:6379"), ("ray://head:10001", "ray://head:10001")],
)
def test_an_engine_elsewhere_has_an_address(engine: str, address: str) -> None:
    pytest.importorskip("ray")
    assert environment(engine=engine).ray_address == address


def test_ray_s_own_variable_names_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    assert environment(engine="ray").ray_address == "auto"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    assert environment(engine="ray").ray_address == "10.0.0.2:6379"


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"engine": "processes"}, "MILLM_ENGINE: must be `thread`, `process`, `ray`, or an address"),
        ({"engine": "http://head:1"}, "MILLM_ENGINE: must be `thread`"),
        ({"engine": "ray://head"}, "MILLM_ENGINE: must be `thread`"),
        ({"engine_replicas": 2}, "MILLM_ENGINE_REPLICAS: needs MILLM_ENGINE=process or Ray"),
        ({"engine_max_replicas": 2}, "MILLM_ENGINE_MAX_REPLICAS: needs MILLM_ENGINE=process or Ray"),
        ({"engine": "process", "engine_replicas": 0}, "MILLM_ENGINE_REPLICAS"),
        (
            {"engine": "process", "engine_replicas": 3, "engine_max_replicas": 2},
            "MILLM_ENGINE_MAX_REPLICAS: must not be less than MILLM_ENGINE_REPLICAS",
        ),
        ({"ray_listen": "10.0.0.1"}, "MILLM_RAY_LISTEN: must be HOST:PORT"),
        ({"ray_gpus": "nan"}, "MILLM_RAY_GPUS"),
    ],
)
def test_engines_that_mean_nothing_are_refused(variables: dict[str, object], complaint: str) -> None:
    assert complaint in problems(**variables)


def test_the_address_for_engine_processes_has_a_host_and_a_port() -> None:
    assert environment().ray_listener == ("", 0)
    assert environment(ray_listen="10.0.0.1:7000").ray_listener == ("10.0.0.1", 7000)
    assert environment(ray_listen="[fd00::1]:7000").ray_listener == ("fd00::1", 7000)


def test_bad_secret_is_not_repeated() -> None:
    message = problems(database_url="mysql://root:hunter2@db/x")
    assert "MILLM_DATABASE_URL: must start with postgresql://" in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("hunter2", "24 to 200 characters, got 7"),
        ("k" * 201, "got 201"),
        ("a key with spaces in between", "without spaces"),
        ("schlüssel-mit-umlaut-0123456789", "ASCII"),
        ("sk-millm-0123456789-0123456789", "must not start with sk-millm-"),
    ],
)
def test_weak_admin_key_is_refused_and_not_repeated(key: str, complaint: str) -> None:
    message = problems(admin_api_key=key)
    assert message.startswith("MILLM_ADMIN_API_KEY: must")
    assert complaint in message
    assert key not in message


def test_unreadable_database_url_is_refused() -> None:
    assert "MILLM_DATABASE_URL" in problems(database_url="postgresql://[::1/x")


def test_all_bad_variables_are_named_at_once() -> None:
    assert len(problems(port=-1, max_batch_size=-1).splitlines()) == 2


def test_bad_value_ends_the_command_without_a_traceback(tmp_path: Path) -> None:
    variables = {**clean_environment(), "MILLM_HOME": str(tmp_path), "MILLM_PORT": "http"}
    command = [sys.executable, "manage.py", "check"]
    done = subprocess.run(command, cwd=PROJECT_DIR, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "MILLM_PORT" in done.stderr
    assert "Traceback" not in done.stderr


def test_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLM_PORT", "")
    monkeypatch.setenv("MILLM_TRUSTED_PROXIES", "")
    assert Environment().port == 8000
    assert Environment().trusted_proxies == ("127.0.0.1", "::1")


def test_lists_are_separated_by_commas() -> None:
    assert environment(allowed_hosts="a.example, b.example,").allowed_hosts == ("a.example", "b.example")
    assert environment(trusted_proxies="10.0.0.0/8,::1").trusted_proxies == ("10.0.0.0/8", "::1")
    assert environment(trusted_proxies="none").trusted_proxies == ()


def test_relative_home_lies_in_the_project() -> None:
    assert environment(home="state").home == PROJECT_DIR / "state"
    assert environment(home="/srv/millm").home == Path("/srv/millm")


@pytest.mark.parametrize(
    ("variables", "mode"),
    [
        ({}, "required"),
        ({"debug": 1}, "loopback"),
        ({"auth": "loopback"}, "loopback"),
        ({"debug": 1, "auth": "required"}, "required"),
    ],
)
def test_auth_mode_depends_on_debug_unless_named(variables: dict[str, object], mode: str) -> None:
    assert environment(**variables).auth_mode == mode


def test_hosts_are_loopback_names_and_the_address_listened_on() -> None:
    assert allowed_hosts(environment()) == ["localhost", "127.0.0.1", "[::1]"]
    assert "192.168.7.7" in allowed_hosts(environment(host="192.168.7.7"))
    assert "[fd00::7]" in allowed_hosts(environment(host="fd00::7"))
    assert allowed_hosts(environment(allowed_hosts="chat.example")) == ["chat.example"]


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ("https://Models.Example.com", "https://models.example.com"),
        ("https://models.example.com/", "https://models.example.com"),
        ("https://models.example.com:443", "https://models.example.com"),
        ("http://models.example.com:443", "http://models.example.com:443"),
        ("http://10.0.0.7:8000", "http://10.0.0.7:8000"),
        ("http://[fd00::7]:8000/", "http://[fd00::7]:8000"),
        ("", ""),
    ],
)
def test_public_url_is_an_origin_as_browsers_write_it(given: str, origin: str) -> None:
    assert environment(public_url=given).public_url == origin


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("models.example.com", "is not an address"),
        ("ftp://models.example.com", "is not an address"),
        ("https://", "is not an address"),
        ("https://a b.example", "is not an address"),
        ("https://user:secret@models.example.com", "is not an address"),
        ("https://models.example.com:99999", "is not an address"),
        ("https://[fd00::7", "is not an address"),
        ("https://*.example.com", "is not an address"),
        ("https://models.example.com/llm", "must have no path"),
        ("https://models.example.com?x=1", "must have no path"),
        ("https://models.example.com#x", "must have no path"),
    ],
)
def test_bad_public_url_is_explained(given: str, complaint: str) -> None:
    message = problems(public_url=given)
    assert message.startswith("MILLM_PUBLIC_URL: ")
    assert complaint in message


def test_host_of_the_public_url_is_allowed_beside_the_others() -> None:
    public = "https://models.example.com"
    assert allowed_hosts(environment(public_url=public)) == ["localhost", "127.0.0.1", "[::1]", "models.example.com"]
    assert allowed_hosts(environment(public_url=public, allowed_hosts="chat.example")) == [
        "chat.example",
        "models.example.com",
    ]
    assert "[fd00::7]" in allowed_hosts(environment(public_url="http://[fd00::7]:8000", allowed_hosts="chat.example"))


def test_wildcard_address_allows_this_machine_not_everything() -> None:
    hosts = allowed_hosts(environment(host="0.0.0.0"))  # noqa: S104 - what the test is about
    assert "*" not in hosts
    assert "127.0.0.1" in hosts
    assert len(hosts) > 3


def test_unknown_variable_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLM_DATABSE_URL", "x")
    warnings = [check for check in unknown_variables() if "DATABSE" in check.msg]
    assert [check.hint for check in warnings] == ["Did you mean MILLM_DATABASE_URL?"]


def test_key_of_clients_is_not_taken_for_the_server_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that uses the Python client has MILLM_API_KEY; a server that starts there must not accept it."""
    monkeypatch.setenv("MILLM_API_KEY", "a-key-that-a-client-sends-0123")
    assert Environment().admin_api_key.get_secret_value() == ""
    [warning] = [check for check in unknown_variables() if "MILLM_API_KEY" in check.msg]
    assert "MILLM_ADMIN_API_KEY" in (warning.hint or "")


def test_secret_key_is_made_once_for_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "secret_key"
    key = stored_key(path)
    assert len(key) >= 50
    assert stored_key(path) == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert [child.name for child in path.parent.iterdir()] == ["secret_key"]


def test_damaged_secret_key_is_explained(tmp_path: Path) -> None:
    (tmp_path / "secret_key").write_text("short")
    with pytest.raises(SystemExit, match="Delete it"):
        stored_key(tmp_path / "secret_key")


def test_folder_of_another_user_is_explained(tmp_path: Path) -> None:
    class Closed(type(tmp_path)):  # type: ignore[misc]
        """A path that nobody may look at; root may look at every real one."""

        def exists(self, **_: object) -> bool:
            raise PermissionError(13, "Permission denied", str(self))

    with pytest.raises(SystemExit, match="set MILLM_HOME"):
        stored_key(Closed(tmp_path) / "secret_key")


def test_environment_is_read_once() -> None:
    assert env_module.environment() is env_module.environment()


def test_engine_options_are_the_engine_s_own_and_have_its_defaults():
    assert EngineConfig(**environment().engine_options()).on("cpu") == EngineConfig()
    assert set(ENGINE_OPTIONS) == {field.name for field in fields(EngineConfig)}


@pytest.mark.parametrize(
    ("name", "value"),
    [("min_speculative_gain", "0.9"), ("prompt_lookup_max", "1"), ("speculative_method", "eagle")],
)
def test_speculation_that_means_nothing_is_refused(name, value):
    assert name in problems(**{name: value}).lower()


@pytest.mark.parametrize("value", ["0.5", "1", "-1", "nan"])
def test_a_stall_factor_that_means_nothing_is_refused(value):
    assert "max_stall_factor" in problems(max_stall_factor=value).lower()
