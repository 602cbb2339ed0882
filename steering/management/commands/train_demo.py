"""``manage.py train_demo``: train the demo model, its SAE and its profiles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from steering.demo.install import ARTIFACTS

DEFAULT_OUTPUT = ARTIFACTS


class Command(BaseCommand):
    """Calls `tools.demo_model.train.train_demo`."""

    help = "Train the demo model and its SAE on text of the built-in grammar and write them to a folder."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the target folder and the training options."""
        parser.add_argument(
            "--output", type=Path, default=DEFAULT_OUTPUT, help="folder for the artifacts (default: %(default)s)"
        )
        parser.add_argument(
            "--seed", type=int, default=7, help="seed of the corpus and of all training (default: %(default)s)"
        )
        parser.add_argument("--tokens", type=int, help="token budget of the language model's training")
        parser.add_argument(
            "--start", type=Path, metavar="FOLDER", help="start from the weights of the demo model in this folder"
        )
        parser.add_argument("--quick", action="store_true", help="a quick run whose artifacts are complete but useless")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Train the demo and write it."""
        # Imported here: other commands must not load torch.
        from tools.demo_model.recipe import DemoRecipe, quick_recipe
        from tools.demo_model.train import train_demo

        recipe = quick_recipe(options["seed"]) if options["quick"] else DemoRecipe(seed=options["seed"])
        if options["tokens"]:
            recipe = replace(recipe, model=replace(recipe.model, tokens=options["tokens"]))
        start = options["start"]
        if start and not (start / "model.safetensors").is_file():
            raise CommandError(f"{start} contains no model: model.safetensors is missing.")
        train_demo(recipe, options["output"], self.stdout.write, start=start)
