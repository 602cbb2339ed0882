"""The text functions of one model: chat template, tokenizer, single tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.errors import MillmError
from inference.text.chat_template import ChatTemplate, ChatTemplateError
from inference.text.dialects.answer_grammar import ThinkingState
from inference.text.dialects.dialect import dialect_of
from inference.text.dialects.thinking import is_closed, is_left_open
from inference.text.fill_in_middle import FillTokens
from inference.text.generic_templates import NAMES, template_source, template_stop
from inference.text.plain_tokenizer import PlainTokenizer
from inference.text.prompt_encoder import Pair, PromptEncoder
from inference.text.token_bytes import TokenBytes


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """Facts about a tokenizer. ``tokens`` and ``ids``: special tokens by name, such as ``eos_token``.

    ``templates``: sources of the chat templates in use, by name. ``stop_strings`` end an answer of a generic template.
    """

    kind: str
    vocab_size: int
    tokens: Mapping[str, str]
    ids: Mapping[str, int]
    templates: Mapping[str, str]
    stop_strings: tuple[str, ...] = ()


def describe_tokenizer(tokenizer: Any, chat_template: str = "") -> TokenizerFacts:
    """Describe a tokenizer of transformers, or its copy. Its vocabulary size includes added tokens.

    ``chat_template`` overrides the tokenizer's template: a source, or the name of a generic template.
    """
    tokens = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    return TokenizerFacts(
        kind=tokenizer.kind if isinstance(tokenizer, PlainTokenizer) else type(tokenizer).__name__,
        vocab_size=len(tokenizer),
        tokens=tokens,
        ids={name: int(tokenizer.convert_tokens_to_ids(token)) for name, token in tokens.items()},
        templates=_template_sources(template_source(chat_template) or tokenizer.chat_template or {}),
        stop_strings=template_stop(chat_template),
    )


MAX_CHARS_PER_TOKEN = 32  # of a whole prompt; far more than in any language or code, yet fast to tokenise


class PromptTooLongError(MillmError, ValueError):
    """The prompt cannot fit the model's context. Detected by its number of characters, before tokenising."""

    code = "context_length_exceeded"

    def __init__(self, num_chars: int, max_chars: int, max_model_len: int) -> None:
        super().__init__(
            f"The prompt has {num_chars} characters; this model's context of {max_model_len} tokens fits at most "
            f"{max_chars}. Shorten the prompt."
        )
        self.num_chars = num_chars
        self.max_chars = max_chars
        self.max_model_len = max_model_len


