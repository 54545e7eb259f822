"""Annotations of settings besides their types: range, flag and effect on resume.

The library's dataclasses are the schema of TOML files, flags and help: `tgflow.run.config` reads
their annotations. Ranges are those of `annotated_types`: `batch_size: Annotated[int, Ge(1)] = 200`;
`check_ranges` enforces them where such a dataclass is created in Python.
"""

from __future__ import annotations

import operator
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt

from tgflow.base.units import parse_bytes, parse_seconds, parse_timeout

Effect = Literal["any_time", "from_now", "fixed_model", "fixed"]
"""Effect of another value on a resumed run: it may change at any time; it applies from now
on; the model restarts, and the events are kept; it cannot change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Behavior of a field on the command line and on resume.

    Args:
        flags: Its flags, the first one also its name in messages; () for --FIELD-NAME.
        resume: The effect of another value on resume; None for that of its section.
        expert: Whether it has no flag of its own: it is set in a file, or by --set.
        live: Whether it applies only to a stream that is learned as it arrives.
    """

    flags: tuple[str, ...] = ()
    resume: Effect | None = None
    expert: bool = False
    live: bool = False


EXPERT = Setting(expert=True)


@dataclass(frozen=True, slots=True)
class Parsed:
    """Marks a number or text that a function parses, raising ValueError for invalid text."""

    parse: Callable[[Any], object]


Size: TypeAlias = Annotated[int | str, Parsed(parse_bytes)]
"""A size in bytes: a whole number, or text such as "256MiB"."""
Duration: TypeAlias = Annotated[float | str, Parsed(parse_seconds)]
"""A span of wall time: a number of seconds, or text such as "500ms"."""
Timeout: TypeAlias = Annotated[float | str, Parsed(parse_timeout)]
"""A `Duration`, or "none"."""

_BOUNDS: Mapping[type, tuple[str, str, Callable[[Any, Any], bool]]] = {
    Ge: ("ge", "at least", operator.ge),
    Gt: ("gt", "more than", operator.gt),
    Le: ("le", "at most", operator.le),
    Lt: ("lt", "less than", operator.lt),
}


def check_ranges(config: object) -> None:
    """Check every field of a settings dataclass against the range or choices in its annotation."""
    kind: Any = type(config)  # mypy treats a type as unhashable
    for name, allowed in _allowed_types(kind).items():
        value = getattr(config, name)
        if value is None:
            continue
        if all(get_origin(each) is Literal for each, _ in allowed):
            choices = [choice for each, _ in allowed for choice in get_args(each)]
            if value not in choices:
                names = ", ".join(map(str, choices))
                raise ValueError(f"{name} must be one of {names}, got {value!r}")
        for each, metadata in allowed:
            is_number = isinstance(value, int | float) and each in (int, float)
            for mark in metadata:
                if isinstance(mark, Parsed):
                    check_text(name, value, mark.parse)
                elif is_number and type(mark) in _BOUNDS:
                    attribute, _, holds = _BOUNDS[type(mark)]
                    if not holds(value, getattr(mark, attribute)):
                        raise ValueError(f"{name} must be {describe_bounds(metadata)}, got {value}")


class Checked:
    """Base class of settings dataclasses that are checked on creation by `check_ranges`."""

    def __post_init__(self) -> None:
        check_ranges(self)


@cache  # settings are created often, and annotations are slow to resolve
def _allowed_types(kind: type) -> Mapping[str, Sequence[tuple[Any, tuple[Any, ...]]]]:
    return {name: tuple(alternatives(hint)) for name, hint in field_hints(kind).items()}


def check_text(name: str, value: Any, parse: Callable[[Any], object]) -> None:
    """Raise a `ValueError` with the setting's name unless `parse` accepts its value."""
    try:
        parse(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def describe_bounds(metadata: tuple[Any, ...]) -> str:
    """Return the bounds in an annotation in words, such as "at least 1"; "" without any."""
    words = []
    for bound in metadata:
        if type(bound) in _BOUNDS:
            attribute, text, _ = _BOUNDS[type(bound)]
            number = getattr(bound, attribute)
            words.append(f"{text} {number:,}" if isinstance(number, int) else f"{text} {number:g}")
    return " and ".join(words)


def field_hints(kind: Any) -> Mapping[str, Any]:
    """Return the resolved annotations of a dataclass, including metadata."""
    return typing.get_type_hints(kind, include_extras=True)


def setting_of(hint: Any) -> Setting:
    """Return the `Setting` in an annotation, or the default."""
    for _, metadata in alternatives(hint):
        for each in metadata:
            if isinstance(each, Setting):
                return each
    return Setting()


def alternatives(hint: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield (type, metadata) of each type that an annotation allows, without None."""
    if get_origin(hint) is Annotated:
        inner, *metadata = get_args(hint)
        for kind, more in alternatives(inner):
            yield kind, (*metadata, *more)
    elif get_origin(hint) in (typing.Union, types.UnionType):
        for each in get_args(hint):
            yield from alternatives(each)
    elif hint is not type(None):
        yield hint, ()
