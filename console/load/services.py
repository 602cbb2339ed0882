"""Load samples, written and forgotten."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

from django.db import transaction

from console.load.load import Load
from console.models import COUNTED, HOUR_S, MINUTE_S, LoadSample

MINUTES_KEPT = timedelta(hours=25)


def record_load(*, process: uuid.UUID, minutes: dict[datetime, Load], hours: dict[datetime, Load]) -> None:
    """Write spans by when they began; one that is there already is replaced, for it has grown. All or none."""
    with transaction.atomic():
        for span_s, loads in ((MINUTE_S, minutes), (HOUR_S, hours)):
            for begins_at, load in loads.items():
                values = {name: _storable(getattr(load, name)) for name in COUNTED}
                LoadSample.objects.update_or_create(
                    process=process, span_s=span_s, begins_at=begins_at, defaults=values
                )


def forget_load(*, now: datetime, retention: timedelta) -> int:
    """Minutes go after a day, hours after ``retention``; the number of rows."""
    minutes = LoadSample.objects.filter(span_s=MINUTE_S, begins_at__lt=now - MINUTES_KEPT)
    hours = LoadSample.objects.filter(span_s=HOUR_S, begins_at__lt=now - retention)
    return minutes.delete()[0] + hours.delete()[0]


def _storable(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
