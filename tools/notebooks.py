"""Run Jupyter notebooks without Jupyter: their code cells, one after the other, in one namespace.

`python -m tools.notebooks NOTEBOOK [--set NAME=VALUE ...] [--write]`. ``--set`` replaces a variable of the cell with
the tag `parameters`; its value is JSON. ``--write`` stores the outputs in the notebook: what cells print, the value of
a last expression, and figures of matplotlib. A cell that fails ends the run.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

JSON = dict[str, Any]

PARAMETERS = "parameters"
MAX_IMAGE_DPI = 80


class CellError(Exception):
    """A code cell failed. The cause is its error."""


def run_notebook(notebook: JSON, parameters: Mapping[str, Any]) -> JSON:
    """Run all code cells and return the notebook with their outputs.

    Raise CellError, and ValueError if ``parameters`` names a variable that the notebook does not have.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cells, number = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            cells.append(cell)
            continue
        number += 1
        outputs = run_cell("".join(cell["source"]), namespace, number)
        if PARAMETERS in cell["metadata"].get("tags", ()):
            _replace(namespace, parameters)
        cells.append({**cell, "execution_count": number, "outputs": outputs})
    return {**notebook, "cells": cells}


def run_cell(source: str, namespace: dict[str, Any], number: int) -> list[JSON]:
    """Run one cell and return its outputs, as they are stored in a notebook."""
    tree = ast.parse(source, f"cell {number}")
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(tree, f"cell {number}", "exec"), namespace)  # noqa: S102  # what a notebook is for
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace)  # noqa: S307
        except Exception as error:
            raise CellError(f"Cell {number} failed:\n\n{source}\n\n{type(error).__name__}: {error}") from error
    outputs: list[JSON] = []
    if text := printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    outputs += _figures()
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        outputs.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data})
    return outputs


def _replace(namespace: dict[str, Any], parameters: Mapping[str, Any]) -> None:
    if unknown := sorted(parameters.keys() - namespace.keys()):
        raise ValueError(f"The notebook has no parameter `{unknown[0]}`.")
    namespace.update(parameters)


def _figures() -> list[JSON]:
    """Return the figures that the cell left open, and close them."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    outputs: list[JSON] = []
    for number in pyplot.get_fignums():
        image = io.BytesIO()
        pyplot.figure(number).savefig(image, format="png", dpi=MAX_IMAGE_DPI, bbox_inches="tight")
        data = {"image/png": base64.b64encode(image.getvalue()).decode(), "text/plain": ["<Figure>"]}
        outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
    pyplot.close("all")
    return outputs


def _parameter(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE with a JSON value, got {text!r}")
    return name, json.loads(value)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run notebooks without Jupyter.")
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--set", type=_parameter, action="append", default=[], metavar="NAME=VALUE", dest="parameters")
    parser.add_argument("--write", action="store_true", help="Store the outputs in the notebook.")
    options = parser.parse_args()
    path: Path = options.notebook
    done = run_notebook(json.loads(path.read_text("utf-8")), dict(options.parameters))
    if options.write:
        path.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", "utf-8")
        return
    for cell in done["cells"]:
        for output in cell.get("outputs", ()):
            sys.stdout.write("".join(output.get("text", output.get("data", {}).get("text/plain", ()))) + "\n")


if __name__ == "__main__":
    main()
