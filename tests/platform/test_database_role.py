"""What the application may do in the embedded database, and what only the owner of the tables may."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from openai import OpenAI
from psycopg.errors import InsufficientPrivilege

from millm_site.embedded_postgres.roles import APPLICATION, OWNER
from tests import live
from tests.platform.test_embedded_postgres import using

pytestmark = pytest.mark.live

REFUSED: dict[str, LiteralString] = {
    "a superuser's role": "SET ROLE postgres",
    "new tables": "CREATE TABLE mine (a int)",
    "other forms of tables": "ALTER TABLE auth_user ADD COLUMN mine int",
    "emptying the audit trail": "TRUNCATE audit_auditevent",
    "switching its triggers off": "ALTER TABLE audit_auditevent DISABLE TRIGGER ALL",
    "replication's way around triggers": "SET session_replication_role = replica",
    "extensions": "DROP EXTENSION vector",
    "programs": "COPY (SELECT 1) TO PROGRAM 'cat'",
    "files": "SELECT pg_read_file('/etc/passwd')",
    "roles": "CREATE ROLE other SUPERUSER",
}
WORK = """
import json
import time
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.utils import timezone
from jobs.apps import start_job_worker, stop_job_worker
from jobs.kinds import JobKind, register
from jobs.lanes import Lane
from jobs.models import Job
from jobs.services import enqueue_job
from openai_api.request_log.entry import LogEntry
from openai_api.request_log.store import LogStore
from openai_api.keys.services import create_api_key
from storage.vector_search import ensure_index
user = User.objects.create_superuser("a", "", "correct horse battery staple")
login = {"username": "a", "password": "correct horse battery staple"}
assert Client(headers={"host": "localhost"}).post("/admin/login/", login).status_code == 302
create_api_key(name="k", owner=user)
LogStore().insert([LogEntry("req_a", timezone.now(), "/v1/models", None, status=200)])
register(JobKind("test.count", "Count", lambda job: job.log("one") or {"n": 1}, lane=Lane.BULK))
job = enqueue_job(kind="test.count", params={})
start_job_worker()
deadline = time.monotonic() + 60
while not Job.objects.get(pk=job.pk).has_ended and time.monotonic() < deadline:
    time.sleep(0.1)
stop_job_worker()
assert Job.objects.get(pk=job.pk).state == "succeeded"
user.delete()
ensure_index(7)
ensure_index(2500)
with connection.cursor() as cursor:
    cursor.execute("SELECT current_user, rolsuper FROM pg_roles WHERE rolname = current_user")
    print(json.dumps(cursor.fetchone()))
"""


def connected(home: Path, user: str) -> psycopg.Connection[Any]:
    return psycopg.connect(host=str(home / "postgres"), user=user, dbname="postgres", autocommit=True)


def test_the_application_reads_and_writes_rows_and_nothing_else(home: Path) -> None:
    environment = {"MILLM_HOME": str(home)}
    with using(home) as keeper:  # keeps the server up
        live.manage("migrate", "--verbosity", "0", environment=environment)
        assert json.loads(live.manage("shell", "-c", WORK, environment=environment).splitlines()[-1]) == [
            APPLICATION,
            False,
        ]
        with connected(home, APPLICATION) as session:
            for statement in REFUSED.values():
                with pytest.raises(InsufficientPrivilege):
                    session.execute(statement)
        keeper.leave()


def test_rows_of_seed_load_are_analysed(home: Path) -> None:
    """Only the owner may, and without statistics the planner chooses queries that are ten times slower."""
    environment = {"MILLM_HOME": str(home)}
    with using(home) as keeper:
        live.manage("migrate", "--verbosity", "0", environment=environment)
        live.manage("seed_load", "--rows", "30", "--features", "0", environment=environment)
        with connected(home, APPLICATION) as session:
            found = session.execute("SELECT reltuples FROM pg_class WHERE relname = 'openai_api_requestlog'")
            assert found.fetchone() == (30,)
        keeper.leave()


def test_data_of_an_older_version_gets_the_role(home: Path) -> None:
    """Its tables were made when there was only the owner."""
    with using(home) as first:
        with connected(home, OWNER) as session:
            session.execute("DROP OWNED BY millm")
            session.execute("DROP ROLE millm")
        with using(home) as second, connected(home, APPLICATION) as session:
            assert session.execute("SELECT count(*) FROM visits").fetchone() == (2,)
            second.leave()
        first.leave()


def test_a_server_does_its_work_as_the_application(home: Path) -> None:
    """Whatever it keeps, in the background too; the log would tell of what was refused."""
    with live.serving("--setup", environment={"MILLM_HOME": str(home), "MILLM_AUTH": "loopback"}) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)
        assert client.responses.create(model="demo", input="Tell me a story.", max_output_tokens=16).status
        assert client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "Tell me."}], max_tokens=3, store=True
        ).choices
        line = {"model": "demo", "messages": [{"role": "user", "content": "Tell me."}], "max_tokens": 3}
        request = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": line}
        file = client.files.create(file=("in.jsonl", json.dumps(request).encode()), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        deadline = time.monotonic() + 120
        while batch.status not in {"completed", "failed"}:
            assert time.monotonic() < deadline, batch
            time.sleep(0.2)
            batch = client.batches.retrieve(batch.id)
        assert batch.status == "completed", batch
        client.files.delete(file.id)
        assert server.stop() == 0, server.output
    assert "permission denied" not in server.output
    assert "Traceback" not in server.output
