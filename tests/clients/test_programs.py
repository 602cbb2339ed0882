"""Programs that `make programs` installs, with the settings that docs/connect.md shows.

Coding agents send long prompts of their own. Their answers are compared with the request log of a server whose model
has a long context. The other programs send nothing but the message: their answers are those of /v1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests import database
from tests.clients.environment import (
    AGENTS,
    N8N,
    RequestRows,
    node_command,
    python_of,
    run_command,
    serving,
    with_node,
)
from tests.clients.test_connect import PAGE, block
from tests.clients.test_ollama import STORY, ask
from tests.ray_cluster import free_port

ADDRESS = "http://127.0.0.1:8000"
MESSAGE = "Tell me a story."
MASTER_KEY = "sk-0123456789abcdef0123456789abcdef"
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "OFFLINE_MODE": "true",
    "ANONYMIZED_TELEMETRY": "false",
    "DO_NOT_TRACK": "true",
    "SCARF_NO_ANALYTICS": "true",
    "CONTINUE_TELEMETRY_ENABLED": "0",
    "N8N_DIAGNOSTICS_ENABLED": "false",
    "N8N_VERSION_NOTIFICATIONS_ENABLED": "false",
}


class TestCodex:
    """``codex exec`` on the responses API."""

    def test_profile_in_the_model(self, agent_site: str, tmp_path: Path) -> None:
        assert "`codex -m my-model:gloomy`" in PAGE
        self.check(agent_site, tmp_path, block("Codex CLI", "toml"), "-m", "my-model:gloomy")

    def test_profile_in_a_header(self, agent_site: str, tmp_path: Path) -> None:
        self.check(agent_site, tmp_path, block("Codex CLI", "toml") + in_line("http_headers"))

    def check(self, site: str, folder: Path, settings: str, *options: str) -> None:
        write(folder / ".codex" / "config.toml", settings.replace(ADDRESS, site))
        command = [node_command(AGENTS, "codex"), "exec", "--strict-config", "--skip-git-repo-check"]
        variables = with_node({"HOME": str(folder), "MILLM_API_KEY": "none"})
        rows = RequestRows(site)
        output = run_command([*command, "--sandbox", "read-only", *options, MESSAGE], variables, folder)
        assert completion(rows, "/v1/responses") == output.strip()


class TestContinue:
    """``cn --print``."""

    def test_openai(self, agent_site: str, tmp_path: Path) -> None:
        self.check(agent_site, tmp_path, block("Continue", "yaml"), "/v1/chat/completions")

    def test_profile_in_a_header(self, agent_site: str, tmp_path: Path) -> None:
        settings = block("Continue", "yaml").replace("my-model:gloomy", "my-model")
        self.check(agent_site, tmp_path, f"{settings}    {in_line('requestOptions')}\n", "/v1/chat/completions")

    def test_ollama(self, agent_site: str, tmp_path: Path) -> None:
        """Continue sends its requests to OpenAI's API below Ollama's address."""
        settings = block("Continue", "yaml").replace("provider: openai", in_line("provider: ollama"))
        address = in_line("http://127.0.0.1:8000/ollama")
        settings = re.sub("apiBase: .*", f"apiBase: {address}", settings)
        self.check(agent_site, tmp_path, settings, "/v1/chat/completions")

    def check(self, site: str, folder: Path, settings: str, endpoint: str) -> None:
        config = write(folder / "config.yaml", settings.replace(ADDRESS, site))
        command = [node_command(AGENTS, "cn"), "--config", str(config), "--print", MESSAGE]
        rows = RequestRows(site)
        output = run_command(command, with_node({"HOME": str(folder), **QUIET}), folder)
        assert completion(rows, endpoint) == output.strip()


def test_cline(agent_site: str, tmp_path: Path) -> None:
    """``--data-dir`` keeps Cline from starting a process that outlives it."""
    cline = node_command(AGENTS, "cline")
    words = block("Cline", "sh").replace(ADDRESS, agent_site).split()
    assert words.pop(0) == "cline"
    variables = with_node({"HOME": str(tmp_path), **QUIET})
    own = ["--data-dir", str(tmp_path / "data")]
    run_command([cline, *words, *own], variables, tmp_path)
    rows = RequestRows(agent_site)
    output = run_command([cline, *own, "--json", MESSAGE], variables, tmp_path)
    result = json.loads(output.splitlines()[-1])
    assert (result["type"], result["finishReason"]) == ("run_result", "completed")
    assert completion(rows, "/v1/chat/completions") == result["text"].strip()


def test_litellm_proxy(site: str, tmp_path: Path) -> None:
    write(tmp_path / "config.yaml", block("LiteLLM", "yaml").replace(ADDRESS, site))
    key, program, *options = shell_words(block("LiteLLM", "sh"))
    assert (key.partition("=")[0], program) == ("LITELLM_MASTER_KEY", "litellm")
    options[options.index("config.yaml")] = str(tmp_path / "config.yaml")
    port = str(free_port())
    command = [str(python_of("litellm-proxy").parent / program), *options, "--host", "127.0.0.1", "--port", port]
    url = f"http://127.0.0.1:{port}"
    variables = {"LITELLM_MASTER_KEY": MASTER_KEY, "HOME": str(tmp_path), **QUIET}
    with serving(command, variables, f"{url}/health/liveliness"):
        names = get(f"{url}/v1/models", MASTER_KEY)["data"]
        assert [model["id"] for model in names] == ["demo", "demo-gloomy"]
        assert answer(f"{url}/v1/chat/completions", MASTER_KEY, "demo") == ask(site)
        assert answer(f"{url}/v1/chat/completions", MASTER_KEY, "demo-gloomy") == ask(site, profile="gloomy")


@pytest.fixture(scope="module")
def web_ui(site: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    """A client of Open WebUI with the first user's token. Its own embeddings would need torch: they are off."""
    home = tmp_path_factory.mktemp("open-webui")
    setting, program, *options = shell_words(block("Open WebUI", "sh").replace(ADDRESS, site))
    name, _, value = setting.partition("=")
    port = str(free_port())
    options[options.index("--port") + 1] = port
    command = [str(python_of("open-webui").parent / program), *options, "--host", "127.0.0.1"]
    own = {"HOME": str(home), "DATA_DIR": str(home / "data"), "WEBUI_SECRET_KEY": "none"}
    variables = {name: value, "RAG_EMBEDDING_ENGINE": "openai", **own, **QUIET}
    url = f"http://127.0.0.1:{port}"
    with serving(command, variables, f"{url}/health"), httpx2.Client(base_url=url, timeout=300) as client:
        user = {"name": "A", "email": "a@example.org", "password": "correct horse"}
        token = client.post("/api/v1/auths/signup", json=user).raise_for_status().json()["token"]
        client.headers["Authorization"] = f"Bearer {token}"
        yield client


