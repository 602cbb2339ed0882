"""The built image, alone, beside Postgres, as a pod of the Kubernetes manifest and below systemd. Skipped without
TEST_IMAGE.

Build the image with buildah or podman, and name it in TEST_IMAGE, as docs/testing.md shows. Alone it is run with
`buildah run`, which needs no cgroups and so works inside containers too. podman-compose runs the compose file, podman
the manifest, without a cluster, and systemd-nspawn boots the image with systemd; these three tests require root.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2 as httpx
import psutil
import pytest

from millm_site.env import PROJECT_DIR
from tests.ray_cluster import free_port

BUILDAH = shutil.which("buildah") or "buildah"
PODMAN = shlex.split(os.environ.get("TEST_PODMAN", "podman"))  # with its options
COMPOSE = shlex.split(os.environ.get("TEST_COMPOSE", "podman-compose"))
NSPAWN = ("systemd-nspawn", "--register=no", "--keep-unit", "--quiet")
IMAGE = os.environ.get("TEST_IMAGE", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not IMAGE, reason="TEST_IMAGE names no image"),
]
KEY = "admin-0123456789abcdef0123456789abcdef"
PASSWORD = "correct horse battery"
USER = 10001
START_S = 180
PROJECT = "millm-test"  # not the name in the compose file, whose volumes may hold somebody's data
STOP_S = 90  # stop_grace_period
STEERED = {
    "model": "demo",
    "profile": "gloomy",
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "max_tokens": 12,
}


def buildah(*arguments: str) -> str:
    return output_of(BUILDAH, *arguments)


def podman(*arguments: str) -> str:
    return output_of(*PODMAN, *arguments)


def output_of(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


@pytest.fixture
def container() -> Iterator[str]:
    name = buildah("from", "--pull-never", IMAGE)
    yield name
    buildah("rm", name)


def server_of(process: subprocess.Popen[str]) -> psutil.Process:
    """Return the process of the container's command: the one that runs as its user."""
    children = psutil.Process(process.pid).children(recursive=True)
    return next(one for one in children if one.uids().real == USER and "buildah" not in one.cmdline()[0])


