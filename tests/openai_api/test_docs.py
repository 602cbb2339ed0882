"""docs/openai-compatibility.md says what the schemas do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from openai_api.decisions.schemas import DecisionRequest
from openai_api.keys.authentication import PLACEHOLDERS
from openai_api.responses.schemas.request import ResponseRequest
from openai_api.schemas.anthropic import MessagesRequest
from openai_api.schemas.base import RequestSchema
from openai_api.schemas.batches import BatchRequest
from openai_api.schemas.chat import ChatRequest
from openai_api.schemas.completions import CompletionRequest
from openai_api.schemas.embeddings import EmbeddingsRequest
from openai_api.schemas.files import UploadCompletion, UploadRequest
from openai_api.schemas.moderations import ModerationsRequest
from openai_api.schemas.rerank import RerankRequest, ScoreRequest
from openai_api.schemas.tokens import TokenizeRequest
from openai_api.schemas.vector_stores import SearchRequest, StoreRequest

TEXT = (Path(__file__).parents[2] / "docs" / "openai-compatibility.md").read_text()


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def documented(title: str) -> dict[str, list[str]]:
    """Field names by treatment."""
    fields: dict[str, list[str]] = {}
    for line in section(title).splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:3]]
        if line.startswith("| `"):
            fields.setdefault(cells[1], []).extend(re.findall(r"`(\w+)`", cells[0]))
    return fields


@pytest.mark.parametrize(
    ("title", "schema"),
    [
        ("Chat completions", ChatRequest),
        ("Responses", ResponseRequest),
        ("Completions", CompletionRequest),
        ("Embeddings", EmbeddingsRequest),
        ("Creating an upload", UploadRequest),
        ("Completing an upload", UploadCompletion),
        ("Batches", BatchRequest),
        ("Creating a vector store", StoreRequest),
        ("Searching a vector store", SearchRequest),
        ("Anthropic messages", MessagesRequest),
        ("Rerank", RerankRequest),
        ("Score", ScoreRequest),
        ("Moderations", ModerationsRequest),
        ("Decisions", DecisionRequest),
        ("Tokens", TokenizeRequest),
    ],
)
def test_every_field_is_documented_once_as_it_is_treated(title: str, schema: type[RequestSchema]):
    expected = {
        "honoured": schema.honoured_fields(),
        "ignored": schema.ignored_fields(),
        "refused": set(schema.REFUSED),
    }
    assert {name: sorted(fields) for name, fields in documented(title).items()} == {
        name: sorted(fields) for name, fields in expected.items() if fields
    }


def test_the_placeholders_are_documented():
    listed = section("Keys and limits").split("count as none there: ")[1].split(". Any other")[0]
    assert set(re.findall(r"`([\w-]+)`", listed)) == PLACEHOLDERS - {""}


def test_every_code_in_the_sources_is_documented():
    root = Path(__file__).parents[2]
    sources = [path.read_text() for package in ("openai_api", "storage") for path in (root / package).rglob("*.py")]
    codes = set(re.findall(r'(?<!error_)code(?:: str)? ?= ?"(\w+)"', "\n".join(sources)))
    assert codes <= set(re.findall(r"`(\w+)`", section("Errors")))
