"""Validation of manifest values against the types that tgflow writes."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tgflow.base.units import INT64_MAX
from tgflow.checkpoint.names import UntrustedCheckpoint


def read_as(kind: Any, value: Any, key: str) -> Any:
    """Convert a JSON value of a manifest to `kind`, or raise UntrustedCheckpoint with its `key`.

    A kind is Any, bool, int, float, str, None, Literal, list, tuple, dict with str keys, a union of
    these, or a dataclass of such fields, all of which are required. Integers have 64 bits, and
    floats are finite.
    """
    if kind is Any:
        return value
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        for each in args[:-1]:
            with suppress(UntrustedCheckpoint):
                return read_as(each, value, key)
        return read_as(args[-1], value, key)
    if is_dataclass(kind) and isinstance(value, Mapping):
        hints, names = get_type_hints(kind), [each.name for each in fields(kind)]
        for name in value.keys() ^ set(names):
            side = "lacks" if name in names else "has an unknown"
            raise UntrustedCheckpoint(f"{key} {side} {name!r:.60}")
        found = {name: read_as(hints[name], value[name], f"{key}.{name}") for name in names}
        return kind(**found)  # type: ignore[operator]
    if origin is list and isinstance(value, list):
        return [read_as(args[0], item, f"{key}[{i}]") for i, item in enumerate(value)]
    if origin is tuple and isinstance(value, list | tuple) and args[-1] is Ellipsis:
        return tuple(read_as(args[0], item, f"{key}[{i}]") for i, item in enumerate(value))
    if origin is tuple and isinstance(value, list | tuple) and len(value) == len(args):
        pairs = enumerate(zip(args, value, strict=True))
        return tuple(read_as(each, item, f"{key}[{i}]") for i, (each, item) in pairs)
    if origin is dict and isinstance(value, dict):
        return {name: read_as(args[1], item, f"{key}.{name}") for name, item in value.items()}
    if origin is Literal and any(value == one and type(value) is type(one) for one in args):
        return value
    if kind in (None, types.NoneType) and value is None:
        return None
    if kind in (bool, str) and type(value) is kind:
        return value
    if kind is int and type(value) is int and -INT64_MAX - 1 <= value <= INT64_MAX:
        return value
    if kind is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    name = getattr(kind, "__name__", str(kind)) if origin is None else str(kind)
    raise UntrustedCheckpoint(f"{key} is {value!r:.60}, expected {name}")


def read_natural(meta: Mapping[str, Any], key: str, most: int = INT64_MAX) -> int:
    """Return the integer from 0 to `most` under `key`."""
    value: int = read_as(int, meta.get(key), key)
    if not 0 <= value <= most:
        raise UntrustedCheckpoint(f"{key} is {value}, and not from 0 to {most}")
    return value
