"""``manage.py train_sae MODEL NAME --layer L``: train an SAE, in this process or as a job of the running server."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from core.commands import MillmCommand
from inference.interventions import Site
from inference.models import LanguageModel
from inference.registry.standalone_model import open_standalone
from steering.corpora.corpus import read_corpus, tokenise
from steering.sae_registry.health import judge
from steering.training.recipe import ACTIVATIONS, TRAINABLE_SITES, TrainingRecipe
from steering.training.services import (
    DEFAULT_ACTIVATIONS,
    TrainingOrder,
    join_corpora,
    register_trained,
    request_training,
)


class Command(MillmCommand):
    help = (
        "Train an SAE on the activations of a model, and register it. Loads the model into this process; with --queue, "
        "the running server trains in a job. A run that was stopped continues when it is started again."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        recipe = TrainingRecipe(features=32)
        parser.add_argument("model", help="the registered model")
        parser.add_argument("name", help="the name of the SAE; it is written to MILLM_HOME/saes/NAME")
        parser.add_argument("--layer", type=int, required=True)
        parser.add_argument("--site", choices=TRAINABLE_SITES, default="resid_post")
        parser.add_argument("--features", type=int, required=True, help="number of features, often 8 to 32 times d_in")
        parser.add_argument("--k", type=int, default=recipe.k, help="active features per token (default: %(default)s)")
        parser.add_argument(
            "--activation",
            choices=ACTIVATIONS,
            default=recipe.activation,
            help="batchtopk and jumprelu are saved as JumpReLU, with a mean of k active features (default: topk)",
        )
        parser.add_argument(
            "--tokens",
            type=int,
            default=recipe.tokens,
            help="training vectors; stored ones are used again if there are fewer (default: %(default)s)",
        )
        parser.add_argument(
            "--corpus",
            nargs="+",
            default=[""],
            metavar="FILE",
            help=".jsonl, .ndjson or .txt files; with --queue, names of files in MILLM_HOME/corpora",
        )
        parser.add_argument(
            "--max-activations",
            type=int,
            default=DEFAULT_ACTIVATIONS,
            help="activations to store on the disk, 2 x d_in bytes each (default: %(default)s)",
        )
        parser.add_argument("--batch", type=int, default=recipe.batch, help="default: %(default)s")
        parser.add_argument("--learning-rate", type=float, default=recipe.learning_rate, help="default: %(default)s")
        parser.add_argument("--seed", type=int, default=recipe.seed)
        parser.add_argument(
            "--folder", type=Path, help="for activations and checkpoints (default: MILLM_HOME/training)"
        )
        parser.add_argument("--queue", action="store_true", help="queue a job instead")

    def handle(self, **options: Any) -> None:
        model = LanguageModel.objects.filter(name=options["model"]).first()
        if model is None:
            raise CommandError(f"The model {options['model']} does not exist; register it with add_model first.")
        recipe = TrainingRecipe(
            **{name: options[name] for name in ("features", "k", "activation", "tokens", "batch", "learning_rate")},
            seed=options["seed"],
        )
        site = Site(options["layer"], options["site"])
        order = TrainingOrder(options["name"], model, site, recipe, options["max_activations"])
        if options["queue"]:
            job = request_training(order=order, corpora=options["corpus"])
            self.stdout.write(f"The job {job.pk} trains it.")
        else:
            self._train(order, options["corpus"], options["folder"])

    def _train(self, order: TrainingOrder, files: list[str], given: Path | None) -> None:
        from steering.training.run import TrainingPlan, run_training  # imports torch

        folder = given or Path(settings.MILLM_HOME) / "training" / order.name
        order.check(folder=folder)
        corpus = join_corpora([read_corpus(file) for file in files])
        plan = TrainingPlan(order.model.name, order.site, order.recipe, corpus.label, order.max_activations)
        with open_standalone(order.model) as reader:
            documents = tokenise(corpus, reader.text, order.max_activations)
            run_training(plan, documents, reader, folder=folder, target=order.target, monitor=self)
        sae = register_trained(order, measures=False).sae
        for verdict in judge(sae):
            self.stdout.write(self.style.WARNING(verdict.text) if verdict.is_warning else verdict.text)
        self.stdout.write(self.style.SUCCESS(f"Registered {sae} with {sae.d_sae} features, in {order.target}."))

    def progress(self, done: int, total: int, message: str = "") -> None:
        self.stdout.write(f"{message}, {done} of {total}")

    def log(self, line: str) -> None:
        self.stdout.write(line)
