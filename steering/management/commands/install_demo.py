"""``manage.py install_demo``: install the included model, SAE and profiles."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from core.commands import MillmCommand
from steering.demo.install import DEMOS, default_demo, install_demo


class Command(MillmCommand):
    help = "Install a demo: model, SAE and profiles. Does nothing if it is already installed; your edits stay."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--demo", choices=tuple(DEMOS), help="which one; default: MILLM_DEMO")
        parser.add_argument("--measure", action="store_true", help="queue a job that measures its SAE")

    def handle(self, **options: Any) -> None:
        chosen = DEMOS[options["demo"]] if options["demo"] else default_demo()
        demo = install_demo(chosen, measures=options["measure"], report=self._report)
        if options["verbosity"] > 0:
            published = ", ".join(demo.published) or "nothing new"
            self.stdout.write(f"Installed: {demo}; published: {published}.")

    def _report(self, text: str) -> None:
        """Print ``text`` and flush, because the output may be a pipe or a file."""
        self.stdout.write(text)
        self.stdout.flush()
