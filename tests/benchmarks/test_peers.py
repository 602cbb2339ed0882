"""transformers in this process, and servers of any make."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.engine import running
from benchmarks.peers import servers as peer_servers
from benchmarks.peers.genai import OpenVino, openvino
from benchmarks.peers.gguf_file import gguf_name, write_gguf
from benchmarks.peers.in_process import Generate, GenerateBatch, load_module
from benchmarks.peers.install import PINS
from benchmarks.peers.servers import Peer, free_port, servers, started, vllm
from benchmarks.peers.w8a8 import quantized, write_w8a8
from benchmarks.shapes import SHAPES, shape_folder
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


def install(home: Path, *programs: str) -> None:
    for program in programs:
        path = home / program
        path.parent.mkdir(parents=True)
        path.touch()


def test_peers_are_those_that_are_installed(models: Path, tmp_path: Path):
    assert servers(SHAPE, models, home=tmp_path) == []
    install(tmp_path, "vllm/bin/vllm", "zentorch/bin/vllm")
    found = servers(SHAPE, models, home=tmp_path)
    assert [peer.name for peer in found] == ["vLLM", "vLLM + zentorch"]
    assert [peer.command[:2] for peer in found] == [
        (str(tmp_path / name / "bin" / "vllm"), "serve") for name in ("vllm", "zentorch")
    ]
    (int8,) = servers(SHAPE, models, "int8", home=tmp_path)
    assert int8.name == "vLLM W8A8"
    assert (Path(int8.command[2]) / "model.safetensors").exists()
    with openvino(SHAPE, models, home=tmp_path) as none:
        assert none == []


def test_every_environment_pins_its_packages():
    for file in PINS.glob("*.txt"):
        lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
        assert lines
        assert all("==" in line for line in lines), file.name


@pytest.mark.parametrize(("multiplies", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_vllm_follows_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, multiplies: bool, dtype: str):
    """On a processor that does not multiply in bfloat16, vLLM is several times faster in float32."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: multiplies)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    tcmalloc = tmp_path / "libtcmalloc_minimal.so.4"
    monkeypatch.setattr(peer_servers, "LIBRARIES", (tmp_path,))
    (tmp_path / "vllm" / "lib").mkdir(parents=True)
    openmp = tmp_path / "vllm" / "lib" / "libiomp5.so"
    openmp.touch()
    assert "without tcmalloc" in vllm("vLLM", tmp_path / "vllm", SHAPES["qwen3-0.6b"], Path("/x")).note
    tcmalloc.touch()
    peer = vllm("vLLM", tmp_path / "vllm", SHAPES["qwen3-0.6b"], Path("/x"))
    assert peer.command[peer.command.index("--dtype") + 1] == dtype
    assert "--no-enable-prefix-caching" in peer.command
    assert peer.environment["LD_PRELOAD"] == f"{tcmalloc}:{openmp}"
    assert "without" not in peer.note


GENAI = """
import json, sys, time
json.loads(sys.argv[1]); print('"ready"', flush=True)
for line in sys.stdin:
    now = time.perf_counter()
    print(json.dumps([{"sent_at": now, "times": [now] * job["new"], "new": job["new"]} for job in json.loads(line)]),
          flush=True)
"""


def test_openvino_is_measured_by_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program, workload = tmp_path / "program.py", small("W5")
    program.write_text(GENAI)
    monkeypatch.setattr("benchmarks.peers.genai.PROGRAM", program)
    subject = OpenVino("OpenVINO", Path(sys.executable), tmp_path, "f32", tmp_path / "log")
    traces = subject.run(workload)
    assert [len(trace.event_times) for trace in traces] == [job.new for job in workload.jobs]
    assert sum(trace.is_late for trace in traces) == 1
    subject.close()
    with pytest.raises((RuntimeError, BrokenPipeError)):
        subject.run(workload)
    program.write_text("raise SystemExit('no')")
    with pytest.raises(RuntimeError, match="did not start"):
        OpenVino("OpenVINO", Path(sys.executable), tmp_path, "f32", tmp_path / "log")


def test_w8a8_weights_are_the_models_in_8_bits(models: Path, module: Any):
    folder = write_w8a8(shape_folder(SHAPE, models))
    assert write_w8a8(shape_folder(SHAPE, models)) == folder
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors"
    stored = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    weight = module.get_parameter(name).detach()
    assert stored[name].dtype == torch.int8
    torch.testing.assert_close(
        stored[name] * stored[f"{name}_scale"], weight, atol=float(weight.abs().max() / 200), rtol=0
    )
    assert len(stored) == len(dict(module.named_parameters())) + 7 * SHAPE.layers


def test_quantized_rows_use_all_values():
    values, scale = quantized(torch.tensor([[1.0, -2.0], [0.5, 0.25]]))
    assert values.tolist() == [[64, -127], [127, 64]]
    assert scale.shape == (2, 1)


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
