"""The WebSocket connection of one page, which subscribes to topics and receives their changes.

No messages queue up for a slow client: a topic is only sent again after its last message was acknowledged, with its
current state.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from http.cookies import CookieError, SimpleCookie
from importlib import import_module
from typing import Any

from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.contrib import auth
from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest

from console.live.topic import TOPICS, Reading, Topics
from core.database import DatabaseThreads


def visitor(session_key: str | None) -> User | None:
    """Return the session's staff user, or None if the session has ended or the user is no longer staff."""
    if not session_key:
        return None
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    user = auth.get_user(request)
    return user if isinstance(user, User) and user.is_active and user.is_staff else None


logger = logging.getLogger(__name__)
LIVE_PATH = "/admin/live/"
MAX_TOPICS = 16
MAX_MESSAGE = 1_024
MAX_NAME = 100

THREADS = DatabaseThreads("console-live", 2)  # separate threads, so that open pages don't delay requests to /v1

LOGGED_OUT = 4401
BAD_MESSAGE = 4400
TOO_SLOW = 4408
FAILED = 4500


class LiveConnection(AsyncWebsocketConsumer):  # type: ignore[misc]  # channels has no types
    """One connection. Receives ``{"subscribe": name}`` and ``{"ack": name}``, sends ``{"topic": name, "data": ...}``.

    ``data`` is null if the topic does not exist or the user can't see it.
    """

    def __init__(self, topics: Topics = TOPICS, period_s: float = 1.0, max_silence_s: float = 60.0) -> None:
        """Create the consumer. It closes after ``max_silence_s`` without an acknowledgement."""
        super().__init__()
        self.topics = topics
        self.period_s = period_s
        self.max_silence_s = max_silence_s

    async def connect(self) -> None:
        self.sent: dict[str, Reading | None] = {}
        self.subscribed: list[str] = []
        self.unacknowledged: dict[str, float] = {}  # time at which each unacknowledged topic was sent
        self.wake = asyncio.Event()
        await self.accept()
        self.task = asyncio.create_task(self._follow())

    async def disconnect(self, code: int) -> None:
        self.task.cancel()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        message = _parsed(text_data)
        match message:
            case {"subscribe": str(name)} if len(name) <= MAX_NAME and len(self.subscribed) < MAX_TOPICS:
                if name not in self.subscribed:
                    self.subscribed.append(name)
                    self.wake.set()
            case {"ack": str(name)}:
                self.unacknowledged.pop(name, None)
            case _:
                await self.close(BAD_MESSAGE)

    async def _follow(self) -> None:
        try:
            while (code := await self._send_changes()) is None:
                await self._pause()
            await self.close(code)
        except asyncio.CancelledError:
            raise
        except Exception:  # nothing else awaits the task, so the error would be lost
            logger.exception("A live connection failed.")
            await self.close(FAILED)

    async def _send_changes(self) -> int | None:
        """Send changed topics; return a close code if the connection should end."""
        if self.unacknowledged and time.monotonic() - min(self.unacknowledged.values()) > self.max_silence_s:
            return TOO_SLOW
        names = [name for name in self.subscribed if name not in self.unacknowledged]
        key = session_key(self.scope)
        try:
            found = await THREADS.run(lambda: self._read_all(key, names))
        except (OperationalError, InterfaceError):
            return None  # the database is down; retry in the next period
        if found is None:
            return LOGGED_OUT
        for name, data in found.items():
            if name not in self.sent or self.sent[name] != data:
                self.sent[name] = data
                self.unacknowledged[name] = time.monotonic()
                await self.send(json.dumps({"topic": name, "data": data}))
        return None

    def _read_all(self, key: str | None, names: list[str]) -> dict[str, Reading | None] | None:
        """Return the topics' data, or None if the user is no longer logged in."""
        user = visitor(key)
        return None if user is None else {name: self.topics.read(user, name) for name in names}

    async def _pause(self) -> None:
        self.wake.clear()
        try:
            await asyncio.wait_for(self.wake.wait(), self.period_s)
        except TimeoutError:
            return


def _parsed(text: str | None) -> Any:
    if text is None or len(text) > MAX_MESSAGE:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def session_key(scope: dict[str, Any]) -> str | None:
    cookies: SimpleCookie = SimpleCookie()
    for name, value in scope["headers"]:
        if name == b"cookie":
            try:
                cookies.load(value.decode("latin-1"))
            except CookieError:
                return None
    morsel = cookies.get(settings.SESSION_COOKIE_NAME)
    return morsel.value if morsel else None
