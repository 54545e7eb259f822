"""Display of public objects: `repr`, HTML tables in notebooks, and fields in help()."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import textwrap
from collections.abc import Iterable, Mapping, Sized
from contextlib import suppress
from dataclasses import fields, is_dataclass
from html import escape
from pathlib import PurePath
from typing import Any, NamedTuple, TypeVar

from tgflow.base.text import printable, shortened

Kind = TypeVar("Kind", bound=type)

MOST_CHARACTERS = 100
"""Most characters of a value; longer collections show their size instead."""
MOST_ITEMS = 20
"""Most items shown of a collection."""


class Span(NamedTuple):
    """A range of consecutive numbers."""

    first: float
    last: float


def described(kind: Kind) -> Kind:
    """Decorate a class with a one-line `repr` and an HTML table for notebooks.

    Shows the items that the method `_facts` returns, or else the fields of a dataclass or named
    tuple; for tensors dtype, shape and range, never their values. Synchronizes for tensors on a
    GPU. Docstrings of fields are appended to that of the class, for `help`.

    Example:
        >>> from typing import NamedTuple
        >>> from tgflow.base.describe import described
        >>> @described
        ... class Found(NamedTuple):
        ...     nodes: torch.Tensor
        ...     k: int
        >>> Found(torch.tensor([3, 1, 7]), k=3)
        Found(nodes=int64[3] 1..7, k=3)
    """
    methods = {"__repr__": line, "_repr_html_": table, "__doc__": _Help(kind.__doc__)}
    for name, method in methods.items():
        setattr(kind, name, method)
    return kind


def line(thing: object) -> str:
    """Return an object's description on one line, for `repr`."""
    return f"{type(thing).__name__}({facts_line(thing)})"


def facts_line(thing: object) -> str:
    """Return the facts about an object on one line, as `name=value`."""
    return ", ".join(f"{name}={summary(value)}" for name, value in _facts_of(thing).items())


def table(thing: object) -> str:
    """Return an object's description as an HTML table, for notebooks."""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(summary(value))}</td></tr>"
        for name, value in _facts_of(thing).items()
    )
    return f"<table><caption>{escape(type(thing).__name__)}</caption>{rows}</table>"


def summary(value: object) -> str:
    """Return a short description of a value, such as `int64[200] 0..59` for a tensor."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _of_array(value)
    match value:
        case Span():
            return f"{_number(value.first)}..{_number(value.last)}"
        case float():
            return f"{value:.6g}"
        case None | int() | str() | PurePath():
            return shortened(printable(repr(value)), MOST_CHARACTERS)
    if type(value).__repr__ is line:
        return line(value)
    if isinstance(value, Mapping):
        items = (f"{summary(key)}: {summary(each)}" for key, each in value.items())
        return _of_items(items, "{}", value)
    if isinstance(value, list | tuple):
        return _of_items(map(summary, value), "()" if isinstance(value, tuple) else "[]", value)
    return type(value).__name__


def _of_items(items: Iterable[str], brackets: str, value: Sized) -> str:
    """Return a short description of a collection: its items, if they fit."""
    if len(value) <= MOST_ITEMS:
        text = ", ".join(items) + ("," if brackets == "()" and len(value) == 1 else "")
        if len(text) <= MOST_CHARACTERS:
            return text.join(brackets)
    return f"{len(value)} item{'s' * (len(value) != 1)}"


def _of_array(x: Any) -> str:
    """Return dtype, shape and range of a tensor or array; for bool the number of true values."""
    kind = str(x.dtype).rpartition(".")[2]
    text = f"{kind}{list(x.shape)}"
    if not math.prod(x.shape):
        return text
    if kind == "bool":
        return f"{text} {int(x.sum())} true"
    return f"{text} {_number(x.min())}..{_number(x.max())}"


def _number(value: Any) -> str:
    number = value.item() if hasattr(value, "item") else value
    return f"{number:.4g}" if isinstance(number, float) else str(number)


def _facts_of(thing: Any) -> Mapping[str, object]:
    if hasattr(thing, "_facts"):
        found: Mapping[str, object] = thing._facts()
        return found
    is_plain = is_dataclass(thing)
    names = [field.name for field in fields(thing)] if is_plain else getattr(thing, "_fields", ())
    return {name: getattr(thing, name) for name in names}


class _Help:
    """A class docstring followed by those of its fields, composed on access."""

    def __init__(self, text: str | None) -> None:
        self._text = inspect.cleandoc(text or "")

    def __get__(self, thing: object, kind: type) -> str:
        texts: Mapping[str, str] = {}
        with suppress(OSError, TypeError):  # no source available
            texts = docstrings(kind)
        if not texts:
            return self._text
        lines = (
            textwrap.fill(f"{name}: {text}", 96, initial_indent="    ", subsequent_indent=8 * " ")
            for name, text in texts.items()
        )
        return "\n".join([self._text, "", "Fields:", *lines])


@functools.cache
def docstrings(kind: type) -> Mapping[str, str]:
    """Return the docstrings of a class's fields, including inherited ones."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if not {"__dataclass_fields__", "_fields"} & vars(each).keys():
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(words))):
                    found[name] = " ".join(words.split())
    return found
