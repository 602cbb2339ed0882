"""``python -m tests.jobs.job_server COMMAND ...``: manage.py with a kind of jobs that the tests can follow.

``count`` appends a line with its process and step to ``params["file"]`` at each step. From ``params["hold_at"]`` on it
waits while there is a file beside it that ends in ``.hold``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import django
from django.core.management import execute_from_command_line

KIND = "test.count"


def main() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "millm_site.settings"
    django.setup()
    from jobs.kinds import JobKind, register
    from jobs.lanes import Lane

    register(JobKind(KIND, "Count", count, lane=Lane.BULK))
    if sys.argv[1] == "enqueue":
        enqueue(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        execute_from_command_line(["manage.py", *sys.argv[1:]])


def enqueue(file: str, steps: int, hold_at: int) -> None:
    from jobs.services import enqueue_job

    params = {"file": file, "steps": steps, "hold_at": hold_at}
    print(enqueue_job(kind=KIND, params=params).pk)  # noqa: T201 - the caller reads it


def count(job):
    path, steps = Path(job.params["file"]), job.params["steps"]
    for step in range(job.checkpoint.get("next", 0), steps):
        with path.open("a") as lines:
            lines.write(f"{os.getpid()} {step}\n")
        job.save_checkpoint({"next": step + 1})
        job.progress(step + 1, steps)
        while step + 1 >= job.params["hold_at"] and path.with_suffix(".hold").exists():
            job.check_cancelled()
            time.sleep(0.02)
    return {"steps": steps}


if __name__ == "__main__":
    main()
