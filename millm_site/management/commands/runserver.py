"""manage.py runserver: our server with autoreload, for development."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from django.core.management import CommandError
from django.core.management.commands import runserver
from django.utils import autoreload

from millm_site.first_run import welcome
from millm_site.server.listener import PortError, listen, listen_for_ollama, url_of
from millm_site.server.reloading import supervise

RELOAD_DRAIN_S = 1.0  # a reload should not wait for long streams


class Command(runserver.Command):
    help = "Serve the site for development: reloads when code changes."
    server: Any = None
    addr: str  # set by Django's handle()
    port: str

    def run(self, **options: Any) -> None:
        """Run the server, either without autoreload or as the parent or the child process of the reloader."""
        if not options["use_reloader"]:
            self.inner_run(None, **options)
        elif os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) != "true":
            sys.exit(supervise())
        else:
            self._run_reloading(**options)

    def _run_reloading(self, **options: Any) -> None:
        """Run the server in a thread of this process. SystemExit of a reload or a signal passes through here."""
        try:
            autoreload.run_with_reloader(self.inner_run, **options)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)  # it is stopping already
            if self.server is not None:
                self.server.stop_soon(RELOAD_DRAIN_S)
                self.server.stopped.wait(RELOAD_DRAIN_S + 10)
            self._stop_rest()

    def inner_run(self, *args: Any, **options: Any) -> None:
        autoreload.raise_last_exception()
        if not options["skip_checks"]:
            self.check(display_num_errors=True)
        self.check_migrations()
        try:
            listener = listen(self.addr, int(self.port))
            ollama = listen_for_ollama()
        except PortError as error:
            raise CommandError(str(error)) from error
        from millm_site.server.site import site_server

        self.server = site_server(listener, self.log_action, ollama=ollama)
        text = welcome(url_of(listener), None, ollama_url="" if ollama is None else url_of(ollama))
        self.server.run(with_signals=not options["use_reloader"], on_ready=lambda: self.say(text))
        if not options["use_reloader"]:
            self._stop_rest()

    def say(self, text: str) -> None:
        """Print and flush, because the output may be a pipe or a file."""
        self.stdout.write(text)
        self.stdout.flush()

    def log_action(self, protocol: str, action: str, details: dict[str, Any]) -> None:
        if protocol == "http":
            self.stdout.write("{method} {path} {status} {time_taken:.3f} s".format_map(details))
        else:
            self.stdout.write(f"{protocol} {details['path']} {action}")

    def _stop_rest(self) -> None:
        from millm_site.serving import serving

        serving.stop(0.0)
