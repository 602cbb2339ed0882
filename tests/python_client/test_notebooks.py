"""The notebooks of the client run from start to end, on the tiny demo's own concepts, and their outputs are kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LiveSite
from tests.live import clean_environment
from tools.notebooks import CellError, run_notebook

CLIENT = Path("clients/python").resolve()
NOTEBOOKS = sorted((CLIENT / "notebooks").glob("*.ipynb"))
MOODS = json.loads(Path("steering/demo/artifacts/words.json").read_text("utf-8"))
THINGS = ("a fox", "the sea", "a bear", "a letter")


def requests_about(things: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(f"Tell me a sad story about {thing}.", f"Tell me a happy story about {thing}.") for thing in things]


SMALL: dict[str, dict[str, Any]] = {
    "1-steer-and-compare": {
        "SEEDS": 2,
        "MAX_TOKENS": 12,
        "LAYER": 2,
        "PAIRS": [
            ("Nobody came, and she wept.", "All their friends came, and she smiled."),
            ("Otto was alone in the dark.", "Otto was happy in the town."),
            ("The rain fell on the dead leaves.", "The sun was bright on the leaves."),
        ],
        "WORDS": MOODS["gloomy"],
    },
    "2-refusal-direction": {
        "MAX_TOKENS": 12,
        "LAYERS": [1, 2],
        "NUM_RANDOM": 1,
        "PAIRS": requests_about(THINGS),
        "HELD_OUT": requests_about(("the rain", "a cat")),
        "MARKERS": MOODS["gloomy"],
    },
    "3-evaluate-a-profile": {
        "STRENGTHS": [1.0],
        "NUM_PROMPTS": 4,
        "SAMPLES": 1,
        "MAX_TOKENS": 8,
        "RANDOM_DIRECTIONS": 1,
        "WORDS": MOODS["gloomy"],
    },
}


def test_every_notebook_is_run() -> None:
    assert {path.stem for path in NOTEBOOKS} == SMALL.keys()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_on_the_tiny_model(path: Path, site: LiveSite, key: str) -> None:
    parameters = {"MODEL": "demo", **SMALL[path.stem]}
    settings = [word for name, value in parameters.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    done = subprocess.run(
        [sys.executable, "-m", "tools.notebooks", str(path), *settings],
        env={
            **clean_environment(),
            "MILLM_URL": site.url,
            "MILLM_API_KEY": key,
            "PYTHONPATH": str(CLIENT),
            "MPLBACKEND": "agg",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_those_of_one_run_from_start_to_end(path: Path) -> None:
    code = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any(output["output_type"] == "display_data" for cell in code for output in cell["outputs"])


def notebook(*sources: str) -> dict[str, Any]:
    cells: list[dict[str, Any]] = [
        {"cell_type": "code", "source": [source], "metadata": {}, "outputs": [], "execution_count": None}
        for source in sources
    ]
    cells[0]["metadata"]["tags"] = ["parameters"]
    return {"cells": [{"cell_type": "markdown", "source": ["# Title"], "metadata": {}}, *cells]}


def test_cells_share_a_namespace_and_parameters_replace_the_first() -> None:
    done = run_notebook(notebook("SIZE = 2\nprint('size', SIZE)", "SIZE * 3"), {"SIZE": 5})
    _, first, second = done["cells"]
    assert first["outputs"] == [{"output_type": "stream", "name": "stdout", "text": ["size 2\n"]}]
    assert second["outputs"][0]["data"] == {"text/plain": ["15"]}
    assert second["execution_count"] == 2


def test_figures_are_pictures() -> None:
    source = "import matplotlib\nmatplotlib.use('agg')\nfrom matplotlib import pyplot\npyplot.plot([1, 2])"
    (output, *_) = run_notebook(notebook(source), {})["cells"][1]["outputs"]
    assert output["output_type"] == "display_data"
    assert output["data"]["image/png"].startswith("iVBOR")


def test_a_failing_cell_and_an_unknown_parameter_end_the_run() -> None:
    with pytest.raises(CellError, match=r"Cell 2 failed:\n\n1 / 0"):
        run_notebook(notebook("SIZE = 2", "1 / 0"), {})
    with pytest.raises(ValueError, match="no parameter `WIDTH`"):
        run_notebook(notebook("SIZE = 2"), {"WIDTH": 5})
