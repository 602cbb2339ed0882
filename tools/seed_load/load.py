"""Fills the database with COPY, each table in its own transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.db import connection, transaction
from django.utils import timezone
from psycopg import sql

from inference.models import LanguageModel
from millm_site.database import as_owner
from openai_api.keys.services import create_api_key
from openai_api.models import ApiKey, RequestLog, RequestScore
from steering.models import SAE, Feature, SteeringProfile
from tools.seed_load import feature_rows, log_rows

MODEL = "seed-model"
OWNER = "seed-load"
NUM_KEYS = 20
SCORED = 20  # every twentieth request


class RealRowsError(Exception):
    """The database contains rows that seed_load did not create; the message says which."""


@dataclass(frozen=True, slots=True)
class Seeded:
    rows: int
    features: int


def seed_load(*, num_rows: int, num_features: int, is_forced: bool = False) -> Seeded:
    """Add to the rows of earlier calls. Raise RealRowsError if other rows would be mixed with generated ones."""
    if not is_forced:
        check_no_real_rows()
    model, keys = _seed_names()
    with transaction.atomic():
        first = RequestLog.objects.filter(pk__startswith=log_rows.ID_START).count()
        made = log_rows.log_rows(
            first=first, count=num_rows, until=timezone.now(), key_ids=[key.pk for key in keys], model=model.name
        )
        _copy(RequestLog._meta.db_table, log_rows.COLUMNS, made)
        _score(first, num_rows)
    with transaction.atomic():
        if num_features:
            sae = _seed_sae(model, num_features)
            made = feature_rows.feature_rows(sae_id=sae.pk, count=num_features)
            _copy(Feature._meta.db_table, feature_rows.COLUMNS, made)
    with as_owner(), connection.cursor() as cursor:  # others may not analyse, and the planner needs the statistics
        for table in (RequestLog, RequestScore, Feature):
            cursor.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(table._meta.db_table)))
    return Seeded(num_rows, num_features)


def _score(first: int, num_rows: int) -> None:
    """Score some of the new requests, from 0 to 1."""
    numbers = range(first, first + num_rows, SCORED)
    now = timezone.now()
    made = ((f"{log_rows.ID_START}{number}", OWNER, "", number % 101 / 100, "", now) for number in numbers)
    _copy(RequestScore._meta.db_table, ("request_id", "username", "name", "value", "note", "updated_at"), made)


def check_no_real_rows() -> None:
    if RequestLog.objects.exclude(pk__startswith=log_rows.ID_START).exists():
        raise RealRowsError("The request log holds real requests.")
    if SteeringProfile.objects.exists() or SAE.objects.exclude(name__startswith="seed-").exists():
        raise RealRowsError("The database holds SAEs or profiles that were not made by seed_load.")


@transaction.atomic
def _seed_names() -> tuple[LanguageModel, list[ApiKey]]:
    """Create a model that is never loaded, and keys whose owner cannot log in."""
    model, _ = LanguageModel.objects.get_or_create(name=MODEL, defaults={"source": "/seed/no-such-model"})
    owner, is_new = User.objects.get_or_create(username=OWNER, defaults={"is_active": False})
    if is_new:
        owner.set_unusable_password()
        owner.save()
        for number in range(NUM_KEYS):
            create_api_key(name=f"seed-key-{number}", owner=owner)
    return model, list(ApiKey.objects.filter(owner=owner).order_by("pk"))


def _seed_sae(model: LanguageModel, num_features: int) -> SAE:
    number = SAE.objects.filter(name__startswith="seed-").count()
    return SAE.objects.create(
        name=f"seed-sae-{number}",
        model=model,
        source="/seed/no-such-sae",
        format="saelens",
        architecture="jumprelu",
        layer=number,
        d_in=2304,
        d_sae=num_features,
        checksum=f"{number:064d}",
        mean_resid_norm=50.0,
    )


def _copy(table: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)
