"""Model rows for tests of the registry, written from inside an event loop."""

from __future__ import annotations

import asyncio

from django.db import connections

from inference.models import LanguageModel


def make(name="org/tiny", **fields):
    return LanguageModel.objects.create(name=name, source="/models/tiny", **fields)


async def amake(*args, **fields):
    return await in_db(lambda: make(*args, **fields))


async def in_db(call):
    """Database work of an async test, in a thread that leaves no connection behind."""

    def run():
        try:
            return call()
        finally:
            connections.close_all()

    return await asyncio.to_thread(run)


async def row(name="org/tiny"):
    return await in_db(lambda: LanguageModel.objects.get(name=name))


async def until(condition):
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("timed out")
