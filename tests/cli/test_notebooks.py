"""The notebooks of the examples: executed, and executable as they stand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from helpers.notebooks import code_cells, execute

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.ipynb"))
NAMES = ["first_model", "fraud", "recommendation"]


def by_name(name):
    [path] = [path for path in NOTEBOOKS if path.stem == name]
    return path


def test_there_are_three_notebooks_whose_cells_were_executed_in_order():
    assert [path.stem for path in NOTEBOOKS] == NAMES
    for path in NOTEBOOKS:
        cells = code_cells(json.loads(path.read_text(encoding="utf-8")))
        counts = [cell["execution_count"] for cell in cells]
        assert counts == list(range(1, len(cells) + 1)), path.name
        assert all(cell["outputs"] for cell in cells), path.name


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_top_to_bottom(name):
    threads = torch.get_num_threads()
    try:
        for cell in code_cells(execute(by_name(name))):
            assert cell["outputs"], "".join(cell["source"])
    finally:
        torch.set_num_threads(threads)
