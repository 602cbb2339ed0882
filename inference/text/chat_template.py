"""Render a model's chat template, messages to prompt text, within limits of time, memory and output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jinja2
import jinja2.meta
from jinja2.exceptions import TemplateError

from core.errors import MillmError
from inference.text.render_budget import RenderBudget, TemplateLimitError, spending
from inference.text.template_sandbox import ChatTemplateEnvironment

MAX_SOURCE_CHARS = 500_000
MAX_ERROR_CHARS = 500
RESERVED_NAMES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")  # transformers provides the first two
PROBE = "probe-text"

Message = Mapping[str, Any]


class ChatTemplateError(MillmError):
    """The chat template cannot be compiled, or refused the messages (with its own message, if it has one)."""

    code = "invalid_value"


class ChatTemplateLimitError(ChatTemplateError):
    """The template was stopped because it used too much time, memory or output."""


class ChatTemplate:
    """A compiled template. ``special_tokens`` are the names it may use, such as ``bos_token``.

    ``takes_parts``: it accepts content as a list of parts; otherwise text parts are joined by line breaks.
    ``takes_text`` is False if it accepts lists only. ``make_budget`` creates the budget of one rendering.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        make_budget: Callable[[], RenderBudget] = RenderBudget,
    ) -> None:
        if len(source) > MAX_SOURCE_CHARS:
            raise ChatTemplateError(f"The chat template has {len(source)} characters; the limit is {MAX_SOURCE_CHARS}.")
        self.source = source
        self._make_budget = make_budget
        self._special_tokens = dict(special_tokens or {})
        self._environment = ChatTemplateEnvironment()
        self._template = self._compile()
        self.takes_text = self._shows_probe(PROBE)
        self.takes_parts = self._shows_probe([{"type": "text", "text": PROBE}])

    @cached_property
    def variables(self) -> frozenset[str]:
        """Return the variables that the template reads and does not set itself."""
        return frozenset(
            jinja2.meta.find_undeclared_variables(jinja2.Environment.parse(self._environment, self.source))
        )

    def literal_text(self) -> str:
        """Return the literal texts of the template, separated by NUL."""
        tree = jinja2.Environment.parse(self._environment, self.source)
        texts = {node.data for node in tree.find_all(jinja2.nodes.TemplateData)}
        texts |= {node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)}
        return "\0".join(sorted(texts))

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] | None = None,
        max_chars: int = 4_000_000,
    ) -> str:
        """Return the prompt. ``kwargs`` are variables. Raise ChatTemplateError if the template fails or exceeds a
        limit.
        """
        for name in kwargs or {}:
            if name in RESERVED_NAMES or name.startswith("_"):
                raise ChatTemplateError(f"`{name}` cannot be set as a variable of the chat template.")
        variables = {
            **self._special_tokens,
            **(kwargs or {}),
            "messages": [self._prepare(message) for message in messages],
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return self._run(variables, max_chars)

    def _run(self, variables: dict[str, Any], max_chars: int) -> str:
        try:
            with spending(self._make_budget()):
                return _collect(self._template.generate(**variables), max_chars)
        except TemplateLimitError as error:
            raise ChatTemplateLimitError(f"The chat template was stopped: {error}.") from error
        except TemplateError as error:
            raise ChatTemplateError(_own_message(error)) from error
        except Exception as error:
            raise ChatTemplateError(f"The chat template failed: {_own_message(error)}") from error

    def _compile(self) -> jinja2.Template:
        try:
            with spending(self._make_budget()):  # compiling evaluates constant expressions
                return self._environment.from_string(self.source)
        except TemplateLimitError as error:
            raise ChatTemplateLimitError(f"The chat template was stopped: {error}.") from error
        except Exception as error:
            raise ChatTemplateError(f"The chat template cannot be compiled: {_own_message(error)}") from error

    def _prepare(self, message: Message) -> dict[str, Any]:
        """Return the message as templates expect it: no nulls, reasoning under both names, supported content."""
        prepared = {key: value for key, value in message.items() if value is not None}
        reasoning = next((prepared[name] for name in REASONING_NAMES if name in prepared), None)
        if reasoning is not None:
            prepared = {"thinking": reasoning, **prepared, "reasoning_content": reasoning}
        if "content" in prepared:
            prepared["content"] = self._prepare_content(prepared["content"])
        return prepared

    def _prepare_content(self, content: Any) -> Any:
        if isinstance(content, str):
            return content if self.takes_text or not self.takes_parts else [{"type": "text", "text": content}]
        return content if self.takes_parts else _joined_text(content)

    def _shows_probe(self, content: str | list[dict[str, str]]) -> bool:
        """Return whether the template renders this form of content as text (not as a Python list).

        A template may refuse the probe, but exceeding the limits on such a short chat is an error.
        """
        variables = {
            **self._special_tokens,
            "messages": [{"role": "user", "content": content}],
            "tools": None,
            "documents": None,
            "add_generation_prompt": False,
        }
        try:
            text = self._run(variables, max_chars=100_000)
        except ChatTemplateLimitError:
            raise
        except ChatTemplateError:
            return False
        return PROBE in text and "'text'" not in text


def _collect(pieces: Any, max_chars: int) -> str:
    written: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > max_chars:
            raise TemplateLimitError(f"it writes more than {max_chars} characters")
        written.append(piece)
    return "".join(written)


def _joined_text(parts: Any) -> Any:
    """Return text parts joined by line breaks; other values unchanged, for the template to check."""
    if not isinstance(parts, (list, tuple)):
        return parts
    texts = [part if isinstance(part, str) else part.get("text") for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ChatTemplateError(
            "This model's chat template only supports text, but a message has a part that is not text."
        )
    return "\n".join(texts)


def _own_message(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:MAX_ERROR_CHARS]
