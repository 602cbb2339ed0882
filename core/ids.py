"""Public ids of objects. They are random: unlike primary keys, they reveal neither order nor number."""

from __future__ import annotations

import uuid
from functools import partial

MAX_LENGTH = 64


def new_id(prefix: str) -> str:
    """Return a new id with that prefix."""
    return prefix + uuid.uuid4().hex


# A named default, which migrations can refer to.
file_id = partial(new_id, "file-")
