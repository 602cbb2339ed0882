"""Chat templates for base models that come without one, by name. A model's *chat template* field accepts these names.

A base model does not know the marks of a template as special tokens and would go on with the user's next message, so
each template has the stop strings that end an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

BOS = "{{- bos_token if bos_token is defined else '' -}}"


@dataclass(frozen=True, slots=True)
class GenericTemplate:
    """``source`` is a Jinja template; ``stop`` ends an answer, beside the end of text."""

    source: str
    stop: tuple[str, ...]


GENERIC_TEMPLATES = {
    "chatml": GenericTemplate(
        BOS + "{%- for message in messages -%}"
        "{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' -}}"
        "{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}",
        ("<|im_end|>", "<|im_start|>"),
    ),
    "plain": GenericTemplate(
        BOS + "{%- for message in messages -%}"
        "{{- message['role'] | capitalize + ': ' + message['content'] + '\n\n' -}}"
        "{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- 'Assistant:' -}}{%- endif -%}",
        ("\nUser:", "\nSystem:"),
    ),
    "alpaca": GenericTemplate(
        BOS + "{%- for message in messages -%}"
        "{%- if message['role'] == 'assistant' -%}{{- '### Response:\n' + message['content'] + '\n\n' -}}"
        "{%- elif message['role'] == 'system' -%}{{- message['content'] + '\n\n' -}}"
        "{%- else -%}{{- '### Instruction:\n' + message['content'] + '\n\n' -}}{%- endif -%}"
        "{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '### Response:\n' -}}{%- endif -%}",
        ("\n### Instruction:",),
    ),
    "vicuna": GenericTemplate(
        BOS + "{%- for message in messages -%}"
        "{%- if message['role'] == 'assistant' -%}{{- 'ASSISTANT: ' + message['content'] + '\n' -}}"
        "{%- elif message['role'] == 'system' -%}{{- message['content'] + '\n\n' -}}"
        "{%- else -%}{{- 'USER: ' + message['content'] + '\n' -}}{%- endif -%}"
        "{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- 'ASSISTANT:' -}}{%- endif -%}",
        ("\nUSER:",),
    ),
}
NAMES = ", ".join(GENERIC_TEMPLATES)


def template_source(given: str) -> str:
    """Return the source of a chat template: of the generic one with that name, else ``given`` itself."""
    generic = GENERIC_TEMPLATES.get(given.strip())
    return given if generic is None else generic.source


def template_stop(given: str) -> tuple[str, ...]:
    """Return the stop strings of the generic template with that name; none for others."""
    generic = GENERIC_TEMPLATES.get(given.strip())
    return () if generic is None else generic.stop
