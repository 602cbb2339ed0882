"""What pages may follow: a topic is read again and again, and sent where what it says has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User

Reading = Mapping[str, Any]  # goes to the page as JSON


@dataclass(frozen=True, slots=True)
class Topic:
    """``read`` is called in a thread, with the user and what stands behind the name's colon (``job:17`` gives "17").

    It may ask the database; None says that there is nothing under this name for this user.
    """

    name: str
    read: Callable[[User, str], Reading | None]
    permissions: tuple[str, ...] = ()


class Topics:
    """What was declared."""

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}

    def add(self, topic: Topic) -> Topic:
        assert topic.name not in self._topics, f"two topics are named {topic.name}"
        self._topics[topic.name] = topic
        return topic

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._topics)

    def read(self, user: User, name: str) -> Reading | None:
        """None where there is no such topic, or not for this user: which of both, nobody is told."""
        kind, _, rest = name.partition(":")
        topic = self._topics.get(kind)
        if topic is None or not user.has_perms(topic.permissions):
            return None
        return topic.read(user, rest)


TOPICS = Topics()
register_topic = TOPICS.add