class ModelText:
    """The text functions of a loaded model. Synchronous and thread-safe; process long texts in a thread.

    ``tokenizer`` is a fast tokenizer of transformers, or a PlainTokenizer. Nothing else may encode with it from now on;
    decoding is safe. ``chat_template`` overrides the tokenizer's template, ``tool_format`` the notation of tool calls
    in it.

    Pickled, it is the tokenizer's JSON, the facts and the limits; the copy has a tokenizer of its own.
    """

    def __init__(self, tokenizer: Any, *, max_model_len: int, chat_template: str = "", tool_format: str = "") -> None:
        self._build(
            tokenizer.backend_tokenizer, describe_tokenizer(tokenizer, chat_template), max_model_len, tool_format
        )

    def __getstate__(self) -> dict[str, Any]:
        return {
            "tokenizer_json": self.tokenizer_json(),
            "facts": self.tokenizer,
            "max_model_len": self.max_model_len,
            "tool_format": self._tool_format,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        backend = Tokenizer.from_buffer(state["tokenizer_json"])
        self._build(backend, state["facts"], state["max_model_len"], state["tool_format"])

    def _build(self, backend: Any, facts: TokenizerFacts, max_model_len: int, tool_format: str) -> None:
        self.max_model_len = max_model_len
        self.tokenizer = facts
        self._tool_format = tool_format
        self._backend = backend
        self._templates = {name: ChatTemplate(source, facts.tokens) for name, source in facts.templates.items()}
        self._encoder = PromptEncoder(self._backend, "\0".join(t.literal_text() for t in self._templates.values()))
        self.dialect = dialect_of(
            "\0".join(template.source for template in self._templates.values()), tool_format=tool_format
        )
        self._added = {i: token.content for i, token in self._backend.get_added_tokens_decoder().items()}
        self._token_bytes = TokenBytes(self._backend)
        longest = max((len(token) for token in self._backend.get_vocab()), default=1)
        self.max_chars = max_model_len * min(longest, MAX_CHARS_PER_TOKEN)
        self.special_token_ids = self._encoder.special_token_ids

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The strings that end an answer in a chat, beside special tokens. Only generic templates have them."""
        return self.tokenizer.stop_strings

    @property
    def has_chat_template(self) -> bool:
        return bool(self._templates)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the token ids of the rendered chat. Only special tokens written by the template become control tokens.

        With ``continue_final`` the prompt ends with the content of the last message. Raise ChatTemplateError (no
        template, refused by it, or a limit exceeded) or PromptTooLongError.
        """
        self._check_size(_num_chars(messages) + _num_chars(tools) + _num_chars(kwargs))
        wrapped = self._encoder.wrap_messages(messages)
        text = self._template_for(tools).render(
            wrapped,
            tools=self._encoder.wrap(tools),
            add_generation_prompt=add_generation_prompt and not continue_final,
            kwargs=self._encoder.wrap(kwargs),
            max_chars=4 * self.max_chars + 100_000,
        )
        self._check_size(len(text))
        return self._encoder.encode_chat(_cut_after(text, wrapped[-1]["content"]) if continue_final else text)

    def encode(self, text: str, *, adds_special: bool = True) -> list[int]:
        """Encode raw text, with BOS if the tokenizer's config adds it, unless ``adds_special`` is False.

        Special tokens in the text are encoded as plain text. Raise PromptTooLongError.
        """
        self._check_size(len(text))
        return self._encoder.encode(text, adds_special=adds_special)

    @property
    def fill_tokens(self) -> FillTokens | None:
        """The tokens of fill-in-the-middle prompts; None if the tokenizer has none."""
        return self._encoder.fill_tokens

    def encode_fill(self, prefix: str, suffix: str) -> list[int]:
        """Encode a fill-in-the-middle prompt; only for models with :attr:`fill_tokens`. Raise PromptTooLongError."""
        self._check_size(len(prefix) + len(suffix))
        return self._encoder.encode_fill(prefix, suffix)

    def encode_pair(self, first: str, second: str) -> Pair:
        """Encode two texts for a model that compares them. Raise PromptTooLongError."""
        self._check_size(len(first) + len(second))
        return self._encoder.encode_pair(first, second)

    def encode_plain(self, text: str) -> list[int]:
        """Encode a short text without BOS."""
        return self._encoder.encode_plain(text)

    def tokenizer_json(self) -> bytes:
        """Return the tokenizer as JSON, for loading it with the tokenizers library in another process."""
        return str(self._backend.to_str()).encode()

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def special_tokens_in(self, marks: Iterable[str]) -> dict[str, int]:
        """Return the ids of those ``marks`` that are special tokens."""
        specials = {self._added[i]: i for i in self.special_token_ids}
        return {mark: specials[mark] for mark in marks if mark in specials}

    def token_of(self, mark: str) -> int | None:
        """Return the id of ``mark`` if it is a single token; otherwise None."""
        ids = list(self._backend.encode(mark, add_special_tokens=False).ids)
        return ids[0] if len(ids) == 1 else None

    def knows_variable(self, name: str) -> bool:
        """Return whether the chat template reads a variable of that name."""
        return any(name in template.variables for template in self._templates.values())

    def token_bytes(self, token_id: int) -> bytes:
        """Return the token's UTF-8 bytes, possibly part of a character; empty for unknown ids."""
        return self._token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """Return the token as text; part of a character in OpenAI's form: ``bytes:\\xe2\\x80``."""
        value = self.token_bytes(token_id)
        try:
            return value.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in value)

    def _template_for(self, tools: Sequence[Mapping[str, Any]] | None) -> ChatTemplate:
        if not self._templates:
            raise ChatTemplateError(
                "This model has no chat template. Use the completions endpoint, or set the model's chat template: "
                f"a Jinja template, or a generic one ({NAMES})."
            )
        return self._templates.get("tool_use" if tools else "default") or self._templates["default"]

    def _check_size(self, num_chars: int) -> None:
        if num_chars > self.max_chars:
            raise PromptTooLongError(num_chars, self.max_chars, self.max_model_len)


def _template_sources(sources: str | Mapping[str, str]) -> dict[str, str]:
    """Return the model's templates by name: ``default``, and ``tool_use`` in some models."""
    if isinstance(sources, str):
        return {"default": sources}
    selected = {name: source for name, source in sources.items() if name in {"default", "tool_use"}}
    if selected and "default" not in selected:
        selected["default"] = selected["tool_use"]
    return selected


def _cut_after(text: str, content: str) -> str:
    """Return the rendered chat up to the end of the last message's content, which some templates strip."""
    for written in (content, content.strip()):
        place = text.rfind(written) if written else -1
        if place >= 0:
            return text[: place + len(written)]
    raise ChatTemplateError(
        "The chat template changes the text of the last message, which therefore cannot be continued."
    )


def _num_chars(value: Any) -> int:
    """Return the number of characters of all strings in a JSON-like value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_num_chars(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(_num_chars(item) for item in value)
    return 0


PROMPT_END = 24  # tokens; marks and the whitespace around them


def thinking_state(text: ModelText, prompt_ids: Sequence[int], *, continues: bool = False) -> ThinkingState:
    """Return whether the answer begins inside reasoning, may begin with it, or has none."""
    marks = text.dialect.thinking
    if marks is None:
        return "none"
    prompt_end = text.decode(prompt_ids[-PROMPT_END:])
    if is_left_open(marks, prompt_end):
        return "begun"
    return "none" if continues or is_closed(marks, prompt_end) else "possible"
