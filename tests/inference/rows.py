"""Model rows for tests of the registry, written from inside an event loop."""

from __future__ import annotations

import asyncio

from inference.models import LanguageModel
from tests.database import in_thread


def make(name="org/tiny", **fields):
    return LanguageModel.objects.create(name=name, source="/models/tiny", **fields)


async def amake(*args, **fields):
    return await in_thread(lambda: make(*args, **fields))


async def row(name="org/tiny"):
    return await in_thread(lambda: LanguageModel.objects.get(name=name))


async def until(condition):
    for _ in range(30_000):  # minutes, for busy machines
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("timed out")
