"""Work with the database that waits while Postgres is away."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from django.db import InterfaceError, OperationalError, close_old_connections, connection

from jobs.errors import JobInterrupted

logger = logging.getLogger(__name__)
T = TypeVar("T")
FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 5.0


def retry_while_db_down(act: Callable[[], T], stopping: threading.Event) -> T:
    """What ``act`` gives, tried again while the database is away; JobInterrupted when the process stops meanwhile.

    A job's hours of work are not lost to a restart of Postgres. ``act`` is one transaction, because it may run twice;
    within one that is open already there is nothing to wait for.
    """
    if connection.in_atomic_block:
        return act()
    pause_s = FIRST_PAUSE_S
    while True:
        close_old_connections()
        try:
            return act()
        except (OperationalError, InterfaceError) as error:
            logger.warning("A job waits for the database (%s); next try in %.2f s.", error, pause_s)
        finally:
            close_old_connections()  # a job must not keep a connection of the pool between its writes
        if stopping.wait(pause_s):
            raise JobInterrupted
        pause_s = min(2 * pause_s, MAX_PAUSE_S)
