"""Runs the resource tests of OpenAI's own Python client against a live server.

They are written for a server that answers anything: ids such as "file_id" that nobody made, and all parameters at
once, whether or not they go together. A gateway in front of the live server makes such requests legal: it puts ids of
objects in their places that it made before, and values that the contract allows in place of those that contradict it.
A parameter that the server refuses by name is left out, and told in the report. Answers are passed on untouched.

    python openai_resources.py URL FOLDER [pytest's arguments]

FOLDER is the source distribution of the client. The last line of the output is the report, as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import httpx2

FILES = (
    "test_batches.py",
    "test_completions.py",
    "test_conversations.py",
    "test_decisions.py",
    "test_embeddings.py",
    "test_files.py",
    "test_models.py",
    "test_moderations.py",
    "test_responses.py",
    "test_uploads.py",
    "test_vector_stores.py",
    "chat/test_completions.py",
    "chat/completions/test_messages.py",
    "conversations/test_items.py",
    "responses/test_input_items.py",
    "responses/test_input_tokens.py",
    "uploads/test_parts.py",
    "vector_stores/test_file_batches.py",
    "vector_stores/test_files.py",
)
DATA = b"Example data"
FEW = 4  # tokens of an answer whose length the test leaves open
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
MAX_LEFT_OUT = 20
PASSED_ON = ("content-type", "accept", "x-stainless-lang", "x-stainless-raw-response")
Body = dict[str, Any]


class Seeds:
    """Objects on the server that requests may name. What a request uses up is made for it alone."""

    def __init__(self, url: str) -> None:
        self.http = httpx2.Client(base_url=f"{url}/v1", timeout=300)
        self._kept: dict[str, Any] = {}
        self._making = threading.RLock()

    def post(self, path: str, body: Body | None = None, **options: Any) -> Any:
        answer = self.http.post(path, **({"json": body} if body is not None else {}), **options)
        answer.raise_for_status()
        return answer.json()

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        with self._making:
            if name not in self._kept:
                self._kept[name] = make()
            return self._kept[name]

    def new_file(self, content: bytes = DATA, purpose: str = "assistants", name: str = "a.txt") -> str:
        return str(self.post("/files", files={"file": (name, content)}, data={"purpose": purpose})["id"])

    def file(self) -> str:
        return str(self.once("file", self.new_file))

    def batch_file(self) -> str:
        body = {"model": "demo", "input": "hi", "max_output_tokens": 1, "store": False}
        line = json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/responses", "body": body})
        return str(self.once("batch file", lambda: self.new_file(line.encode(), "batch", "a.jsonl")))

    def new_batch(self) -> str:
        order = {"completion_window": "24h", "endpoint": "/v1/responses", "input_file_id": self.batch_file()}
        return str(self.post("/batches", order)["id"])

    def new_response(self) -> str:
        return str(self.post("/responses", {"model": "demo", "input": "hi", "max_output_tokens": FEW})["id"])

    def streamed_response(self) -> str:
        """One in the background, which has ended and can be cancelled and streamed again."""
        order = {"model": "demo", "input": "hi", "max_output_tokens": FEW, "background": True, "stream": True}

        def make() -> str:
            text = self.http.post("/responses", json=order).text
            first = next(line for line in text.splitlines() if line.startswith("data: "))
            return str(json.loads(first.removeprefix("data: "))["response"]["id"])

        return str(self.once("streamed response", make))

    def new_chat(self) -> str:
        """Of the assistant's own words: the client's type for stored messages knows no other role."""
        said = [{"role": "assistant", "content": "Once upon a time"}]
        body = {"model": "demo", "messages": said, "max_tokens": FEW, "store": True}
        return str(self.post("/chat/completions", body)["id"])

    def new_conversation(self) -> tuple[str, str]:
        """The ids of a conversation and of its item."""
        item = {"type": "message", "role": "user", "content": "string"}
        made = str(self.post("/conversations", {"items": [item]})["id"])
        return made, str(self.http.get(f"/conversations/{made}/items").json()["data"][0]["id"])

    def new_upload(self) -> str:
        form = {"bytes": len(DATA), "filename": "a.txt", "mime_type": "text/plain", "purpose": "assistants"}
        return str(self.post("/uploads", form)["id"])

    def part_of(self, upload: str) -> str:
        return str(self.post(f"/uploads/{upload}/parts", files={"data": DATA})["id"])

    def new_store(self) -> str:
        return str(self.post("/vector_stores", {"name": "store"})["id"])

    def store(self) -> tuple[str, str, str]:
        """The ids of a vector store, of a file in it and of the batch that brought it there."""

        def make() -> tuple[str, str, str]:
            store, file = self.new_store(), self.new_file()
            return store, file, self.new_file_batch(store, file)

        found: tuple[str, str, str] = self.once("store", make)
        return found

    def new_file_batch(self, store: str, file: str) -> str:
        batch = str(self.post(f"/vector_stores/{store}/file_batches", {"file_ids": [file]})["id"])
        for _ in range(300):
            if self.http.get(f"/vector_stores/{store}/file_batches/{batch}").json()["status"] != "in_progress":
                break
            time.sleep(0.1)
        return batch


class Legal:
    """Requests of the tests as the contract allows them."""

    def __init__(self, seeds: Seeds) -> None:
        self.seeds = seeds

    def path(self, method: str, path: str) -> str:
        """With ids of objects that are there."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        rest = parts[2:]
        match parts:
            case ["files", _, *_]:
                parts[1] = self.seeds.new_file() if method == "DELETE" else self.seeds.file()
            case ["batches", _, *_]:
                parts[1] = self.seeds.new_batch() if rest else str(self.seeds.once("batch", self.seeds.new_batch))
            case ["models", _]:
                parts[1] = "vectors" if method == "DELETE" else "demo"
            case ["responses", "compact" | "input_tokens"]:
                pass
            case ["responses", _, *_]:
                parts[1] = self._response(method, rest)
            case ["chat", "completions", _, *_]:
                make = self.seeds.new_chat
                parts[2] = make() if method == "DELETE" else str(self.seeds.once("chat", make))
            case ["conversations", _, *_]:
                deletes = method == "DELETE"
                make_both = self.seeds.new_conversation
                found = make_both() if deletes else self.seeds.once("conversation", make_both)
                parts[1:] = [found[0], *rest[:1], *([found[1]] if len(rest) > 1 else [])]
            case ["uploads", _, *_]:
                parts[1] = self.seeds.new_upload()
            case ["vector_stores", _, *_]:
                parts[1:] = self._store(method, rest)
        return "/" + "/".join(quote(part, safe=":") for part in parts)

    def _response(self, method: str, rest: list[str]) -> str:
        if method == "DELETE":
            return self.seeds.new_response()
        return (
            str(self.seeds.once("response", self.seeds.new_response))
            if rest == ["input_items"]
            else (self.seeds.streamed_response())
        )

    def _store(self, method: str, rest: list[str]) -> list[str]:
        seeds = self.seeds
        if method == "DELETE" and not rest:
            return [seeds.new_store()]
        store, file, batch = seeds.store()
        match rest:
            case ["files", _] if method == "DELETE":
                new = seeds.new_file()
                seeds.new_file_batch(store, new)
                return [store, "files", new]
            case ["files", _, *more]:
                return [store, "files", file, *more]
            case ["file_batches", _, *more]:
                return [store, "file_batches", batch, *more]
        return [store, *rest]

    def query(self, query: str) -> str:
        """Cursors name nothing that is in the list, and a page has at least one object."""
        legal = {"limit": "1", "purpose": "assistants"}
        pairs = parse_qsl(query, keep_blank_values=True)
        kept = [(name, legal.get(name, value)) for name, value in pairs if name not in {"after", "before"}]
        return urlencode(kept)

    def body(self, path: str, body: Body) -> Body:
        parts = path.strip("/").split("/")
        body = dict(body)
        self._model(parts[0], body, is_needed=parts == ["responses"])
        if not body.get("stream"):
            body.pop("stream_options", None)
        for name in ("tools", "functions"):
            if name in body:
                body[name] = [_legal_tool(tool) for tool in body[name]]
        if "logit_bias" in body:
            body["logit_bias"] = {"1": 0}
        change = self._changes().get(parts[0])
        if change is not None:
            change(parts, body)
        return body

    def _model(self, resource: str, body: Body, *, is_needed: bool) -> None:
        if "model" in body or is_needed:
            body["model"] = {"embeddings": "vectors", "moderations": "judge"}.get(resource, "demo")

    def _changes(self) -> dict[str, Callable[[list[str], Body], None]]:
        """By the resource: what makes its bodies legal."""
        return {
            "completions": self._of_completion,
            "chat": self._of_chat,
            "responses": self._of_response,
            "batches": self._of_batch,
            "uploads": self._of_upload,
            "vector_stores": self._of_store,
        }

    def _of_completion(self, parts: list[str], body: Body) -> None:
        body.setdefault("max_tokens", FEW)
        if "best_of" in body:
            body["best_of"] = 1

    def _of_chat(self, parts: list[str], body: Body) -> None:
        if parts == ["chat", "completions"]:
            body.pop("max_tokens", None)
            body["max_completion_tokens"] = FEW

    def _of_batch(self, parts: list[str], body: Body) -> None:
        body["input_file_id"] = self.seeds.batch_file()

    def _of_upload(self, parts: list[str], body: Body) -> None:
        if parts == ["uploads"]:
            body.update(bytes=len(DATA), filename="a.txt", mime_type="text/plain")
        elif parts[-1] == "complete":
            body["part_ids"] = [self.seeds.part_of(parts[1])]
            body.update({"md5": hashlib.md5(DATA, usedforsecurity=False).hexdigest()} if "md5" in body else {})

    def _of_response(self, parts: list[str], body: Body) -> None:
        if parts == ["responses"]:
            body.setdefault("input", "string")
            body.setdefault("max_output_tokens", FEW)
        if parts == ["responses", "compact"]:  # the client's type knows no messages of users, which the answer repeats
            body["input"] = [{"role": "assistant", "content": "string"}]
            body.pop("previous_response_id", None)
        if body.pop("conversation", None) or "previous_response_id" in body:
            body["previous_response_id"] = self.seeds.once("response", self.seeds.new_response)
        if "max_tool_calls" in body:
            body["max_tool_calls"] = 1

    def _of_store(self, parts: list[str], body: Body) -> None:
        _, file, _ = self.seeds.store()
        if "file_id" in body:
            body["file_id"] = self.seeds.new_file()
        if parts[2:] == ["file_batches"]:
            body.pop("files", None)
            body["file_ids"] = [self.seeds.new_file()]
        elif "file_ids" in body:
            body["file_ids"] = [file]


