"""``python -m tests.platform.faulty_server hang|die``: `manage.py serve --setup` with a model that does so, once."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from django.core.management import execute_from_command_line


def main() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "millm_site.settings"
    import torch

    faults = iter([hang if sys.argv[1] == "hang" else die])

    def hook(module: Any, _: object) -> None:
        if type(module).__name__ == "Embedding" and threading.current_thread().name == "engine":
            next(faults, nothing)()

    torch.nn.modules.module.register_module_forward_pre_hook(hook)
    execute_from_command_line(["manage.py", "serve", "--setup"])


def hang() -> None:
    threading.Event().wait()


def die() -> None:
    raise SystemExit("gone")


def nothing() -> None:
    pass


if __name__ == "__main__":
    main()
