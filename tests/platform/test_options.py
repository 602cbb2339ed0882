"""Options of `manage.py serve` and the file of --config: precedence, and what bad ones say."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from millm_site.config_file import ConfigFileError, read_config
from millm_site.env import DEMO_DIR, NOT_IN_FILE, PROJECT_DIR, Environment
from tests import live
from tests.conftest import site_environment
from tests.platform.wire import get

NAMES = Environment.model_fields.keys() - NOT_IN_FILE
KEY = "static-key-of-the-tests-0123456789"
HEADER = f"Authorization: Bearer {KEY}"
SHOW = (
    "from django.conf import settings; "
    "print(settings.MILLM_HOST, settings.MILLM_PORT, settings.MILLM_DRAIN_SECONDS, settings.MILLM_CORS_ORIGINS)"
)


def config(folder: Path, text: str | bytes) -> Path:
    path = folder / "millm.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def serve(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a serve command that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "manage.py", "serve", *arguments],
        cwd=PROJECT_DIR,
        env={**live.clean_environment(), "MILLM_HOME": str(folder), **variables},
        capture_output=True,
        text=True,
        timeout=live.PATIENCE_S,
        check=False,
    )


def loaded_models(url: str, header: str) -> list[str]:
    """Wait until no model is about to be loaded; fail if one could not be."""
    while True:
        models = json.loads(get(url, "/v1/models", header).body)["data"]
        states = {model["state"] for model in models}
        assert "failed" not in states
        if states == {"loaded"}:
            return [model["id"] for model in models]
        time.sleep(0.1)


def test_variables_take_precedence_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    path = config(tmp_path, 'port = 8080\ndrain_seconds = 7\ncors_origins = ["https://a.example"]\n')
    variables = {"MILLM_CONFIG": str(path), "MILLM_PORT": "9090", "MILLM_HOME": str(tmp_path), "MILLM_HOST": ""}
    shown = live.manage("shell", "-v0", "-c", SHOW, environment=variables)
    assert shown.split() == ["127.0.0.1", "9090", "7.0", "('https://a.example',)"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prot = 1", "There is no setting `prot`. Did you mean `port`?"),
        ("PORT = 1", "There is no setting `PORT`. Did you mean `port`?"),
        ("MILLM_PORT = 1", "Did you mean `port`?"),
        ("[server]\nport = 1", "There is no setting `server`."),
        ("config = 'other.toml'", "There is no setting `config`."),
        ("port = ", "is not valid TOML"),
        ("port = 1\nport = 2", "is not valid TOML"),
        (b"log_level = '\xff'", "is not valid TOML"),
        ("#" + 2**20 * "x", "is larger than"),
    ],
)
def test_bad_file_is_refused_by_name(tmp_path: Path, text: str | bytes, complaint: str) -> None:
    path = config(tmp_path, text)
    with pytest.raises(ConfigFileError) as caught:
        read_config(path, NAMES)
    assert str(caught.value).startswith(f"{path}: ")
    assert complaint in str(caught.value)


def test_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match="does not exist"):
        read_config(tmp_path / "none.toml", NAMES)
    with pytest.raises(ConfigFileError, match="is not a file"):
        read_config(tmp_path, NAMES)


def test_all_unknown_names_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError) as caught:
        read_config(config(tmp_path, "prot = 1\nhots = 'x'\n"), NAMES)
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "text", "said"),
    [
        (["--port", "http"], "", "--port: "),
        (["--config", "FILE"], "port = 'http'", "millm.toml: port: "),
        (["--config", "FILE"], "port = [1]", "millm.toml: port: "),
        (["--config", "FILE"], "prot = 1", "Did you mean `port`?"),
        (["--config", "FILE"], "admin_api_key = 'short-secret'", "millm.toml: admin_api_key: must have 24 to 200"),
        (["--api-key", "short-secret"], "", "--api-key: must have 24 to 200"),
        (["--api-key", ""], "", "--api-key: must not be empty"),
        (["--config", "/nowhere/millm.toml"], "", "/nowhere/millm.toml: does not exist"),
        (["--po", "80"], "", "unrecognized arguments: --po"),
        (["--port"], "", "expected one argument"),
    ],
)
def test_bad_option_ends_the_command_with_its_name(tmp_path: Path, arguments: list[str], text: str, said: str) -> None:
    path = str(config(tmp_path, text))
    done = serve(*[path if word == "FILE" else word for word in arguments], folder=tmp_path)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "short-secret" not in done.stderr + done.stdout


def test_options_of_another_program_are_refused_instead_of_ignored() -> None:
    with pytest.raises(CommandError, match=r"--port must be options of manage\.py"):
        call_command("serve", "--port", "1234")


def test_a_server_from_options_only(tmp_path: Path, migrated_database_url: str) -> None:
    """The address from options, the rest from the file; the model is registered once and loaded at each start."""
    environment = {**site_environment(migrated_database_url, tmp_path), "MILLM_AUTH": "required", "MILLM_PORT": "1"}
    live.manage(
        "shell", "-c", "from millm_site.first_run import ensure_superuser; ensure_superuser()", environment=environment
    )
    path = config(tmp_path, "port = 2\ndrain_seconds = 0.5\n")
    arguments = ["--port", "0", "--host", "127.0.0.1", "--config", str(path), "--api-key", KEY]
    model = ["--model", f"little={DEMO_DIR / 'model'}"]
    for _ in range(2):
        with live.serving(*arguments, *model, environment=environment) as server:
            assert "can see the key of --api-key in the process list" in server.output
            assert get(server.url, "/v1/models").status == 401
            assert loaded_models(server.url, HEADER) == ["little"]
            assert get(server.url, "/api/models", f"api-key: {KEY}").status == 200
            assert server.stop() == 0
        assert KEY not in server.output
    with live.serving("--port", "0", environment=environment) as server:
        assert get(server.url, "/v1/models", HEADER).status == 401
    other = ["--model", f"little={tmp_path}"]
    with live.running([sys.executable, "manage.py", "serve", "--port", "0", *other], environment) as refused:
        refused.wait_for("A model named little already exists")
        assert refused.process.wait(live.PATIENCE_S) == 1
    dump = live.manage("dumpdata", "openai_api", "audit", environment=environment)
    assert "Static key" in dump
    assert KEY not in dump
