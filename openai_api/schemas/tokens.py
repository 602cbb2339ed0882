"""/tokenize, /detokenize and /tokenizer_info, as vLLM has them: requests and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from openai_api.http.errors import invalid
from openai_api.schemas.base import Harmless, RequestSchema
from openai_api.schemas.chat import ChatRequest, TemplateKwargs
from openai_api.schemas.messages import MAX_MESSAGES, Message
from openai_api.schemas.tools import Tools

MAX_TOKEN_IDS = 262_144
CHAT_ONLY = ("add_generation_prompt", "continue_final_message", "tools", "chat_template_kwargs")


class TokenizeRequest(RequestSchema):
    """A text, or a chat to render with the model's template."""

    model: str | None = Field(None, description="Default: the default generation model, or the only one.")
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1, max_length=MAX_MESSAGES)
    add_special_tokens: bool | None = Field(
        None, description="Add the tokenizer's special tokens, such as BOS, to a prompt. Default: true."
    )
    add_generation_prompt: bool | None = Field(None, description="End a chat with the start of an assistant message.")
    continue_final_message: bool | None = Field(None, description="Leave the last message, from the assistant, open.")
    tools: Tools | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    return_token_strs: bool | None = None
    user: str | None = Field(None, max_length=512, description="Stored in the request log.")

    REFUSED: ClassVar[Mapping[str, Harmless]] = {
        "chat_template": (),
        "mm_processor_kwargs": ({},),
    }

    def check_together(self) -> None:
        super().check_together()
        if (self.prompt is None) == (self.messages is None):
            raise invalid("Send either `prompt` or `messages`.", param="prompt", code="invalid_prompt")
        if self.messages is not None:
            self.chat.check_together()
        if self.messages is not None and self.add_special_tokens:
            raise invalid(
                "`add_special_tokens` cannot be combined with `messages`: the chat template adds special tokens.",
                param="add_special_tokens",
            )
        alone = [name for name in CHAT_ONLY if getattr(self, name) is not None]
        if self.prompt is not None and alone:
            raise invalid(f"`{alone[0]}` requires `messages`, not `prompt`.", param=alone[0])

    @property
    def chat(self) -> ChatRequest:
        """The messages as a chat completion request."""
        fields = {name: getattr(self, name) for name in ("messages", *CHAT_ONLY)}
        return ChatRequest.model_validate({"model": self.model or "", **fields})


class DetokenizeRequest(RequestSchema):
    model: str | None = Field(None, description="Default: the default generation model, or the only one.")
    tokens: list[Annotated[int, Field(ge=0)]] = Field(max_length=MAX_TOKEN_IDS)
    user: str | None = Field(None, max_length=512, description="Stored in the request log.")

    TEXTS: ClassVar[tuple[str, ...]] = ("tokens",)


class TokenizeBody(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeBody(TypedDict):
    prompt: str


class TokenizerInfoBody(TypedDict):
    """Facts about a tokenizer, named as in tokenizer_config.json. Special tokens that it lacks are omitted.

    ``chat_template`` is null if the model has none. ``tool_template`` is a separate template for chats with tools.
    """

    model: str
    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    bos_token: NotRequired[str]
    bos_token_id: NotRequired[int]
    eos_token: NotRequired[str]
    eos_token_id: NotRequired[int]
    pad_token: NotRequired[str]
    pad_token_id: NotRequired[int]
    unk_token: NotRequired[str]
    unk_token_id: NotRequired[int]
    cls_token: NotRequired[str]
    cls_token_id: NotRequired[int]
    sep_token: NotRequired[str]
    sep_token_id: NotRequired[int]
    mask_token: NotRequired[str]
    mask_token_id: NotRequired[int]
    chat_template: str | None
    tool_template: NotRequired[str]