def test_the_image_serves_without_root(container: str):
    port = free_port()
    told = {"MILLM_PORT": str(port), "MILLM_ADMIN_PASSWORD": PASSWORD, "MILLM_ADMIN_API_KEY": KEY}
    environment = [part for name, value in told.items() for part in ("--env", f"{name}={value}")]
    command = (BUILDAH, "run", "--network=host", "--user", f"{USER}:{USER}", *environment, container, "--")
    with subprocess.Popen(
        (*command, "python", "manage.py", "serve", "--setup"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                wait_until_ready(client, lambda: process.poll() is None)
                check_answers(client)
        finally:
            server_of(process).send_signal(signal.SIGTERM)
            output = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert output.rstrip().endswith("Stopped.")


@pytest.mark.skipif(shutil.which(COMPOSE[0]) is None, reason="podman-compose is not installed")
def test_the_compose_file_runs_and_keeps_its_data(project: None):
    with httpx.Client(base_url="http://127.0.0.1:8000", timeout=60) as client:
        wait_until_ready(client, lambda: True)
        check_answers(client)
        file = upload(client)
        assert query("SELECT extname FROM pg_extension WHERE extname = 'vector'") == "vector"
        assert query("SELECT filename FROM storage_storedfile") == "note.txt"
        podman("exec", id_of("millm"), "test", "!", "-e", "/var/lib/millm/postgres")  # where the embedded server is
        account = query("SELECT password FROM auth_user")

        compose("restart", "millm")
        wait_until_ready(client, lambda: True)
        check_kept(client, file, account)

        start = time.monotonic()
        compose("stop")
        assert time.monotonic() - start < STOP_S
        assert [exit_code(service) for service in ("millm", "postgres")] == ["0", "0"]
        compose("down")
        compose("up", "--detach", "--no-build")
        wait_until_ready(client, lambda: True)
        check_kept(client, file, account)


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the services of the compose file, and remove them with their volumes at the end."""
    monkeypatch.setenv("MILLM_IMAGE", IMAGE)
    monkeypatch.setenv("MILLM_DB_PASSWORD", "p@ss/w:rd 100%")
    monkeypatch.setenv("MILLM_ADMIN_PASSWORD", PASSWORD)
    monkeypatch.setenv("MILLM_ADMIN_API_KEY", KEY)
    try:
        compose("up", "--detach", "--no-build")
        yield
    finally:
        compose("down", "--volumes")
        for network in podman("network", "ls", "--quiet", f"--filter=name={PROJECT}").split():
            podman("network", "rm", network)  # podman-compose 1.0.3 leaves it


def compose(*arguments: str) -> str:
    return output_of(*COMPOSE, "-f", str(PROJECT_DIR / "deploy" / "compose.yaml"), "-p", PROJECT, *arguments)


def query(sql: str) -> str:
    """Return the result of a query in the database of the compose file."""
    return podman("exec", id_of("postgres"), "psql", "-U", "millm", "-d", "millm", "-tAc", sql)


def exit_code(service: str) -> str:
    return podman("inspect", id_of(service), "--format", "{{.State.ExitCode}}")


def id_of(service: str) -> str:
    """Return the id of the service's container, by the labels that every compose implementation sets."""
    labels = {"com.docker.compose.project": PROJECT, "com.docker.compose.service": service}
    filters = [f"--filter=label={name}={value}" for name, value in labels.items()]
    return podman("ps", "--all", "--quiet", *filters)


def upload(client: httpx.Client) -> str:
    """Store a file, whose row is in the database and whose content is in the volume of the server."""
    answer = client.post(
        "/v1/files",
        data={"purpose": "assistants"},
        files={"file": ("note.txt", b"The kettle is in the cellar.")},
        headers={"Authorization": f"Bearer {KEY}"},
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def check_kept(client: httpx.Client, file: str, account: str) -> None:
    content = client.get(f"/v1/files/{file}/content", headers={"Authorization": f"Bearer {KEY}"})
    assert content.text == "The kettle is in the cellar."
    assert query("SELECT password FROM auth_user") == account
    check_answers(client)


@pytest.mark.skipif(shutil.which(PODMAN[0]) is None, reason="podman is not installed")
def test_the_manifest_of_kubernetes_runs(tmp_path: Path):
    """Podman 4.3 reads Secrets as JSON objects of base64 texts."""
    secret, manifest = tmp_path / "secret.json", tmp_path / "kubernetes.yaml"
    told = {"MILLM_ADMIN_PASSWORD": PASSWORD, "MILLM_ADMIN_API_KEY": KEY}
    secret.write_text(json.dumps({name: base64.b64encode(value.encode()).decode() for name, value in told.items()}))
    text = (PROJECT_DIR / "deploy" / "kubernetes.yaml").read_text()
    assert "image: millm:latest" in text
    manifest.write_text(text.replace("image: millm:latest", f"image: {IMAGE}"))
    podman("secret", "create", "millm", str(secret))
    try:
        podman("kube", "play", str(manifest))
        with httpx.Client(base_url="http://127.0.0.1:8000", timeout=60) as client:
            wait_until_ready(client, lambda: True)
            check_answers(client)
        podman("pod", "stop", "--time", "60", "millm-pod-0")
        assert podman("inspect", "millm-pod-0-millm", "--format", "{{.State.ExitCode}}") == "0"
    finally:
        podman("pod", "rm", "--force", "millm-pod-0")
        podman("volume", "rm", "--force", "millm")
        podman("secret", "rm", "millm")


@pytest.mark.skipif(shutil.which(NSPAWN[0]) is None, reason="systemd-nspawn is not installed")
def test_systemd_starts_the_unit_and_starts_it_again(container: str):
    packages = "apt-get update -qq && apt-get install -y -qq --no-install-recommends systemd-sysv"
    buildah("run", "--network=host", "--user", "0", container, "--", "sh", "-c", packages)
    root, port = Path(buildah("mount", container)), free_port()
    (root / "etc/millm.toml").write_text(f"port = {port}\n")
    shutil.chown(root / "etc/millm.toml", USER)
    shutil.copy(PROJECT_DIR / "deploy" / "millm.service", root / "etc/systemd/system")
    output_of(*NSPAWN, f"--directory={root}", "systemctl", "enable", "millm")
    with subprocess.Popen((*NSPAWN, "--boot", f"--directory={root}"), stdout=subprocess.DEVNULL) as machine:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                wait_until_ready(client, lambda: machine.poll() is None)
                assert client.get("/v1/models").status_code == 401
                first = main_process(machine)
                assert first.uids().real == USER
                first.kill()
                first.wait(30)
                wait_until_ready(client, lambda: machine.poll() is None)
                assert main_process(machine) != first
                systemctl(machine, "stop", "millm")
                assert not is_ready(client)
            assert systemctl(machine, "show", "millm", "--property=ExecMainStatus", "--value") == "0"
        finally:
            machine.terminate()


def systemctl(machine: subprocess.Popen[bytes], *arguments: str) -> str:
    """Run systemctl in the booted machine."""
    [init] = psutil.Process(machine.pid).children()
    return output_of("nsenter", f"--target={init.pid}", "--all", "systemctl", *arguments)


def main_process(machine: subprocess.Popen[bytes]) -> psutil.Process:
    return next(
        one
        for one in psutil.Process(machine.pid).children(recursive=True)
        if one.cmdline()[1:] == ["manage.py", "serve"]
    )


def check_answers(client: httpx.Client) -> None:
    assert client.get("/v1/models").status_code == 401
    answer = client.post("/v1/chat/completions", json=STEERED, headers={"Authorization": f"Bearer {KEY}"})
    assert answer.status_code == 200, answer.text
    steering = answer.json()["millm"]["steering"]
    assert steering["applied"] == steering["expected"] > 0


def wait_until_ready(client: httpx.Client, is_running: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not is_ready(client):
        assert is_running(), "the container has ended"
        assert time.monotonic() < deadline, "the server is not ready in time"
        time.sleep(0.5)


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health/ready").status_code == 200
    except httpx.TransportError:
        return False
