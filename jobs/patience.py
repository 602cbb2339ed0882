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
    """Return the result of ``act``, retrying while the database is down. Raises JobInterrupted if the process stops.

    Hours of work must not be lost to a restart of Postgres. ``act`` must be one transaction, because it may run twice.
    Inside an open transaction it runs once, because that transaction would be lost anyway.
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
