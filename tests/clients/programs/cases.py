"""What a client does on our server, case by case. The programs beside this file run where the client is installed, not
where miLLM is: ``python PROGRAM.py URL`` prints one line of JSON for each case, which a test reads."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

Case = Callable[[str], Any]
_cases: list[Case] = []


def case(function: Case) -> Case:
    """A function of the server's address whose result can be written as JSON; it may be a coroutine function."""
    _cases.append(function)
    return function


def main() -> None:
    """All in one event loop: some clients keep their connections in it from case to case."""
    url = sys.argv[1]
    with asyncio.Runner() as runner:
        for function in _cases:
            print(json.dumps({"case": function.__name__, **_outcome(function, url, runner)}), flush=True)


def _outcome(function: Case, url: str, runner: asyncio.Runner) -> dict[str, Any]:
    """An error is an outcome too: it fails its own case's test and no other."""
    try:
        result = function(url)
        return {"result": runner.run(result) if inspect.iscoroutine(result) else result}
    except Exception:
        return {"error": traceback.format_exc()}