class TestOpenWebUI:
    def test_connection_with_ollama(self, web_ui: httpx2.Client, site: str) -> None:
        assert {"demo:latest", "demo:gloomy"} <= self.models(web_ui)
        assert self.chat(web_ui, "demo:latest") == ask(site)
        assert self.chat(web_ui, "demo:gloomy") == ask(site, profile="gloomy")

    def test_connection_with_openai(self, web_ui: httpx2.Client, site: str) -> None:
        assert "enter `demo:gloomy` under\n*Model IDs*" in PAGE
        connection = {
            "ENABLE_OPENAI_API": True,
            "OPENAI_API_BASE_URLS": [f"{site}/v1"],
            "OPENAI_API_KEYS": ["none"],
            "OPENAI_API_CONFIGS": {"0": {"enable": True, "model_ids": ["demo:gloomy"], "prefix_id": "v1"}},
        }
        web_ui.post("/openai/config/update", json=connection).raise_for_status()
        assert "v1.demo:gloomy" in self.models(web_ui)
        assert self.chat(web_ui, "v1.demo:gloomy") == ask(site, profile="gloomy")

    def models(self, client: httpx2.Client) -> set[str]:
        return {model["id"] for model in client.get("/api/models").raise_for_status().json()["data"]}

    def chat(self, client: httpx2.Client, model: str) -> str:
        body = {"model": model, "messages": STORY, "stream": False, "params": {"temperature": 0, "max_tokens": 24}}
        return text_of(client.post("/api/chat/completions", json=body))


class TestN8n:
    """A workflow that is imported and executed, with three models: chat, responses, and a profile in a header."""

    def test_workflow(self, site: str, tmp_path: Path) -> None:
        (credential,) = json.loads(block("n8n", "json").replace(ADDRESS, site))
        assert "with the name `x-millm-profile` and a profile as its value" in PAGE
        header = {"header": True, "headerName": "x-millm-profile", "headerValue": "gloomy"}
        second = {**credential, "id": "millm00000000001", "data": {**credential["data"], **header}}
        profile = in_line("demo:gloomy", section="n8n")
        models = {
            "chat": model_node(credential, profile, responsesApiEnabled=False),
            "responses": model_node(credential, profile, responsesApiEnabled=True),
            "header": model_node(second, "demo", responsesApiEnabled=False),
        }
        write(tmp_path / "credentials.json", json.dumps([credential, second]))
        write(tmp_path / "workflow.json", json.dumps([workflow(models)]))
        with database.own_database(database.Content.NOTHING) as url:
            variables = with_node({**postgres_variables(url), "N8N_USER_FOLDER": str(tmp_path), **QUIET})
            n8n = node_command(N8N, "n8n")
            run_command([n8n, "import:credentials", "--input=credentials.json"], variables, tmp_path)
            run_command([n8n, "import:workflow", "--input=workflow.json"], variables, tmp_path)
            output = run_command([n8n, "execute", "--id=stories000000000", "--rawOutput"], variables, tmp_path)
        result = json.loads(output[output.index("{\n") :])["data"]["resultData"]
        assert "error" not in result, result
        gloomy = ask(site, profile="gloomy")
        for name in models:
            (item,) = result["runData"][f"Chain {name}"][0]["data"]["main"][0]
            assert item["json"]["text"] == gloomy, name


