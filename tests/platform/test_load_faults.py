"""A whole server that runs out of memory while it loads a model."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import live
from tests.conftest import site_environment
from tests.platform.sparse_model import build_sparse_model
from tests.platform.wire import Answer, answer, connected, get, head, read_all, read_until

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(sys.platform != "linux", reason="limits another process' address space"),
    pytest.mark.skipif(
        ":" in live.SETTINGS.get("MILLM_ENGINE", ""), reason="Ray's actors are not the server's children"
    ),
]
MEBIBYTE = 2**20


def test_memory_that_runs_out_during_a_load_costs_that_load_only(tmp_path: Path, database_url: str) -> None:
    """The estimate finds room on the machine, but the process may grow by 450 MiB only: of the 600 that the file's 300
    become in float32 the allocator refuses the rest. Without the limit they load.
    """
    large = build_sparse_model(tmp_path / "large", hidden_size=1024, intermediate_size=2048, num_hidden_layers=24)
    environment = site_environment(database_url, tmp_path / "home")
    with live.serving("--setup", environment=environment) as server:
        server.manage("add_model", "large", str(large), "--dtype", "float32")
        demo = next(m["id"] for m in json.loads(get(server.url, "/v1/models").body)["data"] if m["id"] != "large")
        process = server.engine
        with connected(server.url, timeout_s=live.PATIENCE_S) as connection:
            story = {"stream": True, "n": 8, "max_tokens": 900, "ignore_eos": True}
            connection.sendall(chat(demo, **story))
            beginning = read_until(connection, b'"content":"')
            before = process.memory_info()
            unlimited = process.rlimit(psutil.RLIMIT_AS)
            process.rlimit(psutil.RLIMIT_AS, (before.vms + 450 * MEBIBYTE, unlimited[1]))
            refused = ask(server.url, chat("large", max_tokens=1))
            assert (refused.status, refused.error["code"]) == (503, "model_load_failed")
            assert (
                "large could not be loaded: out of memory, although the estimate fitted" in refused.error["message"]
            ), server.output
            assert int(refused.headers["retry-after"]) >= 1
            story_text = (beginning + read_all(connection)).decode()
        assert "[DONE]" in story_text
        assert '"error"' not in story_text
        after = process.memory_info()
        assert after.rss - before.rss < 150 * MEBIBYTE, "what had been loaded was given back"
        assert json.loads(get(server.url, "/health/ready").body)["engine"] == "ok"
        assert state_of(server.url, "large") == "failed"

        process.rlimit(psutil.RLIMIT_AS, unlimited)
        time.sleep(int(refused.headers["retry-after"]) + 1)  # as the refusal says
        assert ask(server.url, chat("large", max_tokens=1)).status == 200
        assert server.stop() == 0


def chat(model: str, **fields: object) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": "Tell me a story."}], **fields}
    data = json.dumps(body).encode()
    lines = ("Content-Type: application/json", f"Content-Length: {len(data)}", "Connection: close")
    return head("POST", "/v1/chat/completions", *lines) + data


def ask(url: str, request: bytes) -> Answer:
    with connected(url, timeout_s=live.PATIENCE_S) as connection:
        connection.sendall(request)
        return answer(read_all(connection))


def state_of(url: str, model: str) -> str:
    state: str = json.loads(get(url, f"/v1/models/{model}").body)["state"]
    return state
