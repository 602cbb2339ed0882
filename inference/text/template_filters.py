"""The filters and operators of chat templates, charged to the current render budget.

Filters are an allow-list of Jinja's, and transformers' ``tojson``. Filters are excluded if they can build huge values
or run long and no common template uses them (center, format, batch, slice, urlize, ...).
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.utils import pass_eval_context

from inference.text.render_budget import ELEMENT_COST, TURN_COST, TemplateLimitError, current_budget, written_cost
from inference.text.render_marks import as_text, restore_json_marks, restore_marks

MAX_NUMBER_BITS = 4_096
MAX_INDENT = 16
LONG_NUMBER = re.compile(r"\d{4,}")
NESTED_FORMAT = re.compile(r"\{[^{}]*:[^{}]*\{")
# fmt: off - one entry per line would take a page
PLAIN_FILTERS = (
    "abs",
    "attr",
    "count",
    "d",
    "default",
    "first",
    "float",
    "int",
    "items",
    "last",
    "length",
    "map",
    "reject",
    "rejectattr",
    "reverse",
    "safe",
    "select",
    "selectattr",
)
TEXT_FILTERS = ("capitalize", "e", "escape", "lower", "string", "title", "trim", "upper", "wordcount")
COMPARING_FILTERS = ("dictsort", "max", "min", "sort", "unique")
STR_METHODS = frozenset(
    {
        "capitalize",
        "casefold",
        "count",
        "endswith",
        "find",
        "format",
        "format_map",
        "index",
        "isalnum",
        "isalpha",
        "isascii",
        "isdecimal",
        "isdigit",
        "islower",
        "isnumeric",
        "isspace",
        "istitle",
        "isupper",
        "join",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "replace",
        "rfind",
        "rindex",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "swapcase",
        "title",
        "upper",
    }
)
# fmt: on


def chat_template_filters() -> dict[str, Callable[..., Any]]:
    return {
        **{name: _charged(FILTERS[name]) for name in PLAIN_FILTERS},
        **{name: _charged(FILTERS[name], reads_all=True) for name in COMPARING_FILTERS},
        **{name: _of_text(FILTERS[name]) for name in TEXT_FILTERS},
        "indent": _indent,
        "join": _join,
        "list": _list,
        "replace": _replace,
        "round": _round,
        "tojson": _tojson,
    }


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Charge for an operation, or refuse it, before it builds something huge."""
    if operator == "*":
        _check_repetition(left, right)
        _check_repetition(right, left)
    if operator in {"*", "**"} and isinstance(left, int) and isinstance(right, int):
        _check_number(operator, left, right)
    if operator == "%" and isinstance(left, str):
        check_format(left)
        current_budget().spend_on_text(right)


def check_method(method: Any, args: tuple[Any, ...]) -> None:
    """Refuse string methods that are not on the allow-list, and charge expensive ones before they run."""
    owner = getattr(method, "__self__", None)
    name = getattr(method, "__name__", "")
    if isinstance(owner, (list, tuple)) and name in {"index", "count"}:
        current_budget().spend_on_text(owner)
    if not isinstance(owner, str) or not inspect.isbuiltin(method):
        return
    if name not in STR_METHODS:
        raise SecurityError(f"str.{name} cannot be used in a chat template")
    if name in {"split", "rsplit", "splitlines"}:
        _check_split(owner, args)
    if name == "replace" and len(args) >= 2:
        _check_replacement(owner, args[0], args[1])
    if name == "join" and args:
        _check_join(owner, args[0])


def check_format(template: str) -> None:
    if LONG_NUMBER.search(template) or "*" in template or NESTED_FORMAT.search(template):
        raise TemplateLimitError("a format in it may be wider than 999 characters")


def charged_turns(values: Iterator[Any]) -> Iterator[Any]:
    budget = current_budget()
    for value in values:
        budget.spend(TURN_COST)
        yield value


