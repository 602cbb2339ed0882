"""transformers in this process, and servers of any make."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.engine import running
from benchmarks.gguf_file import gguf_name, write_gguf
from benchmarks.process_peers import LLAMA_SERVER, VLLM, VLLM_DTYPE, Peer, free_port, peers, started, vllm
from benchmarks.shapes import SHAPES, shape_folder
from benchmarks.transformers_peers import Generate, GenerateBatch, load_module
from benchmarks.workloads import MAKERS, Scale, Workload, stall
from inference.engine.config import EngineConfig
from inference.engine.models.loader import LoadedModel
from tests.benchmarks.conftest import SHAPE

SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"{}")
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200); self.end_headers()
        for i in range(body["max_tokens"]):
            self.event({"choices": [{"index": 0, "text": " w", "finish_reason": None}]})
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        self.event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\\n\\n")
    def event(self, body):
        self.wfile.write(b"data: " + json.dumps(body).encode() + b"\\n\\n")
    def log_message(self, *args): pass

class Server(ThreadingHTTPServer):
    request_queue_size = 64

Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def module(models: Path) -> Any:
    return load_module(SHAPE, shape_folder(SHAPE, models), "cpu")


def small(name: str) -> Workload:
    return MAKERS[name](Scale(SHAPE.vocab, 0.02), 0)


@pytest.mark.parametrize("name", ["W1", "W2", "W5"])
@pytest.mark.parametrize("peer", [Generate, GenerateBatch])
def test_transformers_makes_every_token_that_was_asked_for(module: Any, peer: type, name: str):
    workload, subject = small(name), peer(module)
    traces = subject.run(workload)
    wanted = sorted((len(job.prompt), job.new) for job in workload.jobs)
    assert sorted((trace.prompt_tokens, trace.completion_tokens) for trace in traces) == wanted
    assert all(len(trace.event_times) == trace.completion_tokens for trace in traces)
    assert all(trace.sent_at <= trace.event_times[0] for trace in traces)
    assert sum(trace.is_late for trace in traces) == sum(job.after > 0 for job in workload.jobs)
    if isinstance(subject, GenerateBatch):
        subject.close()


def test_continuous_batching_lets_a_late_job_in_among_the_others(module: Any):
    workload = stall(Scale(SHAPE.vocab, 0.25), 0)
    subject = GenerateBatch(module)
    traces = subject.run(workload)
    subject.close()
    (late,) = [trace for trace in traces if trace.is_late]
    assert late.event_times[0] < max(trace.event_times[-1] for trace in traces if not trace.is_late)


def test_the_peers_module_is_not_the_engines(loaded: LoadedModel, module: Any):
    """The engine may change the weights of its own module's linears; transformers' must stay as they are."""
    with running(loaded, EngineConfig()) as engine:
        engine.run(small("W1"))
        ids = torch.tensor([small("W1").jobs[0].prompt])
        before = module(ids).logits
        engine.run(small("W1"))
        assert torch.equal(module(ids).logits, before)


def server_peer(tmp_path: Path, source: str = SERVER) -> Peer:
    script, port = tmp_path / "server.py", free_port()
    script.write_text(source)
    return Peer("another", (sys.executable, str(script), str(port)), port, "m")


def test_a_peers_server_is_started_measured_and_ended(tmp_path: Path):
    workload = small("W2")
    with started(server_peer(tmp_path), tmp_path / "log") as subject:
        traces = subject.run(workload)
        assert subject.peak_memory_mb() is not None
    assert [trace.completion_tokens for trace in traces] == [job.new for job in workload.jobs]
    with pytest.raises(Exception, match=r"(?i)connect"):
        subject.run(workload)


def test_a_peer_that_ends_at_once_is_an_error_with_its_log(tmp_path: Path):
    peer = server_peer(tmp_path, "raise SystemExit(3)")
    with (
        pytest.raises(RuntimeError, match=r"exited with code 3. Its output is in .*log"),
        started(peer, tmp_path / "log"),
    ):
        pass


def test_a_server_that_makes_too_little_is_no_figure(tmp_path: Path):
    peer = server_peer(tmp_path, SERVER.replace('"completion_tokens": body["max_tokens"]', '"completion_tokens": 1'))
    with (
        started(peer, tmp_path / "log") as subject,
        pytest.raises(RuntimeError, match=r"another: .* token events and usage"),
    ):
        subject.run(small("W1"))


def test_a_stream_that_is_cut_is_no_figure(tmp_path: Path):
    peer = server_peer(tmp_path, SERVER.replace("data: [DONE]", ": nothing"))
    with started(peer, tmp_path / "log") as subject, pytest.raises(RuntimeError, match=r"without .DONE."):
        subject.run(small("W1"))


def test_peers_are_those_that_the_environment_names(models: Path):
    assert peers(SHAPE, models, {}) == []
    (peer,) = peers(SHAPE, models, {VLLM: "/opt/vllm/bin/vllm", LLAMA_SERVER: ""})
    assert (peer.name, peer.command[0], peer.command[1]) == ("vLLM", "/opt/vllm/bin/vllm", "serve")


def test_vllm_gets_the_dtype_and_no_prefix_cache():
    command = vllm("vllm", SHAPES["qwen3-0.6b"], Path("/models/x"), "bfloat16").command
    assert command[command.index("--dtype") + 1] == "bfloat16"
    assert "--no-enable-prefix-caching" in command


@pytest.mark.parametrize(("named", "dtype"), [("", SHAPE.dtype), ("float16", "float16")])
def test_vllm_computes_in_the_models_dtype_or_the_one_that_is_named(models: Path, named: str, dtype: str):
    (peer,) = peers(SHAPE, models, {VLLM: "vllm", VLLM_DTYPE: named})
    assert peer.command[peer.command.index("--dtype") + 1] == dtype


def test_every_tensor_has_a_name_in_llama_cpp(module: Any):
    names = {gguf_name(name) for name, _ in module.named_parameters()}
    assert "token_embd.weight" in names
    assert "blk.1.attn_output.weight" in names
    assert len(names) == len(dict(module.named_parameters()))


@pytest.mark.parametrize("kind", ["BF16", "Q8_0"])
def test_a_gguf_file_holds_the_models_weights(models: Path, module: Any, kind: str):
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    reader = gguf.GGUFReader(write_gguf(SHAPE, shape_folder(SHAPE, models), kind))
    stored = {tensor.name: tensor for tensor in reader.tensors}
    weight = module.model.layers[0].mlp.up_proj.weight.detach().numpy()
    found = stored["blk.0.ffn_up.weight"]
    values = gguf.quants.dequantize(found.data, found.tensor_type).reshape(weight.shape)
    assert abs(values - weight).max() <= abs(weight).max() / 100
