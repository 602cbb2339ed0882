"""``load``: rates of the last seconds and what runs, of this process."""

from __future__ import annotations

from dataclasses import asdict

from django.contrib.auth.models import User

from console.live.topic import Reading, Topic, register_topic
from console.load.sampler import live_load


def read_load(user: User, rest: str) -> Reading:
    return asdict(live_load())


LOAD = register_topic(Topic("load", read_load, ("console.view_loadsample",)))
