"""Fixtures for all tests."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest
import pytest_django
from django.conf import settings
from django.db import connection
from pytest_django.fixtures import Settings

from core.runtime import runtime
from millm_site.env import DEMO_DIR
from openai_api.apps import stop_log_writer
from openai_api.request_log.writer import LOG_WRITER, LogWriter
from tests import database, live
from tests.database import Content
from tests.ray_cluster import RayNode, ray_cluster

# Timings say nothing here: machines are slow, shared, or both. CI runs the same examples each time, so that only a
# change of the code can make it fail; all other runs look for new ones.
hypothesis.settings.register_profile(
    "millm",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
hypothesis.settings.load_profile("millm")

# Otherwise each process of a test would compile all modules. The Makefile does the same for programs that it starts.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
gc.disable()  # until the tests are collected: they and all modules stay, and searching them for garbage takes long

ADMIN_USER = "admin"
ADMIN_PASSWORD = "correct horse battery staple"


def pytest_configure(config: pytest.Config) -> None:
    """The process that began the run keeps the embedded server for all workers, and stops it as its last user."""
    if settings.DATABASES["default"]["ENGINE"] == "millm_site.embedded_postgres":
        from millm_site.database import embedded_postgres
        from millm_site.embedded_postgres.roles import OWNER

        settings.DATABASES["default"]["USER"] = OWNER  # tests make and empty databases, which the application may not

        embedded_postgres().ensure_running()
    live.PRELOADS = True
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # the others are slow on purpose


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a module that share a server or another fixture in one worker (``--dist loadgroup``)."""
    for item in items:
        if "live_site" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.live)
        if item.get_closest_marker("xdist_group") is None and (group := _group_of(item)):
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes after their argument: archives hold the time of day, and all workers must collect the same names."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def _group_of(item: pytest.Item) -> str | None:
    if not isinstance(item, pytest.Function):
        return None
    fixtures = [definitions[-1] for definitions in item._fixtureinfo.name2fixturedefs.values()]
    is_shared = any(fixture.scope == "module" or fixture.argname == "live_site" for fixture in fixtures)
    return str(item.path) if is_shared else None


@dataclass(frozen=True)
class LiveSite:
    """A server with the demo installed, as `make run` starts it, shared by a worker's modules: do not break it.

    A request from this machine needs no key. ``server.manage(...)`` runs commands on its database.
    """

    url: str
    admin_user: str
    admin_password: str
    server: live.LiveServer

    @property
    def api_url(self) -> str:
        """The ``base_url`` of OpenAI clients."""
        return f"{self.url}/v1"


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> None:
    """Copy the test database from the template: its migrations have run already."""
    with django_db_blocker.unblock():
        connection.settings_dict["TEST"]["TEMPLATE"] = database.template(Content.SCHEMA)


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker) -> Iterator[None]:
    """Transactional tests delete what they wrote, without locking tables that a thread may still read."""
    with django_db_blocker.unblock():
        database.restore_after_transactional_tests()
        connection.close()
    yield
    with django_db_blocker.unblock():
        database.end_other_connections()


@pytest.fixture(autouse=True)
def _request_log(request: pytest.FixtureRequest) -> Iterator[None]:
    """Stop the thread that writes the request log, which writes outside of a test's transaction.

    Its rows are deleted only after transactional tests. Elsewhere they would stay for all tests that follow.
    """
    yield
    writer = runtime.find(LOG_WRITER)
    if isinstance(writer, LogWriter):
        stop_log_writer()
        marker = request.node.get_closest_marker("django_db")
        if marker is None or not marker.kwargs.get("transaction"):
            pytest.fail("The test wrote to the request log. Mark it with django_db(transaction=True).")


@pytest.fixture(autouse=True)
def _local_models(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let the console and /api name models and SAEs that tests make."""
    settings.MILLM_MODEL_ROOTS = (tmp_path_factory.getbasetemp(), DEMO_DIR)


@pytest.fixture
def database_url() -> Iterator[str]:
    """A new database with the demo on the tests' server."""
    with database.own_database() as url:
        yield url


@pytest.fixture
def migrated_database_url() -> Iterator[str]:
    """A new database on the tests' server, as `manage.py migrate` leaves it."""
    with database.own_database(Content.SCHEMA) as url:
        yield url


@pytest.fixture
def empty_database_url() -> Iterator[str]:
    """A new database without tables on the tests' server."""
    with database.own_database(Content.NOTHING) as url:
        yield url


@pytest.fixture(scope="session")
def smollm2_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The converted files of the real demo model. Without its package, tests fail in CI and are skipped elsewhere."""
    from steering.demo.install import SMOLLM2
    from steering.demo.packaged_model import DemoError, converted_directory, report_nothing

    assert SMOLLM2.package is not None
    try:
        return converted_directory(SMOLLM2.package, tmp_path_factory.mktemp("smollm2") / "models", report_nothing)
    except DemoError as error:
        if "CI" in os.environ:
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def ray_node() -> Iterator[RayNode]:
    """A node of Ray for all tests of a worker: it takes seconds of CPU to start. Let no actor outlive its test."""
    pytest.importorskip("ray")
    with ray_cluster(num_cpus=16) as node:
        yield node


@pytest.fixture(scope="session")
def live_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSite]:
    with served_site(tmp_path_factory.mktemp("live-site")) as site:
        yield site


@contextmanager
def served_site(home: Path) -> Iterator[LiveSite]:
    """One for tests that leave behind what would stand in the way of others, such as a second SAE."""
    with database.own_database() as url, live.serving("--setup", environment=site_environment(url, home)) as server:
        yield LiveSite(server.url, ADMIN_USER, ADMIN_PASSWORD, server)
        assert server.stop() == 0, server.output


@contextmanager
def bare_site(home: Path, **variables: str) -> Iterator[LiveSite]:
    """One as `manage.py migrate` and a first superuser leave it: without the demo. ``variables`` are environment."""
    with database.own_database(Content.SCHEMA) as url:
        environment = {**site_environment(url, home), **variables}
        live.manage("shell", "-c", BARE, environment=environment)
        with live.serving(environment=environment) as server:
            yield LiveSite(server.url, ADMIN_USER, ADMIN_PASSWORD, server)
            assert server.stop() == 0, server.output


def site_environment(database_url: str, home: Path) -> dict[str, str]:
    return {
        "MILLM_HOME": str(home),
        "MILLM_DATABASE_URL": database_url,
        "MILLM_AUTH": "loopback",
        "MILLM_MODEL_ROOTS": f"{home.parent},{DEMO_DIR}",  # what tests make lies beside the home
        "MILLM_ADMIN_USER": ADMIN_USER,
        "MILLM_ADMIN_PASSWORD": ADMIN_PASSWORD,
    }


BARE = "from millm_site.first_run import ensure_superuser; ensure_superuser()"
