"""Tools of remote MCP servers, which are servers of the official SDK on loopback."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from openai import AsyncOpenAI
from openai.types.responses import Response

from inference.client import Event, GenerationRequest, TokensEvent
from inference.text.dialects.dialect import dialect_of
from jobs.execution import RunningJobs
from openai_api.responses import mcp
from tests.database import in_thread
from tests.openai_api.conftest import Api
from tests.openai_api.fakes import answering, finished
from tests.openai_api.responses.test_background import (
    interrupted_run,
    order,
    ordered_stream,
    replayed,
    run_all,
    work,
)
from tests.openai_api.responses.test_create import create, events, strict_event
from tests.openai_api.responses.test_file_search import in_turn

TOKEN = "s3cret-token"


def call(name: str, **arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


ROLL = call("roll", sides=6)


class Harbour:
    """An MCP server that notes what it was asked."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.authorizations: list[str] = []
        self.num_lists = 0
        server = MCPServer("harbour")

        @server.tool(description="Roll a die.", annotations=ToolAnnotations(read_only_hint=True))
        def roll(sides: int) -> str:
            self.calls.append(sides)
            return f"You rolled a {sides}."

        @server.tool(description="Sink a ship.")
        def sink(ship: str) -> str:
            self.calls.append(ship)
            raise ToolError(f"{ship} does not sink")

        @server.tool()
        def flood() -> str:
            return "x" * (9 * 2**20)

        app = server.streamable_http_app()

        async def noting(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                headers = dict(scope["headers"])
                self.authorizations.append(headers.get(b"authorization", b"").decode())
            await app(scope, receive, send)

        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._server = uvicorn.Server(uvicorn.Config(noting, log_level="error", lifespan="on"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def running_harbour() -> Iterator[Harbour]:
    harbour = Harbour()
    harbour.start()
    yield harbour
    harbour.stop()


@pytest.fixture
def harbour(running_harbour: Harbour, settings: Any, api: Api) -> Harbour:
    settings.MILLM_MCP_SERVERS = (f"127.0.0.1:{running_harbour.port}",)
    api.registry.text.dialect = dialect_of("<tool_call>")
    api.registry.context = 5000
    running_harbour.calls.clear()
    running_harbour.authorizations.clear()
    return running_harbour


def tool(harbour: Harbour, **fields: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "harbour", "server_url": harbour.url, "require_approval": "never", **fields}


async def ask(api: Api, tools: list[dict[str, Any]], *texts: str, **fields: Any) -> Response:
    api.engine.script = in_turn(*texts)
    response = await create(api, tools=tools, **fields)
    assert response.status_code == 200, response.content
    return Response.model_validate_json(response.content, strict=True)


def error_of(response: Any) -> tuple[int, str, str]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


async def test_a_call_is_run_and_its_output_is_read(stored: Api, harbour: Harbour):
    body = await ask(stored, [tool(harbour)], f"Let me see.\n{ROLL}", "Six!")

    assert [item.type for item in body.output] == ["mcp_list_tools", "message", "mcp_call", "message"]
    listed, _, made, _ = body.output
    assert listed.type == "mcp_list_tools"
    assert [each.name for each in listed.tools] == ["roll", "sink", "flood"]
    assert made.type == "mcp_call"
    assert (made.status, made.name, made.output, made.error) == ("completed", "roll", "You rolled a 6.", None)
    assert json.loads(made.arguments) == {"sides": 6}
    assert (harbour.calls, body.output_text) == ([6], "Let me see.Six!")
    call_message, output = stored.registry.text.rendered[-2:]
    assert call_message["tool_calls"][0]["function"] == {"name": "roll", "arguments": {"sides": 6}}
    assert (output["role"], output["content"]) == ("tool", "You rolled a 6.")


async def test_all_events_come_in_order_and_fit_the_client(stored: Api, harbour: Harbour):
    stored.engine.script = in_turn(ROLL, "Six!")
    found = await events(stored, tools=[tool(harbour)])
    for event in found:
        strict_event(event)
    types = [event["type"] for event in found]
    assert types[2:6] == [
        "response.output_item.added",
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
        "response.output_item.done",
    ]
    start = types.index("response.mcp_call.in_progress")
    rest = [each for each in types[start - 1 :] if each != "response.mcp_call_arguments.delta"]
    assert rest[:5] == [
        "response.output_item.added",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
        "response.output_item.done",
    ]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["output_index"] for event in found if event["type"] == "response.output_item.done"] == [0, 1, 2]


async def test_a_call_waits_for_approval_and_is_made_once(client: AsyncOpenAI, stored: Api, harbour: Harbour):
    tools: Any = [tool(harbour, require_approval={"never": {"tool_names": ["sink"]}}, authorization=TOKEN)]
    stored.engine.script = in_turn(ROLL)
    first = await client.responses.create(model="tiny", input="Roll!", tools=tools)
    assert [item.type for item in first.output] == ["mcp_list_tools", "mcp_approval_request"]
    request = first.output[1]
    assert request.type == "mcp_approval_request"
    assert (request.name, request.server_label, json.loads(request.arguments)) == ("roll", "harbour", {"sides": 6})
    assert harbour.calls == []
    assert {each for each in harbour.authorizations if each} == {f"Bearer {TOKEN}"}

    answer: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    asked = {"previous_response_id": first.id, "input": [answer], "tools": tools}
    counted = await stored.post("/v1/responses/input_tokens", {"model": "tiny", **asked})
    assert counted.status_code == 200, counted.content
    assert (await create(stored, **asked, profile="nobody")).status_code == 404
    assert harbour.calls == [], "only a response that can be made makes the call"

    stored.engine.script = in_turn("Six!")
    second = await client.responses.create(model="tiny", previous_response_id=first.id, input=[answer], tools=tools)
    assert [item.type for item in second.output] == ["mcp_call", "message"], "the list is known"
    made = second.output[0]
    assert made.type == "mcp_call"
    assert (made.approval_request_id, made.output) == (request.id, "You rolled a 6.")
    assert harbour.calls == [6]

    stored.engine.script = in_turn("Bye.")
    await client.responses.create(model="tiny", previous_response_id=second.id, input="Thanks.", tools=tools)
    assert harbour.calls == [6]
    roles = [message["role"] for message in stored.registry.text.rendered]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    assert TOKEN not in json.dumps([(await client.responses.retrieve(each.id)).to_dict() for each in (first, second)])
    assert TOKEN not in repr(stored.log.entries)


async def test_a_call_that_is_not_approved_is_told_to_the_model(stored: Api, harbour: Harbour):
    tools = [tool(harbour, require_approval="always")]
    first = await ask(stored, tools, ROLL)
    answer = {"type": "mcp_approval_response", "approval_request_id": first.output[1].id, "approve": False}
    body = await ask(
        stored, tools, "Then not.", previous_response_id=first.id, input=[{**answer, "reason": "No dice."}]
    )
    assert (body.output_text, harbour.calls) == ("Then not.", [])
    assert stored.registry.text.rendered[-1]["content"] == "The user did not approve this call. No dice."
    wrong = {**answer, "approval_request_id": "mcpr_unknown"}
    response = await create(stored, tools=tools, previous_response_id=first.id, input=[wrong])
    assert error_of(response) == (400, "invalid_value", "input")


async def test_a_tool_that_fails_or_says_too_much_is_a_failed_call(stored: Api, harbour: Harbour):
    body = await ask(stored, [tool(harbour)], call("sink", ship="Nora"), call("flood"), call("roll", sides="x"), "Oh.")
    failed = [item for item in body.output if item.type == "mcp_call"]
    assert [item.status for item in failed] == ["failed"] * 3
    assert [item.output for item in failed] == [None] * 3
    kinds = [item.error.type for item in failed if item.error is not None]
    assert kinds == ["mcp_tool_execution_error", "mcp_protocol_error", "mcp_tool_execution_error"]
    told = [message["content"] for message in stored.registry.text.rendered if message["role"] == "tool"]
    assert "Nora does not sink" in told[0]
    assert "more than 8 MiB" in told[1]
    assert body.output_text == "Oh."


async def test_arguments_that_are_no_object_are_not_sent(stored: Api, harbour: Harbour):
    broken = '<tool_call>\n{"name": "roll", "arguments": [1]}\n</tool_call>'
    body = await ask(stored, [tool(harbour)], broken, "Oh.")
    assert harbour.calls == []
    assert body.status == "completed"


async def test_calls_of_one_response_are_limited(stored: Api, harbour: Harbour):
    body = await ask(stored, [tool(harbour)], f"{ROLL}\n{ROLL}", "Enough.", max_tool_calls=1)
    assert [item.status for item in body.output if item.type == "mcp_call"] == ["completed", "failed"]
    assert (harbour.calls, body.output_text) == ([6], "Enough.")
    body = await ask(stored, [tool(harbour)], ROLL, ROLL, max_tool_calls=1)
    assert body.output_text == ROLL, "no tool is offered any more"


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        (["roll"], ["roll"]),
        ({"tool_names": ["roll", "flood"]}, ["roll", "flood"]),
        ({"read_only": True}, ["roll"]),
        ({"read_only": False}, ["sink", "flood"]),
        ([], []),
    ],
)
async def test_only_allowed_tools_are_offered(stored: Api, harbour: Harbour, chosen: Any, names: list[str]):
    body = await ask(stored, [tool(harbour, allowed_tools=chosen)], "Hi!")
    listed = body.output[0]
    assert listed.type == "mcp_list_tools"
    assert [each.name for each in listed.tools] == names


