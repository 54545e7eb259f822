"""Packages with lazily imported public names, for quick imports."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from inspect import getsource
from typing import Any


def lazy_names(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package.

    Its public names are those that its `__init__.py` imports under `TYPE_CHECKING`, including
    modules:

        if TYPE_CHECKING:
            from tgflow.report import callbacks as callbacks
            from tgflow.graph.batch import Batch as Batch
        __all__, __getattr__, __dir__ = lazy_names(__name__)
    """
    homes = _homes(getsource(sys.modules[package]))

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == package:
            return import_module(f"{package}.{name}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    module = vars(sys.modules[package])
    return sorted(homes), find, lambda: sorted({*homes, *(x for x in module if x[:2] == "__")})


def _homes(source: str) -> dict[str, str]:
    """Return the module of each name that is imported under `if TYPE_CHECKING:`."""
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}
