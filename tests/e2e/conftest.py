from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests import live
from tests.conftest import LiveSite, site_environment


@pytest.fixture
def client(live_site: LiveSite) -> OpenAI:
    """The official client on the shared server, without retries: a failure is seen, not smoothed over."""
    return OpenAI(base_url=live_site.api_url, api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="session")
def float32_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of its own whose demo runs in float32, where greedy output does not depend on the batch."""
    with live.own_database() as url:
        environment = site_environment(url, tmp_path_factory.mktemp("float32-site"))
        for command in (["migrate"], ["install_demo"], ["shell", "-c", USE_FLOAT32]):
            live.manage(*command, environment=environment)
        with live.serving(environment=environment) as server:
            yield f"{server.url}/v1"
            assert server.stop() == 0, server.output


USE_FLOAT32 = "from inference.models import LanguageModel as M; assert M.objects.update(dtype='float32') == 1"
