"""The files of deploy/ and docs/deployment.md name commands, settings, paths and ports that exist."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import get_commands, load_command_class
from django.urls import resolve

from millm_site.config_file import PREFIX
from millm_site.env import PROJECT_DIR, Environment

DEPLOY = PROJECT_DIR / "deploy"
PAGE = (PROJECT_DIR / "docs" / "deployment.md").read_text()
FILES = sorted(DEPLOY.iterdir())
OF_COMPOSE = {"MILLM_DB_PASSWORD", "MILLM_IMAGE", "MILLM_POSTGRES_IMAGE"}  # read by compose itself
TRITON = {"torch==2.13.0": "triton==3.7.1"}  # what builds of torch for CUDA require exactly
SERVERS_MODULES = ("torch", "transformers.modeling_utils", "openai_api.routes", "inference.engine.loop")
HEALTH = re.compile(r"/health(?:/\w+)?")


def texts() -> dict[str, str]:
    return {path.name: path.read_text() for path in FILES} | {"deployment.md": PAGE}


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "millm.service")
    return parser["Service"]


def kubernetes() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Containerfile."""
    lines = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    words = [line.split(maxsplit=1) for line in lines if line.strip() and not line.startswith("#")]
    return [(name, rest) for name, rest in words]


def output(command: list[str], environment: dict[str, str] | None = None) -> str:
    """The output of a command that must succeed, run in the project's folder."""
    done = subprocess.run(command, cwd=PROJECT_DIR, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def accepts(arguments: list[str]) -> bool:
    """Whether manage.py has the command, and the command the arguments."""
    name, *rest = arguments
    command = get_commands()[name]
    parser = (load_command_class(command, name) if isinstance(command, str) else command).create_parser(
        "manage.py", name
    )
    parser.parse_args(rest)
    return True


@pytest.mark.parametrize("name", texts())
def test_settings_exist(name: str) -> None:
    named = set(re.findall(rf"\b{PREFIX}[A-Z_]+\b", texts()[name])) - OF_COMPOSE
    assert named - {PREFIX + field.upper() for field in Environment.model_fields} == set()


@pytest.mark.parametrize("name", texts())
def test_health_paths_exist(name: str) -> None:
    for path in HEALTH.findall(texts()[name]):
        assert (resolve(path).url_name or "").startswith("health"), path


@pytest.mark.parametrize("name", texts())
def test_commands_of_manage_py_exist(name: str) -> None:
    for command in re.findall(r"manage\.py (\w+)", texts()[name]):
        assert command in get_commands(), command


def test_the_page_names_every_file_and_every_file_exists() -> None:
    named = set(re.findall(r"`(deploy/[\w.]+)`", PAGE))
    assert named == {f"deploy/{path.name}" for path in FILES}
    for text in texts().values():
        for path in re.findall(r"\b(?:deploy|docs)/[\w.]+\w", text):
            assert (PROJECT_DIR / path).is_file(), path


def test_the_image_runs_an_existing_command_without_root() -> None:
    last = dict(instructions())
    assert shlex.split(re.sub(r"[\[\],]", " ", last["ENTRYPOINT"])) == ["python", "manage.py"]
    assert accepts(shlex.split(re.sub(r"[\[\],]", " ", last["CMD"])))
    assert last["USER"].split(":")[0] not in {"0", "root"}
    assert last["EXPOSE"] == str(Environment.model_fields["port"].default)
    sources = [rest.split()[:-1] for name, rest in instructions() if name == "COPY" and not rest.startswith("--from")]
    assert all((PROJECT_DIR / source).exists() for group in sources for source in group)


def test_the_image_installs_the_project_s_own_requirements() -> None:
    """The program that reads them works on this project file, for the default extras and media."""
    build = " ".join(rest for name, rest in instructions() if name == "RUN")
    (program,) = re.findall(r"python -c '([^']+)' \$\{EXTRAS\}", build)
    (default,) = (rest for name, rest in instructions() if name == "ARG" and rest.startswith("EXTRAS="))
    extras = [*shlex.split(default.partition("=")[2])[0].split(), "media"]
    command = [sys.executable, "-c", program, *extras]
    listed = output(command).splitlines()
    project = tomllib.loads((PROJECT_DIR / "pyproject.toml").read_text())["project"]
    optional = [one for extra in ("oidc", "otel", "media") for one in project["optional-dependencies"][extra]]
    assert listed == [*project["dependencies"], *optional]
    assert any(one.startswith("torch==") for one in listed)
    ignored = (PROJECT_DIR / ".dockerignore").read_text().split()
    assert {".git", ".venv*", "var"} <= set(ignored)


def test_the_image_compiles_what_a_server_imports() -> None:
    """Its user may not write them, so that each process of the server would compile thousands of modules."""
    build = " ".join(rest for name, rest in instructions() if name == "RUN")
    (program,) = re.findall(r"python -c '(import django;[^']+)'", build)
    loaded = f"{program}; import sys; print(*(name for name in {SERVERS_MODULES} if name in sys.modules))"
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "millm_site.settings"}
    assert output([sys.executable, "-c", loaded], environment).split() == [*SERVERS_MODULES]