def workflow(models: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a workflow of n8n that sends the message to each of these models by a chain of its own."""
    start = {"name": "Start", "type": "n8n-nodes-base.manualTrigger", "typeVersion": 1, "parameters": {}}
    chain = {
        "type": "@n8n/n8n-nodes-langchain.chainLlm",
        "typeVersion": 1.7,
        "parameters": {"promptType": "define", "text": MESSAGE},
    }
    nodes = [start, *({**chain, "name": f"Chain {name}"} for name in models)]
    nodes += [{**model, "name": f"Model {name}"} for name, model in models.items()]
    links = {f"Model {name}": {"ai_languageModel": [[link(name, "ai_languageModel")]]} for name in models}
    return {
        "id": "stories000000000",
        "name": "Stories",
        "active": False,
        "nodes": [{"id": str(number), "position": [0, 200 * number], **node} for number, node in enumerate(nodes)],
        "connections": {"Start": {"main": [[link(name, "main") for name in models]]}, **links},
    }


def link(name: str, kind: str) -> dict[str, Any]:
    return {"node": f"Chain {name}", "type": kind, "index": 0}


def model_node(credential: Mapping[str, Any], model: str, **parameters: Any) -> dict[str, Any]:
    chosen = {"__rl": True, "mode": "id", "value": model}
    return {
        "type": "@n8n/n8n-nodes-langchain.lmChatOpenAi",
        "typeVersion": 1.3,
        "parameters": {"model": chosen, "options": {"temperature": 0, "maxTokens": 24}, **parameters},
        "credentials": {"openAiApi": {"id": credential["id"], "name": credential["name"]}},
    }


def postgres_variables(url: str) -> dict[str, str]:
    """Return n8n's settings for a database. SQLite would need a library that is compiled when it is installed."""
    parts = conninfo_to_dict(url)
    names = {"host": "HOST", "port": "PORT", "dbname": "DATABASE", "user": "USER", "password": "PASSWORD"}
    found = {f"DB_POSTGRESDB_{name}": str(parts[key]) for key, name in names.items() if parts.get(key)}
    return {"DB_TYPE": "postgresdb", **found}


def completion(rows: RequestRows, endpoint: str) -> str:
    """Return the last answer to a program, after checking that the profile steered all of its requests.

    Cline asks the model to continue an answer that has reached its maximum length.
    """
    found = rows.added(endpoint)
    for row in found:
        assert (row["status"], row["model"], row["profile"]) == (200, "my-model", "gloomy@1"), row["error_message"]
        assert row["prompt_tokens"] > 1_024
        assert row["steering_applied"] > 0
    text: str = found[0]["completion"]
    assert text.strip(), "the program shows what the model wrote"
    return text.strip()


def in_line(beginning: str, *, section: str = "") -> str:
    """Return the first inline code of the page, or of a section, that begins so."""
    text = PAGE.split(f"\n## {section}\n")[1] if section else PAGE
    found = re.search(f"`({re.escape(beginning)}[^`\n]*)`", text)
    assert found is not None, beginning
    return found.group(1)


def shell_words(text: str) -> list[str]:
    """Return the words of a command, where ``$(...)`` is part of a word."""
    return re.findall(r"(?:\$\([^)]*\)|\S)+", text)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def story_request(model: str) -> dict[str, Any]:
    return {"model": model, "messages": STORY, "max_tokens": 24, "temperature": 0, "stream": False}


def get(url: str, key: str) -> Any:
    return httpx2.get(url, headers={"Authorization": f"Bearer {key}"}, timeout=300).raise_for_status().json()


def answer(url: str, key: str, model: str) -> str:
    headers = {"Authorization": f"Bearer {key}"}
    return text_of(httpx2.post(url, headers=headers, json=story_request(model), timeout=300))


def text_of(response: httpx2.Response) -> str:
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["message"]["content"]
    return text
