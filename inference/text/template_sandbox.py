"""The Jinja environment for chat templates, which are part of downloaded models and not trusted.

It provides the filters, globals and tags of transformers and renders the same text. In addition to Jinja's sandbox (no
access to Python's internals, no changes of arguments), every operation that can take time or memory is charged to the
current :class:`~inference.text.render_budget.RenderBudget`: output, loop iterations, calls, operators, filters,
comparisons of lists, and literals. Without a loader, templates cannot include or import anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from inference.text.render_budget import TURN_COST, TemplateLimitError, current_budget, written_cost
from inference.text.render_marks import as_text, restore_marks
from inference.text.template_filters import (
    LONG_NUMBER,
    charged_turns,
    chat_template_filters,
    check_format,
    check_method,
    check_operands,
)

MAX_RANGE = 100_000
MAX_TIME_FORMAT = 200


class GenerationTag(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}`` marks assistant text for training; it has no effect here."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and renders chat templates, inside ``with spending(budget)``."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_write,
            extensions=[GenerationTag, jinja2.ext.loopcontrols],
        )
        self.filters = chat_template_filters()
        self.globals = {
            "range": _range,
            "dict": TemplateDict(),
            "namespace": TemplateNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "joiner": self.globals["joiner"],
            "cycler": self.globals["cycler"],
        }
        # Called by the code that _Guards inserts:
        self.guard_loop = GuardedLoop
        self.guard_text = _charge_text
        self.guard_literal = _charge_elements
        self.guard_comparison = _charge_comparison
        self.concatenate = _concatenate

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = Parser(self, source, name, filename).parse()
        _Guards().visit(tree)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_operands(operator, left, right)
        result = super().call_binop(context, operator, left, right)
        return _charge_elements(restore_marks(result) if isinstance(result, str) and operator == "%" else result)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        current_budget().spend(TURN_COST)
        check_method(__obj, args)
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(getattr(__obj, "__self__", None), str):
            current_budget().spend_on_text(result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        formatter = super().wrap_str_format(value)
        return None if formatter is None else _bounded_format(value.__self__, formatter)


class GuardedLoop:
    """Charges each iteration of a loop. Has a length if the iterable does, for ``loop.length``."""

    def __init__(self, iterable: Any) -> None:
        self._iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        return charged_turns(iter(self._iterable))

    def __len__(self) -> int:
        return len(self._iterable)


class TemplateDict:
    """``dict`` for templates, without access to the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        value = dict(*args, **kwargs)
        _charge_elements(value)
        return value

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(charged_turns(iter(keys)), value)


class TemplateNamespace(Namespace):
    """``namespace`` for templates. Refuses attribute names that give access to Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _check_namespace_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_namespace_name(name)
        super().__setitem__(name, value)


class _Guards(NodeTransformer):
    """Adds the budget's checks to a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _call("guard_loop", node.iter)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Output:
        size = sum(len(child.data) for child in node.nodes if isinstance(child, nodes.TemplateData))
        self.generic_visit(node)
        node.nodes = [_call("guard_text", nodes.Const(size)), *node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _call("concatenate", *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Expr:
        self.generic_visit(node)
        node.expr = _call("guard_comparison", node.expr)
        for operand in node.ops:
            operand.expr = _call("guard_comparison", operand.expr)
        return node

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        return self._charged_literal(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        return self._charged_literal(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        return (
            self._charged_literal(node) if node.ctx == "load" else node
        )  # otherwise it is the target of an assignment

    def _charged_literal(self, node: nodes.Expr) -> nodes.Expr:
        self.generic_visit(node)
        return _call("guard_literal", node)


def _call(name: str, *arguments: nodes.Node) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None)


def _charge_text(size: int) -> str:
    current_budget().spend(size)
    return ""


def _charge_elements(value: Any) -> Any:
    current_budget().spend_on_elements(value)
    return value


def _charge_comparison(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        current_budget().spend_on_text(value)
    return value


def _write(value: Any) -> str:
    """Return the text of an expression as Jinja does, charging for a structure before it is written."""
    current_budget().spend_on_text(value)
    return as_text(value)


def _concatenate(*values: Any) -> str:
    return "".join(_write(value) for value in values)


def _bounded_format(template: str, formatter: Callable[..., str]) -> Callable[..., str]:
    def bounded(*args: Any, **kwargs: Any) -> str:
        check_format(template)
        current_budget().spend(len(template))
        for value in (*args, *kwargs.values()):
            current_budget().spend((template.count("{") + 1) * written_cost(value, current_budget().left))
        return restore_marks(formatter(*args, **kwargs))

    return bounded


def _check_namespace_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have the attribute {name!r}")


def _range(*args: int) -> range:
    values = range(*args)
    if len(values) > MAX_RANGE:
        raise TemplateLimitError(f"it asks for a range of more than {MAX_RANGE} numbers")
    return values


def _raise_exception(message: Any) -> None:
    raise TemplateError(str(message))


def _strftime_now(time_format: str) -> str:
    if len(time_format) > MAX_TIME_FORMAT or LONG_NUMBER.search(time_format):
        raise TemplateLimitError(f"it asks for a date of more than {MAX_TIME_FORMAT} characters")
    return datetime.now().strftime(time_format)  # noqa: DTZ005 - local time, as transformers gives it to templates
