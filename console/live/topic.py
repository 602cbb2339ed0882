"""Topics that pages can follow. A topic is polled, and sent when its data has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User

Reading = Mapping[str, Any]  # sent to the page as JSON


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. ``read`` is called in a thread with the user and the part of the name after the colon, such as a job id.

    It may query the database. None means that the topic does not exist or the user can't see it.
    """

    name: str
    read: Callable[[User, str], Reading | None]
    permissions: tuple[str, ...] = ()


class Topics:
    """The declared topics."""

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}

    def add(self, topic: Topic) -> Topic:
        assert topic.name not in self._topics, f"topic {topic.name} is already registered"
        self._topics[topic.name] = topic
        return topic

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._topics)

    def read(self, user: User, name: str) -> Reading | None:
        """Return the topic's data, or None if it does not exist or the user can't see it."""
        kind, _, rest = name.partition(":")
        topic = self._topics.get(kind)
        if topic is None or not user.has_perms(topic.permissions):
            return None
        return topic.read(user, rest)


TOPICS = Topics()
register_topic = TOPICS.add
