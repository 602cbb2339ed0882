"""``manage.py set_default_profile MODEL [NAME]``: what requests get that name no profile."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from inference.models import LanguageModel
from steering.profiles import lifecycle


class Command(BaseCommand):
    help = "Set the default profile of a model, for requests that name none. Without a name, remove it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("model", help="the registered model")
        parser.add_argument("profile", nargs="?", default="", help="name, or name@version")

    def handle(self, **options: Any) -> None:
        model = LanguageModel.objects.filter(name=options["model"]).first()
        if model is None:
            raise CommandError(f"There is no model {options['model']}; register it with add_model first.")
        try:
            lifecycle.set_default_profile(model=model, reference=options["profile"])
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from error
        self.stdout.write(self.style.SUCCESS(f"The default of {model} is {options['profile'] or 'no profile'}."))