def _legal_tool(tool: Body) -> Body:
    """``{"foo": "bar"}`` is no schema."""
    if "function" in tool:
        return {**tool, "function": {**tool["function"], "parameters": NO_PARAMETERS}}
    return {**tool, "parameters": NO_PARAMETERS} if "parameters" in tool else tool


class Gateway(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    legal: Legal
    left_out: Counter[str] = Counter()
    refused: Counter[str] = Counter()

    def do_GET(self) -> None:
        self._pass_on()

    do_POST = do_DELETE = do_GET

    def _pass_on(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = urlsplit(self.path)
        headers = {name: self.headers[name] for name in PASSED_ON if self.headers[name]}
        try:
            path = self.legal.path(self.command, address.path)
            if content[:1] == b"{":
                content = json.dumps(self.legal.body(path, json.loads(content))).encode()
            elif self.command == "POST" and path in {"/responses", "/responses/input_tokens"}:
                content = json.dumps(self.legal.body(path, {})).encode()
                headers["content-type"] = "application/json"
            answer = self._ask(path, self.legal.query(address.query), content, headers)
        except httpx2.HTTPStatusError as error:  # of a seed: the test fails, and the report says why
            answer = error.response
        if answer.status_code >= 400:
            self.refused[f"{self.command} {path_pattern(address.path)}: {answer.text[:300]}"] += 1
        self.send_response(answer.status_code)
        for name, value in answer.headers.items():
            if name.lower() not in {"content-length", "transfer-encoding", "connection", "date", "server"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def _ask(self, path: str, query: str, content: bytes, headers: dict[str, str]) -> Any:
        """Without what the server refuses by name."""
        url = f"{path}?{query}" if query else path
        for _ in range(MAX_LEFT_OUT):
            answer = self.legal.seeds.http.request(self.command, url, content=content, headers=headers)
            error = answer.json().get("error") if answer.status_code == 400 else None
            name = error["param"] if error and error["code"] == "unsupported_parameter" else None
            if not name or content[:1] != b"{" or name not in json.loads(content):
                return answer
            self.left_out[f"{self.command} {path_pattern(path)}: {name}"] += 1
            body = json.loads(content)
            del body[name]
            content = json.dumps(body).encode()
        return answer

    def log_message(self, *args: Any) -> None:
        """Quiet."""


def path_pattern(path: str) -> str:
    return re.sub(r"/[^/]*[_-][^/]*(?=/|$)", "/{id}", path.replace("input_items", "inputitems"))


def main(url: str, folder: Path, arguments: list[str]) -> int:
    Gateway.legal = Legal(Seeds(url))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with TemporaryDirectory() as scratch:
        record = Path(scratch) / "record.xml"
        files = [f"tests/api_resources/{name}" for name in FILES]
        command = [
            *(sys.executable, "-m", "pytest", "-q", "--tb=short", "-o", "addopts=", "-p", "no:cacheprovider"),
            *(f"--junitxml={record}", *files, *arguments),
        ]
        environment = {**os.environ, "TEST_API_BASE_URL": f"http://127.0.0.1:{server.server_port}"}
        done = subprocess.run(command, cwd=folder, env=environment, check=False, stdout=sys.stderr)
        cases = list(ElementTree.parse(record).iter("testcase")) if record.exists() else []  # noqa: S314 - our own
    outcomes = {name_of(case): outcome_of(case) for case in cases}
    report = {
        "exit": done.returncode,
        "outcomes": Counter(outcomes.values()),
        "failed": sorted(name for name, outcome in outcomes.items() if outcome == "failed"),
        "left_out": sorted(Gateway.left_out),
        "refused": sorted(Gateway.refused),
    }
    print(json.dumps(report))
    return 0


def name_of(case: ElementTree.Element) -> str:
    return f"{case.get('classname', '').removeprefix('tests.api_resources.')}::{case.get('name')}"


def outcome_of(case: ElementTree.Element) -> str:
    kinds = {child.tag for child in case}
    return "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