async def test_a_name_that_a_function_has_is_prefixed(stored: Api, harbour: Harbour):
    function = {"type": "function", "name": "roll", "parameters": {"type": "object", "properties": {}}}
    body = await ask(stored, [function, tool(harbour)], call("harbour_roll", sides=2), call("roll"))
    assert [item.type for item in body.output] == ["mcp_list_tools", "mcp_call", "function_call"]
    assert harbour.calls == [2]


async def test_a_server_or_a_tool_can_be_chosen(stored: Api, harbour: Harbour):
    choice = {"type": "mcp", "server_label": "harbour", "name": "roll"}
    body = await ask(stored, [tool(harbour)], ROLL, "Six!", tool_choice=choice)
    assert [item.type for item in body.output] == ["mcp_list_tools", "mcp_call", "message"]
    response = await create(stored, tools=[tool(harbour)], tool_choice={**choice, "name": "swim"})
    assert error_of(response) == (400, "invalid_value", "tool_choice")
    response = await create(stored, tools=[tool(harbour)], tool_choice={"type": "mcp", "server_label": "x"})
    assert error_of(response) == (400, "invalid_value", "tool_choice")


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://127.0.0.1:1/mcp", ("*",)),
        ("http://169.254.169.254/latest", ("*",)),
        ("http://localhost/mcp", ("*",)),
        ("http://[::1]:9/mcp", ("*",)),
        ("http://169.254.169.254/latest", ("169.254.169.254",)),
        ("http://127.0.0.1:1/mcp", ("127.0.0.1",)),  # nobody answers
    ],
)
async def test_a_server_that_cannot_or_may_not_be_reached_is_reported(
    stored: Api, harbour: Harbour, settings: Any, url: str, allowed: tuple[str, ...]
):
    settings.MILLM_MCP_SERVERS = allowed
    response = await create(stored, tools=[{"type": "function", "name": "f"}, tool(harbour, server_url=url)])
    assert error_of(response) == (424, "mcp_server_error", "tools[1]")
    assert "harbour" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"server_url": "http://another.example/mcp"}, "tools[0].server_url"),
        ({"server_url": "ftp://127.0.0.1/mcp"}, "tools[0].server_url"),
        ({"server_url": "http://user:pw@127.0.0.1/mcp"}, "tools[0].server_url"),
        ({"server_label": "a b"}, "tools[0].server_label"),
        ({"headers": {"X\r\nY": "z"}}, None),
        ({"server_url": None, "connector_id": "connector_dropbox"}, "tools[0].server_url"),
        ({"require_approval": "sometimes"}, "tools[0].require_approval"),
    ],
)
async def test_bad_servers_are_refused(stored: Api, harbour: Harbour, fields: dict[str, Any], param: str | None):
    response = await create(stored, tools=[tool(harbour, **fields)])
    assert response.status_code == 400, response.content
    if param is not None:
        assert response.json()["error"]["param"].startswith(param)


