"""manage.py serve: miLLM in its own server."""

from __future__ import annotations

import gc
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.management import BaseCommand, CommandError
from django.core.management.base import CommandParser
from django.db import OperationalError

from core.errors import MillmError
from inference.services import ensure_model
from millm_site.database import connections_warning, database_problem, stop_embedded
from millm_site.first_run import Login, is_migrated, keep_first_password, set_up, welcome
from millm_site.options import add_setting_options, option_of, unapplied_options
from millm_site.serving import serving

ADMIN_KEY = "MILLM_ADMIN_API_KEY"
VISIBLE_KEY = (
    f"Warning: other users of this machine can see the key of --api-key in the process list. Set {ADMIN_KEY} instead, "
    "or admin_api_key in a file that only you can read (--config)."
)


class Command(BaseCommand):
    help = (
        "Serve the site on MILLM_HOST and MILLM_PORT until Ctrl-C or SIGTERM. Running requests finish; a "
        "second signal cancels them. Exits with an error if the engine fails, so that a supervisor can "
        "restart it. Options take precedence over environment variables, these over the file of --config."
    )

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Accept no abbreviated options: manage.py has applied them before, by their full names."""
        return super().create_parser(prog_name, subcommand, allow_abbrev=False, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
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
        parser.add_argument(
            "--model",
            action="append",
            default=[],
            dest="models",
            metavar="[NAME=]SOURCE",
            help="Register this model if it is not registered, and load it when the server starts: a directory or a "
            "Hub id such as org/model. Without NAME, requests name it as the directory or the id. Repeatable.",
        )
        add_setting_options(parser)

    def handle(self, *args: Any, setup: bool, measure_demo: bool, models: list[str], **options: Any) -> None:
        if unapplied := unapplied_options(options):
            raise CommandError(f"{', '.join(unapplied)} must be options of manage.py, which sets variables from them.")
        if option_of(ADMIN_KEY):
            self.stderr.write(self.style.WARNING(VISIBLE_KEY))
        gc.disable()  # imports create little garbage, and collecting it would take a fifth of the startup time
        try:
            self._serve(setup=setup, measure_demo=measure_demo, models=models)
        finally:
            gc.enable()

    def _serve(self, *, setup: bool, measure_demo: bool, models: list[str]) -> None:
        from millm_site.server.listener import PortError, listen, listen_for_ollama, url_of

        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # until the server handles it
        try:
            listener = listen(
                settings.MILLM_HOST, settings.MILLM_PORT
            )  # first: fail before migrating if the port is in use
            ollama = listen_for_ollama()
        except PortError as error:
            raise CommandError(str(error)) from error
        serving.prepare()
        login = self._prepare(setup=setup, measure_demo=measure_demo)
        serving.load_at_start([self._register(given) for given in models])
        text = welcome(
            url_of(listener),
            login,
            password_file=self._hidden_password(login),
            ollama_url="" if ollama is None else url_of(ollama),
        )
        try:
            if settings.MILLM_WORKERS > 1:
                self._run_workers(listener, ollama, text)
            else:
                self._run_server(listener, ollama, text)
        finally:
            self._stop()
        if serving.failure:
            raise CommandError(f"The engine failed. {serving.failure}")

    def _run_server(self, listener: socket.socket, ollama: socket.socket | None, text: str) -> None:
        from millm_site.server.site import site_server

        server = site_server(listener, ollama=ollama)
        serving.on_failure(server.stop_soon)
        server.run(with_signals=True, on_ready=lambda: self._announce(text))

    def _run_workers(self, listener: socket.socket, ollama: socket.socket | None, text: str) -> None:
        """Keep the engine in this process, and let web workers serve."""
        from millm_site.workers.supervisor import WebWorkers, WorkersFailedError, by_prefix

        if warning := connections_warning(settings.MILLM_WORKERS + 1):
            self.stderr.write(self.style.WARNING(warning))
        serving.start()
        workers = WebWorkers(by_prefix(listener, ollama), settings.MILLM_WORKERS, drain_s=settings.MILLM_DRAIN_SECONDS)
        serving.on_failure(workers.stop_soon)
        try:
            workers.run(lambda: self._announce(text))
        except WorkersFailedError as error:
            raise CommandError(str(error)) from error

    def _prepare(self, *, setup: bool, measure_demo: bool) -> Login | None:
        try:
            if problem := database_problem():
                raise CommandError(problem)
            if setup:
                self._print("Preparing the database and the demo ...")
                return set_up(measure_demo=measure_demo)
            if not is_migrated():
                raise CommandError("There are unapplied migrations. Run `manage.py migrate`, or pass --setup.")
        except OperationalError as error:
            raise CommandError(f"The database cannot be used: {error}") from error
        return None

    def _register(self, given: str) -> str:
        """Register a model of --model and return its name."""
        self._print(f"Checking the model {given} ...")
        try:
            return ensure_model(given).name
        except OperationalError as error:
            raise CommandError(f"The database cannot be used: {error}") from error
        except MillmError as error:
            raise CommandError("--model: " + "\n".join(error.lines)) from error
        except ValidationError as error:
            raise CommandError("--model: " + " ".join(error.messages)) from error

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
