"""``manage.py add_model NAME SOURCE``: register a model, downloading it from the Hub if necessary."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from core.commands import MillmCommand
from inference import services
from inference.files.sources import source_at_shell
from inference.models import LanguageModel
from inference.text.dialects.tool_formats import TOOL_FORMATS
from inference.text.generic_templates import GENERIC_TEMPLATES

OPTIONS = (
    "name",
    "source",
    "revision",
    "dtype",
    "device",
    "quantization",
    "context_length",
    "chat_template",
    "tool_format",
    "use_as",
    "default_sampling",
    "aliases",
    "is_default",
    "autoload",
    "pinned",
    "keep_alive_s",
    "replicas",
    "shared_prefix_cache",
    "input_price",
    "cached_input_price",
    "output_price",
    "trust_remote_code",
    "allow_pickle",
)


class Command(MillmCommand):
    help = (
        "Register a model from a local directory or the Hugging Face Hub. Hub models are downloaded "
        "(gated ones need HF_TOKEN)."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="the value of `model` in requests")
        parser.add_argument("source", help="a directory, or a Hub id such as org/model")
        parser.add_argument("--revision", default="", help="branch, tag or commit on the Hub")
        parser.add_argument("--dtype", default="auto", choices=LanguageModel.Dtype.values)
        parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
        parser.add_argument("--quantization", default="none", choices=LanguageModel.Quantization.values)
        parser.add_argument("--context-length", type=int, default=0, help="0: the model's maximum")
        parser.add_argument(
            "--chat-template",
            default="",
            metavar="NAME|FILE",
            help=f"overrides the model's template: {', '.join(GENERIC_TEMPLATES)}, or a .jinja file",
        )
        parser.add_argument(
            "--tool-format",
            default="",
            choices=sorted(TOOL_FORMATS),
            help="how it writes tool calls (default: detected from its chat template)",
        )
        parser.add_argument(
            "--use-as",
            default="",
            choices=[value for value in LanguageModel.UseAs.values if value],
            help="register a Whisper model for translation",
        )
        parser.add_argument(
            "--parameter",
            action="append",
            default=[],
            dest="default_sampling",
            metavar="NAME=VALUE",
            help="default of a request parameter, such as temperature=0.7 or voice=anna; repeatable",
        )
        parser.add_argument("--alias", action="append", default=[], dest="aliases", help="another name; repeatable")
        parser.add_argument(
            "--default", action="store_true", dest="is_default", help="make it the default model of its kind"
        )
        parser.add_argument("--autoload", action="store_true", help="load it when the server starts")
        parser.add_argument("--pinned", action="store_true", help="never unload it to free memory")
        parser.add_argument(
            "--keep-alive", type=int, dest="keep_alive_s", help="seconds idle before it is unloaded; 0: never"
        )
        parser.add_argument(
            "--replicas", type=int, help="with several engine processes: how many load it (default: all)"
        )
        parser.add_argument(
            "--shared-prefix-cache",
            action="store_true",
            help="share cached prompt prefixes between users; users can then infer prefixes of others' prompts",
        )
        parser.add_argument(
            "--input-price", type=float, help="price per million input tokens, for the cost of requests"
        )
        parser.add_argument(
            "--cached-input-price",
            type=float,
            help="price per million input tokens from the prefix cache (default: the input price)",
        )
        parser.add_argument("--output-price", type=float, help="price per million output tokens")
        parser.add_argument(
            "--trust-remote-code",
            action="store_true",
            help="run code that comes with the model; needs MILLM_ALLOW_REMOTE_CODE=true",
        )
        parser.add_argument(
            "--allow-pickle",
            action="store_true",
            help="accept pickled weights, which can run code; needs MILLM_ALLOW_REMOTE_CODE=true",
        )

    def handle(self, **options: Any) -> None:
        options["chat_template"] = _template(options["chat_template"])
        options["default_sampling"] = dict(_parameter(given) for given in options["default_sampling"])
        model = services.add_model(
            **{name: options[name] for name in OPTIONS} | {"source": source_at_shell(options["source"])}
        )
        self.stdout.write(self.style.SUCCESS(f"Registered {model.name} from {model.source}."))


def _parameter(given: str) -> tuple[str, Any]:
    """Return the name and the value, which is JSON or a text. Raise CommandError."""
    name, equals, value = given.partition("=")
    if not equals:
        raise CommandError(f"--parameter must be NAME=VALUE, got `{given}`.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _template(given: str) -> str:
    """Return the name of a generic template, or the content of a file. Raise CommandError."""
    if not given or given in GENERIC_TEMPLATES:
        return given
    try:
        return Path(given).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        names = ", ".join(GENERIC_TEMPLATES)
        raise CommandError(f"--chat-template must be one of {names}, or a readable file, got `{given}`.") from error