async def test_two_servers_need_two_labels(stored: Api, harbour: Harbour):
    response = await create(stored, tools=[tool(harbour), tool(harbour)])
    assert error_of(response) == (400, "invalid_value", "tools[0].server_label")


@pytest.mark.parametrize("secret", [{"authorization": TOKEN}, {"headers": {"X-Key": TOKEN}}])
async def test_a_background_response_has_no_secrets(stored: Api, harbour: Harbour, secret: dict[str, Any]):
    response = await create(stored, tools=[tool(harbour, **secret)], background=True)
    assert error_of(response) == (400, "unsupported_parameter", f"tools[0].{next(iter(secret))}")
    assert harbour.authorizations == []


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_background_response_calls_tools(stored: Api, harbour: Harbour, is_streamed: bool):
    stored.engine.script = in_turn(f"Let me see.\n{ROLL}", "Six!")
    if is_streamed:
        response_id = await ordered_stream(stored, tools=[tool(harbour)])
    else:
        response_id = (await order(stored, tools=[tool(harbour)]))["id"]
    num_requests = len(harbour.authorizations)
    await work(stored)
    done = await stored.client.get(f"/v1/responses/{response_id}")
    body = Response.model_validate_json(done.content, strict=True)
    assert [item.type for item in body.output] == ["mcp_list_tools", "message", "mcp_call", "message"]
    assert (body.status, body.output_text, harbour.calls) == ("completed", "Let me see.Six!", [6])
    assert len(harbour.authorizations) > num_requests > 0
    if is_streamed:
        whole = await replayed(stored, response_id)
        for event in whole:
            strict_event(event)
        assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
        assert "response.mcp_call.completed" in [event["type"] for event in whole]


