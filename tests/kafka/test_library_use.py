"""What the room asks of kafka-python: its public interface only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tgflow.streams import kafka

MODULES = sorted(Path(kafka.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_private_attribute_of_another_object_is_used(path):
    nodes = list(ast.walk(ast.parse(path.read_text())))
    private = [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in nodes
        if isinstance(node, ast.Attribute) and node.attr.startswith("_")
        if not node.attr.endswith("__")
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    ]
    assert private == []


def test_only_public_modules_of_the_library_are_imported():
    names = set()
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names if alias.name.startswith("kafka")}
            elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("kafka"):
                names.add(node.module)
    assert names <= {"kafka", "kafka.errors"}