def test_torch_for_cuda_can_be_installed_with_the_constraints() -> None:
    """torch for the CPU has no such requirement, so nothing else notices another version of Triton."""
    pins = (PROJECT_DIR / "constraints.txt").read_text().splitlines()
    [torch] = [pin for pin in pins if pin.startswith("torch==")]
    assert [pin for pin in pins if pin.startswith("triton==")] == [TRITON[torch]]
    assert [pin for pin in pins if pin.startswith(("nvidia-", "cuda-"))] == []  # torch pins them itself
    oracles = tomllib.loads((PROJECT_DIR / "pyproject.toml").read_text())["project"]["optional-dependencies"]["oracles"]
    assert TRITON[torch] in {one.partition(";")[0] for one in oracles}


def test_compose_starts_the_image_with_a_healthy_database() -> None:
    services = compose()["services"]
    millm = services["millm"]
    assert accepts(millm["command"])
    assert (DEPLOY / millm["build"]["context"] / millm["build"]["dockerfile"]).resolve() == DEPLOY / "Containerfile"
    assert millm["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert services["postgres"]["image"] == "${MILLM_POSTGRES_IMAGE:-docker.io/pgvector/pgvector:pg18}"
    assert services["postgres"]["volumes"] == ["postgres:/var/lib/postgresql"]  # the volume of the images since 18
    assert "127.0.0.1" in services["postgres"]["healthcheck"]["test"]  # by TCP, which only the final server listens on
    assert seconds(millm["stop_grace_period"]) > float(millm["environment"]["MILLM_DRAIN_SECONDS"])
    mounted = {volume.split(":")[0] for service in services.values() for volume in service["volumes"]}
    assert mounted == set(compose()["volumes"])


def test_the_unit_starts_existing_commands_and_waits_for_the_drain() -> None:
    service = unit()
    for name in ("ExecStartPre", "ExecStart"):
        python, program, *arguments = shlex.split(service[name])
        assert (python, program) == (f"{service['WorkingDirectory']}/.venv/bin/python", "manage.py")
        assert accepts(arguments)
    assert service["User"] != "root"
    assert seconds(service["TimeoutStopSec"]) > Environment.model_fields["drain_seconds"].default
    assert service["Restart"] == "on-failure"  # the server exits with an error if its engine fails
    assert "AF_NETLINK" in service["RestrictAddressFamilies"]  # psutil lists this machine's addresses
    assert service["Environment"].startswith(f"PYTHONPYCACHEPREFIX=/var/lib/{service['StateDirectory']}/")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "millm.service").read_text()
    (tmp_path / "millm.service").write_text(text.replace("/opt/millm/.venv/bin/python", shutil.which("true") or ""))
    command = ["systemd-analyze", "verify", str(tmp_path / "millm.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert [line for line in done.stderr.splitlines() if "millm.service" in line] == []


def test_the_manifest_probes_the_server_and_waits_for_the_drain() -> None:
    spec = kubernetes()["Deployment"]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert accepts(container["args"])
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert spec["terminationGracePeriodSeconds"] > float(variables["MILLM_DRAIN_SECONDS"])
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container[name]["httpGet"]
        assert resolve(probe["path"])
        assert probe["httpHeaders"][0]["value"] in variables["MILLM_ALLOWED_HOSTS"].split(",")
    assert spec["securityContext"]["runAsNonRoot"]
    user = dict(instructions())["USER"].split(":")[0]
    assert spec["securityContext"]["runAsUser"] == int(user)


def test_the_service_finds_the_pods_and_the_volume_exists() -> None:
    found = kubernetes()
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Service"]["spec"]["selector"].items() <= labels.items()
    claims = {
        one["persistentVolumeClaim"]["claimName"]
        for one in found["Deployment"]["spec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in one
    }
    assert claims == {found["PersistentVolumeClaim"]["metadata"]["name"]}


def test_the_proxies_pass_on_what_the_server_reads() -> None:
    nginx = re.search(r"```nginx\n(.*?)```", PAGE, re.DOTALL)
    assert nginx is not None
    for header in ("X-Forwarded-For", "X-Forwarded-Proto", "Host", "Upgrade"):
        assert f"proxy_set_header {header} " in nginx[1]
    limit = re.search(r"client_max_body_size (\d+)m;", nginx[1])
    assert limit is not None
    assert int(limit[1]) * 2**20 > Environment.model_fields["max_file_bytes"].default


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))