async def test_a_background_response_asks_for_approval_and_goes_on(stored: Api, harbour: Harbour):
    """The tools are listed once: the second job uses the list of the first response."""
    asks = tool(harbour, require_approval="always")
    stored.engine.script = in_turn(ROLL)
    first = await order(stored, tools=[asks])
    await work(stored)
    body = (await stored.client.get(f"/v1/responses/{first['id']}")).json()
    assert [item["type"] for item in body["output"]] == ["mcp_list_tools", "mcp_approval_request"]
    stored.engine.script = in_turn("Six!")
    answer = {"type": "mcp_approval_response", "approval_request_id": body["output"][1]["id"], "approve": True}
    second = await order(stored, tools=[asks], input=[answer], previous_response_id=first["id"])
    await work(stored)
    body = (await stored.client.get(f"/v1/responses/{second['id']}")).json()
    assert [item["type"] for item in body["output"]] == ["mcp_call", "message"]
    assert (body["status"], harbour.calls) == ("completed", [6])


async def test_tools_are_not_called_twice_after_an_interruption(stored: Api, harbour: Harbour):
    made = await order(stored, tools=[tool(harbour)])
    calls_tool = in_turn(ROLL)

    def stopping_later(request: GenerationRequest) -> Iterable[Event]:
        if not harbour.calls:
            return calls_tool(request)
        running.stopping.set()
        return [TokensEvent(request.index, (72,), "S"), finished(request, 1, reason="cancelled")]

    running = RunningJobs()
    stored.engine.script = stopping_later
    await in_thread(run_all, running)
    assert (await stored.client.get(f"/v1/responses/{made['id']}")).json()["status"] == "in_progress"
    await work(stored)
    body = (await stored.client.get(f"/v1/responses/{made['id']}")).json()
    assert (body["status"], body["error"]["millm_code"]) == ("failed", "response_interrupted")
    assert harbour.calls == [6]


async def test_an_interruption_before_a_call_changes_nothing(stored: Api, harbour: Harbour):
    made = await order(stored, tools=[tool(harbour)])
    await in_thread(interrupted_run, stored.engine)
    stored.engine.script = in_turn(ROLL, "Six!")
    await work(stored)
    body = (await stored.client.get(f"/v1/responses/{made['id']}")).json()
    assert [item["type"] for item in body["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    assert (body["status"], harbour.calls) == ("completed", [6])


async def test_a_server_that_hangs_does_not_hold_the_response(
    stored: Api, harbour: Harbour, settings: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mcp, "TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        settings.MILLM_MCP_SERVERS = (f"127.0.0.1:{port}",)
        response = await create(stored, tools=[tool(harbour, server_url=f"http://127.0.0.1:{port}/mcp")])
    assert error_of(response) == (424, "mcp_server_error", "tools[0]")


async def test_without_the_setting_the_tool_is_ignored_by_name(stored: Api, harbour: Harbour, settings: Any):
    settings.MILLM_MCP_SERVERS = ()
    stored.engine.script = answering("Hi!")
    response = await create(stored, tools=[tool(harbour)])
    assert response.status_code == 200
    assert "tools[mcp]" in response.headers["x-millm-ignored-fields"]
