"""The official client on the surface over fakes, in this process, with a real database for what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx2 as httpx
import pytest
from django.core.handlers.asgi import ASGIHandler
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
async def client(stored: Api) -> AsyncIterator[AsyncOpenAI]:
    """Strict where the client can be: what does not fit its types is an error."""
    transport = httpx.ASGITransport(app=cast("Any", ASGIHandler()), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/v1") as http:
        yield AsyncOpenAI(
            base_url="http://localhost/v1",
            api_key="none",
            http_client=http,
            max_retries=0,
            _strict_response_validation=True,
        )