def _check_repetition(value: Any, times: Any) -> None:
    if isinstance(value, (str, list, tuple)) and isinstance(times, int):
        current_budget().spend(written_cost(value, current_budget().left) * max(times, 0))


def _check_number(operator: str, left: int, right: int) -> None:
    bits = left.bit_length() * max(right, 0) if operator == "**" else left.bit_length() + right.bit_length()
    if bits > MAX_NUMBER_BITS:
        raise TemplateLimitError("it computes a number of more than 1,200 digits")


def _check_replacement(text: Any, old: Any, new: Any) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        places = text.count(old) if old else len(text) + 1
        current_budget().spend(len(text) + places * len(new))


def _check_split(text: str, args: tuple[Any, ...]) -> None:
    separator = args[0] if args else None
    pieces = text.count(separator) if isinstance(separator, str) and separator else len(text) // 2
    current_budget().spend(len(text) + ELEMENT_COST * pieces)


def _check_join(separator: Any, values: Any) -> None:
    budget = current_budget()
    budget.spend_on_text(values)
    if isinstance(values, (list, tuple, str, dict)):
        budget.spend(len(values) * len(str(separator)))


def _charged(function: Callable[..., Any], *, reads_all: bool = False) -> Callable[..., Any]:
    """Wrap a Jinja filter: charge for its result, and before the call for its input if the filter reads all of it."""
    mark = getattr(function, "jinja_pass_arg", None)  # it takes Jinja's context or environment as first argument
    place = 0 if mark is None else 1

    def charged(*args: Any, **kwargs: Any) -> Any:
        if reads_all:
            current_budget().spend_on_text(args[place])
        result = function(*args, **kwargs)
        if isinstance(result, Iterator):
            return charged_turns(result)
        current_budget().spend(_shallow_cost(result))
        return result

    if mark is not None:
        charged.jinja_pass_arg = mark  # type: ignore[attr-defined]
    return charged


def _of_text(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a Jinja filter that converts its input to text."""

    def charged(value: Any, *args: Any, **kwargs: Any) -> Any:
        current_budget().spend_on_text(value)
        return function(as_text(value), *args, **kwargs)

    return charged


def _shallow_cost(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return TURN_COST * len(value)
    return len(value) if isinstance(value, str) else 1


@pass_eval_context
def _join(context: Any, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    values = list(value)
    _check_join(d, values)
    return restore_marks(str(FILTERS["join"](context, values, d, attribute)))


def _list(value: Any) -> list[Any]:
    if isinstance(value, str):
        current_budget().spend(2 * ELEMENT_COST * len(value))
    return list(charged_turns(iter(value)))


@pass_eval_context
def _replace(context: Any, text: Any, old: Any, new: Any, count: int | None = None) -> str:
    current_budget().spend_on_text(text)
    texts = as_text(text), str(old), str(new)
    _check_replacement(*texts)
    return str(FILTERS["replace"](context, *texts, count))


def _round(value: Any, precision: int = 0, method: str = "common") -> Any:
    if abs(precision) > MAX_INDENT:
        raise TemplateLimitError("it rounds to more than 16 digits")
    return FILTERS["round"](value, precision, method)


def _indent(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:  # noqa: FBT001, FBT002
    current_budget().spend_on_text(text)
    text = as_text(text)
    size = len(width) if isinstance(width, str) else width
    current_budget().spend(len(text) + (text.count("\n") + 1) * max(size, 0))
    return str(FILTERS["indent"](text, width, first, blank))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - transformers' signature
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Return JSON as transformers writes it, without Jinja's HTML escapes."""
    if (indent if isinstance(indent, int) else len(indent or "")) > MAX_INDENT:
        raise TemplateLimitError("it indents JSON by more than 16 characters")
    if len("".join(separators or ())) > MAX_INDENT:
        raise TemplateLimitError("its JSON separators are longer than 16 characters")
    current_budget().spend_on_text(value)
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    current_budget().spend(len(text))
    return restore_json_marks(text) if ensure_ascii else text
