"""The official Python client's own tests of its resources, for all endpoints that this server has.

docs/testing.md says which of them cannot pass, and why.
"""

from __future__ import annotations

from tests import combinations
from tests.clients.environment import run_resources

# Each test exists for five clients: loose and strict, sync or async, and over aiohttp, which is strict too. The strict
# one and that over aiohttp check most; `make test-all` runs all.
SELECTION = () if combinations.ALL else ("-k", "not loose and not (Async and strict)")
MIN_PASSED = 1_260 if combinations.ALL else 500
# Tests that fail against any server that does as OpenAI's: see docs/testing.md.
IMPOSSIBLE = (
    # With `echo`, the first token has no log-probability; the client's type has numbers only.
    "test_completions.TestCompletions::test_method_create_with_all_params_overload_1",
    "test_completions.TestAsyncCompletions::test_method_create_with_all_params_overload_1",
    # The client asks for base64 and then checks strictly that it is a list, before it decodes it.
    "test_embeddings.TestEmbeddings::test_method_create[strict]",
    "test_embeddings.TestEmbeddings::test_raw_response_create[strict]",
    "test_embeddings.TestEmbeddings::test_streaming_response_create[strict]",
    "test_embeddings.TestAsyncEmbeddings::test_method_create[strict]",
    "test_embeddings.TestAsyncEmbeddings::test_method_create[aiohttp]",
    "test_embeddings.TestAsyncEmbeddings::test_raw_response_create[strict]",
    "test_embeddings.TestAsyncEmbeddings::test_raw_response_create[aiohttp]",
    "test_embeddings.TestAsyncEmbeddings::test_streaming_response_create[strict]",
    "test_embeddings.TestAsyncEmbeddings::test_streaming_response_create[aiohttp]",
)
# Parameters that the tests send and this server refuses by name.
LEFT_OUT = {
    "POST /chat/completions": {"audio", "functions", "moderation", "web_search_options"},
    "POST /completions": {"suffix"},
    "POST /responses": {"access_programs", "context_management", "image", "moderation", "prompt"},
}


def test_openai_s_own_tests_of_resources_pass(site: str) -> None:
    report = run_resources(site, *SELECTION)
    unexpected = [name for name in report["failed"] if not name.startswith(IMPOSSIBLE)]
    assert unexpected == [], report["refused"]
    assert report["outcomes"]["passed"] >= MIN_PASSED, report["outcomes"]
    left_out = {f"{endpoint}: {name}" for endpoint, names in LEFT_OUT.items() for name in names}
    assert set(report["left_out"]) <= left_out
