"""Runs the echo site in our server: ``python -m tests.platform.echo_server``. The engine is a line of output."""

from __future__ import annotations

import sys

from tests.platform.echo_asgi import application  # first: sets Django up

from millm_site.server.server import Server  # then: installs the reactor  # isort: skip
from millm_site.server.limits import ServerLimits
from millm_site.server.listener import listen, url_of


def stop_engine(drain_s: float) -> None:
    print(f"engine stopped with {drain_s:.0f} s left", flush=True)  # noqa: T201


def main() -> None:
    listener = listen("127.0.0.1", 0)
    server = Server(
        application,
        listener,
        limits=ServerLimits.from_settings(),
        on_drain=lambda: print("draining", flush=True),  # noqa: T201
        stop_engine=stop_engine,
    )
    url = url_of(listener)
    server.run(with_signals=True, on_ready=lambda: print(f"miLLM serves on {url}", flush=True))  # noqa: T201
    sys.exit(0)


if __name__ == "__main__":
    main()
