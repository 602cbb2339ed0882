"""The official client on the surface over fakes, in this process, with a real database for what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.openai_api.conftest import Api

END_S = 60.0


@pytest.fixture
async def stored(api: Api, transactional_db: Any) -> AsyncIterator[Api]:
    """The surface, and a database to store in."""
    yield api
    await end_jobs(api)


async def end_jobs(api: Api) -> None:
    """As where a process stops. An event loop does not close before the threads that run jobs for it have ended."""
    api.running.stopping.set()
    assert await asyncio.to_thread(api.running.wait_until_none, END_S)


@pytest.fixture
def client(stored: Api, strict_client: AsyncOpenAI) -> AsyncOpenAI:
    return strict_client
