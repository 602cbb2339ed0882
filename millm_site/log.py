"""Logging: one line per record on standard error, without the row values that database errors quote."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

from core.database import describe_database_error, is_database_error

MAX_CHAIN = 50
MARGIN = r"\n[ |]*"  # prefix of a message's further lines in the traceback of an exception group


class RequestIdFilter(logging.Filter):
    """Adds the request id, which the line format shows, to every record."""

    def filter(self, record: logging.LogRecord) -> bool:
        request = getattr(record, "request", None)  # django.request's records carry it
        request_id = getattr(record, "request_id", "") or getattr(request, "request_id", "")
        record.request_id_field = f" [{request_id}]" if request_id else ""
        return True


class LineFormatter(logging.Formatter):
    """Removes row values, such as prompts, from the messages of database errors: Postgres quotes them."""

    def format(self, record: logging.LogRecord) -> str:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_without_values, record.args))
        elif isinstance(record.args, Mapping):
            record.args = {name: _without_values(value) for name, value in record.args.items()}
        record.msg = _without_values(record.msg)
        return super().format(record)

    def formatException(self, ei: Any) -> str:
        text = super().formatException(ei)
        quoted = {str(error): describe_database_error(error) for error in _chain(ei[1]) if is_database_error(error)}
        for message in sorted(filter(None, quoted), key=len, reverse=True):
            lines = MARGIN.join(map(re.escape, message.split("\n")))
            text = quoted[message].join(re.split(lines, text))
        return text


def _without_values(value: Any) -> Any:
    return describe_database_error(value) if is_database_error(value) else value


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes, and all errors of a group."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < MAX_CHAIN:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def log_settings(level: str) -> dict[str, Any]:
    """Return Django's LOGGING. Records show the ``request_id`` passed as ``extra``, so that a 500 can be traced."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"request_id": {"()": "millm_site.log.RequestIdFilter"}},
        "formatters": {
            "line": {
                "()": "millm_site.log.LineFormatter",
                "format": "{asctime} {levelname} {name}{request_id_field} {message}",
                "style": "{",
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["request_id"]}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            "django": {"handlers": [], "level": level, "propagate": True},
            "django.server": {"handlers": [], "level": level, "propagate": True},
            # At INFO these log every socket and every pooled connection.
            "psycopg.pool": {"level": "WARNING" if level == "INFO" else level},
            "twisted": {"level": "WARNING" if level == "INFO" else level},
            "asyncio": {"level": "WARNING" if level == "INFO" else level},
        },
    }
