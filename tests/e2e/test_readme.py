"""The README's examples run as they stand: the first ones with the real model, those of tools with the tiny one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import get_commands, load_command_class

README = Path("README.md").read_text("utf-8")
WORDS = json.loads(Path("steering/demo/smollm2/words.json").read_text())
DEFAULT_URL = "http://127.0.0.1:8000"


def blocks(language: str) -> list[str]:
    """Contents of the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def shell(script: str, url: str) -> str:
    done = subprocess.run(
        ["/bin/bash", "-ec", script.replace(DEFAULT_URL, url)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_curl_example_tells_a_story_and_a_sadder_one_and_streams_it(real_site):
    curl = next(block for block in blocks("sh") if block.startswith("curl"))
    plain = json.loads(shell(curl, real_site.url))
    gloomy = json.loads(shell(curl.replace('"model"', '"profile": "gloomy", "model"'), real_site.url))
    stories = {answer["choices"][0]["message"]["content"] for answer in (plain, gloomy)}
    assert len(stories) == 2
    assert all(len(story) > 40 for story in stories)
    assert gloomy_words(gloomy) > gloomy_words(plain)
    assert gloomy["millm"]["profile"] == "gloomy@1"
    streamed = shell(curl.replace('"model"', '"stream": true, "model"'), real_site.url)
    assert streamed.rstrip().endswith("data: [DONE]")
    assert streamed.count('"content"') > 10


def gloomy_words(answer: dict[str, Any]) -> int:
    words = re.findall(r"[a-z]+", answer["choices"][0]["message"]["content"].lower())
    return sum(word in WORDS["gloomy"] for word in words)


def python(program: str, url: str) -> str:
    command = [sys.executable, "-c", program.replace(DEFAULT_URL, url)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_tools_example_prints_what_its_comments_say(live_site):
    (program,) = (block for block in blocks("python") if "tools=" in block)
    said = re.findall(r"^print\(.*\)  # (.+)$", program, re.MULTILINE)
    assert len(said) == 3
    assert python(program, live_site.url).splitlines() == said


@pytest.mark.slow
def test_the_stories_example_prints_a_story_of_each_profile(real_site):
    (program,) = (block for block in blocks("python") if "tools=" not in block)
    told = python(program, real_site.url)
    names = ("None", "gloomy", "joyful", "sea")
    stories = dict(line.split(": ", 1) for line in told.splitlines() if re.match(rf"({'|'.join(names)}): ", line))
    assert tuple(stories) == names
    assert len(set(stories.values())) == len(names)


def commands() -> list[str]:
    return re.findall(r"manage\.py (\w+)", README)


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_commands_that_the_readme_names_exist(command):
    """In this process: a process for each takes seconds."""
    found = load_command_class(get_commands()[command], command)
    assert "usage:" in found.create_parser("manage.py", command).format_help()


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([\w./-]+)\)", README))))
def test_links_lead_somewhere(path):
    assert Path(path).exists()


def test_make_targets_that_the_readme_names_exist():
    makefile = Path("Makefile").read_text("utf-8")
    for target in set(re.findall(r"make (\w+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
