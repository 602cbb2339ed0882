"""Records of access to the request log stay as they were written, whoever writes to the table."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, connection, transaction

from openai_api.models import LogAccess
from openai_api.request_log.access import record_access

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE openai_api_logaccess SET username = 'somebody'",
        "UPDATE openai_api_logaccess SET num_rows = 0, is_complete = false",
        "DELETE FROM openai_api_logaccess",
    ],
)
@pytest.mark.parametrize("act", [LogAccess.Act.READ, LogAccess.Act.EXPORT])
def test_the_database_refuses_changes(act: LogAccess.Act, statement: str):
    record_access(act=act, user=None, num_rows=3)
    refused(statement)
    access = LogAccess.objects.get()
    assert (access.username, access.num_rows, access.is_complete) == ("", 3, True)


def test_an_export_counts_its_rows_until_it_ends():
    access = record_access(act=LogAccess.Act.EXPORT, user=None, num_rows=0, is_complete=False)
    row = LogAccess.objects.filter(pk=access.pk)
    row.update(num_rows=2)
    refused("UPDATE openai_api_logaccess SET num_rows = 1")
    refused("UPDATE openai_api_logaccess SET num_rows = 3, request_id = 'x'")
    row.update(num_rows=5, is_complete=True)
    refused("UPDATE openai_api_logaccess SET num_rows = 6")
    assert row.get().num_rows == 5


def test_the_table_cannot_be_emptied():
    record_access(act=LogAccess.Act.READ, user=None)
    refused("TRUNCATE openai_api_logaccess")
    assert LogAccess.objects.exists()


def refused(statement: str) -> None:
    with pytest.raises(DatabaseError, match="never changed"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)
