"""Ids that clients see. Rows are sorted by their primary keys, which grow; these say nothing about their number."""

from __future__ import annotations

import uuid
from functools import partial

MAX_LENGTH = 64


def new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex


# Migrations name a field's default, so each kind of id has a name.
file_id = partial(new_id, "file-")
