"""``manage.py install_demo``: install the included model, SAE and profiles."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from core.commands import MillmCommand
from steering.demo.install import install_demo


class Command(MillmCommand):
    help = "Install the included demo. Does nothing if it is already installed; your edits stay."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--measure", action="store_true", help="queue a job that measures its SAE")

    def handle(self, **options: Any) -> None:
        demo = install_demo(measures=options["measure"])
        if options["verbosity"] > 0:
            published = ", ".join(demo.published) or "nothing new"
            self.stdout.write(f"Model {demo.model}, SAE {demo.sae}; published: {published}.")
