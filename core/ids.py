"""Public ids of objects, which are random: unlike primary keys, they reveal neither order nor number. And primary keys
that forms and addresses name.
"""

from __future__ import annotations

import uuid
from functools import partial

MAX_LENGTH = 64


def new_id(prefix: str) -> str:
    """Return a new id with that prefix."""
    return prefix + uuid.uuid4().hex


# A named default, which migrations can refer to.
file_id = partial(new_id, "file-")


def key_in(text: str) -> int:
    """Return the number of a row that a form or an address names; 0, which no row has, for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 18 else 0
