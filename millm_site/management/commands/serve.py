"""manage.py serve: miLLM in its own server."""

from __future__ import annotations

import gc
import signal
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandError
from django.db import OperationalError

from millm_site.database import stop_embedded
from millm_site.first_run import Login, is_migrated, keep_first_password, set_up, welcome
from millm_site.serving import serving


class Command(BaseCommand):
    help = (
        "Serve the site on MILLM_HOST and MILLM_PORT until Ctrl-C or SIGTERM. Running requests finish; a "
        "second signal cancels them. Exits with an error if the engine fails, so that a supervisor can "
        "restart it."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--setup",
            action="store_true",
            help="First migrate, install the demo and create an admin user if there is none.",
        )
        parser.add_argument(
            "--measure-demo",
            action="store_true",
            help="With --setup: if the demo is new, queue a job that measures its SAE.",
        )

    def handle(self, *args: Any, setup: bool, measure_demo: bool, **options: Any) -> None:
        gc.disable()  # imports create little garbage, and collecting it would take a fifth of the startup time
        try:
            self._serve(setup=setup, measure_demo=measure_demo)
        finally:
            gc.enable()

    def _serve(self, *, setup: bool, measure_demo: bool) -> None:
        from millm_site.server.listener import PortError, listen, url_of

        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # until the server handles it
        try:
            listener = listen(
                settings.MILLM_HOST, settings.MILLM_PORT
            )  # first: fail before migrating if the port is in use
        except PortError as error:
            raise CommandError(str(error)) from error
        serving.prepare()
        login = self._prepare(setup=setup, measure_demo=measure_demo)
        from millm_site.server.site import site_server

        server = site_server(listener)
        text = welcome(url_of(listener), login, password_file=self._hidden_password(login))
        serving.on_failure(server.stop_soon)
        server.run(with_signals=True, on_ready=lambda: self._announce(text))
        self._stop()
        if serving.failure:
            raise CommandError(f"The engine failed. {serving.failure}")

    def _prepare(self, *, setup: bool, measure_demo: bool) -> Login | None:
        try:
            if setup:
                self._print("Preparing the database and the demo ...")
                return set_up(measure_demo=measure_demo)
            if not is_migrated():
                raise CommandError("There are unapplied migrations. Run `manage.py migrate`, or pass --setup.")
        except OperationalError as error:
            raise CommandError(f"The database cannot be used: {error}") from error
        return None

    def _hidden_password(self, login: Login | None) -> Path | None:
        """Write a new password to a file and return its path; None on a terminal, where the password is printed."""
        if login is None or not login.password or self.stdout.isatty():
            return None
        return keep_first_password(login.password, settings.MILLM_HOME)

    def _announce(self, text: str) -> None:
        gc.enable()
        self._print(text)

    def _stop(self) -> None:
        serving.stop(0.0)
        stop_embedded()
        self._print("Stopped.")

    def _print(self, text: str) -> None:
        """Print ``text`` and flush, because the output may be a pipe or a file."""
        self.stdout.write(text)
        self.stdout.flush()
