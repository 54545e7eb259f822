"""`import tgflow as tg`: all names there, and nothing imported before it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import tgflow


def test_every_public_name_can_be_had():
    for name in tgflow.__all__:
        assert getattr(tgflow, name) is not None
    assert set(tgflow.__all__) <= set(dir(tgflow))


def test_a_name_of_the_package_is_that_of_its_module():
    tree = ast.parse(Path(tgflow.__file__).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    for node in block.body:
        for alias in node.names:
            assert getattr(tgflow, alias.name) is getattr(import_module(node.module), alias.name)


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'tgflow' has no attribute 'Graph'"):
        _ = tgflow.Graph


def test_importing_tgflow_imports_no_torch():
    script = "import sys, tgflow; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
