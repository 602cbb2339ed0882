"""``manage.py set_default_profile MODEL [NAME]``: set the profile of requests that name none."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from core.commands import MillmCommand
from inference.models import LanguageModel
from steering.profiles import lifecycle


class Command(MillmCommand):
    help = "Set the default profile of a model, for requests that name none. Without a name, remove it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("model", help="the registered model")
        parser.add_argument("profile", nargs="?", default="", help="name, or name@version")

    def handle(self, **options: Any) -> None:
        model = LanguageModel.objects.filter(name=options["model"]).first()
        if model is None:
            raise CommandError(f"The model {options['model']} does not exist; register it with add_model first.")
        lifecycle.set_default_profile(model=model, reference=options["profile"])
        self.stdout.write(self.style.SUCCESS(f"Default profile of {model}: {options['profile'] or 'none'}."))
