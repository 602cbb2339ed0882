"""``manage.py add_vectors NAME FILE --model M``: plain directions from safetensors, npz or a GGUF control vector."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from core.commands import MillmCommand
from inference.models import LanguageModel
from steering.saes.files import file_sha256
from steering.vectors.services import read_vector_file, save_vectors


class Command(MillmCommand):
    help = "Register steering vectors of a model, one per layer, for use in profiles."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="their name on this server")
        parser.add_argument("file", type=Path, help=".safetensors, .npz, or .gguf as repeng and llama.cpp write it")
        parser.add_argument("--model", required=True, help="the registered model they belong to")
        parser.add_argument("--layer", type=int, help="read only this layer; required if the file names no layer")
        parser.add_argument("--description", default="")

    def handle(self, **options: Any) -> None:
        model = LanguageModel.objects.filter(name=options["model"]).first()
        if model is None:
            raise CommandError(f"The model {options['model']} does not exist; register it with add_model first.")
        path: Path = options["file"]
        try:
            found = read_vector_file(path, layer=options["layer"])
            checksum = file_sha256(path)
            saved = save_vectors(
                name=options["name"], model=model, vectors=found, origin=path.name, checksum=checksum,
                description=options["description"],
            )  # fmt: skip
        except OSError as error:
            raise CommandError(str(error)) from error
        for vector in saved.vectors.all():
            self.stdout.write(f"{vector.place}: norm {vector.norm:.4g}")
        self.stdout.write(self.style.SUCCESS(f"Registered {saved} with {len(found)} vectors."))
