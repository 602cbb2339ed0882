"""One server for all tests of the Python client: they publish profiles and upload SAEs, which others must not see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millm import Millm
from tests import database, live
from tests.conftest import ADMIN_PASSWORD, ADMIN_USER, LiveSite, site_environment

SET_UP = """
from inference.models import LanguageModel
from millm_site.first_run import ensure_superuser
assert LanguageModel.objects.update(dtype="float32") == 1
ensure_superuser()
"""
SCOPES = ("generate", "features", "manage")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They share the server, so one worker has them all."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and {"site", "key", "m"}.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.live)
            item.add_marker(pytest.mark.xdist_group("python_client"))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSite]:
    """The demo in float32, where values do not depend on what else is in the batch."""
    with database.own_database() as url:
        environment = site_environment(url, tmp_path_factory.mktemp("python-client"))
        live.manage("shell", "-c", SET_UP, environment=environment)
        with live.serving(environment=environment) as server:
            yield LiveSite(server.url, ADMIN_USER, ADMIN_PASSWORD, server)
            assert server.stop() == 0, server.output


@pytest.fixture(scope="session")
def key(site: LiveSite) -> str:
    """A key that may do everything the client does."""
    scopes = [word for scope in SCOPES for word in ("--scope", scope)]
    made = site.server.manage("create_api_key", "notebook", "--user", site.admin_user, "--allow-inline", *scopes)
    return made.strip()


@pytest.fixture(scope="session")
def m(site: LiveSite, key: str) -> Iterator[Millm]:
    with Millm(site.url, key, "demo", max_retries=0) as client:
        yield client
