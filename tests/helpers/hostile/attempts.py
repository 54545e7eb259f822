"""Calls native functions with every wrong argument value and collects the results."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tgflow import _core

REFUSALS = (ValueError, TypeError, IndexError)
INT64_MAX = 2**63 - 1
FOR_TESTS = {"FileOp", "inject_fault"}
"""Functions that only development builds have."""
ROWS, WIDTH, NUM, K = 5, 4, 3, 2
"""Sizes of valid arguments: a table's rows and their width, ids, neighbors each."""


@dataclass
class Call:
    """A valid call, and constraints of its arguments."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    indices: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Valid half-open range of the elements of int64 tensors."""
    numbers: dict[str, list[Any]] = field(default_factory=dict)
    """Values of a number or list that must be refused."""
    optional: set[str] = field(default_factory=set)
    """Arguments that may be None."""
    any_type: set[str] = field(default_factory=set)
    """Tensors read as bytes, of any dtype."""
    any_float: set[str] = field(default_factory=set)
    """Tensors of float32 or float64."""
    any_length: set[str] = field(default_factory=set)
    """Tensors of independent length."""
    any_shape: set[str] = field(default_factory=set)
    """Tensors read by element, of any shape."""
    any_width: set[str] = field(default_factory=set)
    """Matrices of independent width."""
    any_strides: set[str] = field(default_factory=set)
    """Tensors that need not be contiguous."""


def entries() -> set[str]:
    """Return the name of every function and method of the core that takes an argument."""
    found = set()
    for name, member in vars(_core).items():
        if name in FOR_TESTS or hasattr(member, "__members__"):
            continue
        if isinstance(member, type):
            methods = {"__init__": member.__init__, **vars(member)}
            found |= {f"{name}.{part}" for part, x in methods.items() if _takes_arguments(x)}
        elif _takes_arguments(member):
            found.add(name)
    return found


def _takes_arguments(member: object) -> bool:
    """Return whether it is a bound C++ function with an argument beside `self`."""
    signature = re.match(r"\w+\((self: [^,)]*(, )?)?(.*)\)( -> .*)?$", _signature(member))
    return signature is not None and bool(signature[3])


def _signature(member: object) -> str:
    if type(member).__name__ not in ("builtin_function_or_method", "instancemethod"):
        return ""
    lines = (getattr(member, "__doc__", None) or "").splitlines()
    return lines[0] if lines else ""


def wrong(call: Call, name: str, good: Any) -> Iterator[tuple[str, Any]]:
    """Yield descriptions and values that an argument must not have."""
    if isinstance(good, Tensor):
        yield from _wrong_tensors(call, name, good)
    elif isinstance(good, tuple):  # a column of ids: its arrays, one at a time
        for i, part in enumerate(good):
            if isinstance(part, Tensor):
                bytes_of_strings = i == 1  # of any type and length: offsets delimit the strings
                for what, value in _wrong_tensors(call, name, part):
                    if bytes_of_strings and not what.startswith(("on meta", "sparse", "shorter")):
                        continue
                    yield f"part {i}: {what}", (*good[:i], value, *good[i + 1 :])
        yield "one tensor", good[0]
        yield "the other kind", (good[0], good[0] if good[1] is None else None)
    elif isinstance(good, int | float) and not isinstance(good, bool):
        yield from ((str(value), value) for value in call.numbers.get(name, []))
        if isinstance(good, int):
            yield "beyond 64 bits", 2**70
        yield "a tensor", torch.zeros(2)
    elif isinstance(good, list):
        yield from ((str(value), value) for value in call.numbers.get(name, []))
    if name not in call.optional and not isinstance(good, bool):  # None is false
        yield "None", None
    if not isinstance(good, str | Path):
        yield "a string", "x"
    if not isinstance(good, bool):
        yield "an object", object()


def _wrong_tensors(call: Call, name: str, good: Tensor) -> Iterator[tuple[str, Any]]:
    yield "an address", good.data_ptr()
    yield "a list", good.tolist()
    yield "on meta", good.to("meta")
    yield "sparse", good.to_sparse()
    for dtype in (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool):
        is_good = name in call.any_type or (dtype.is_floating_point and name in call.any_float)
        if dtype != good.dtype and not is_good:
            yield f"of {dtype}", good.to(dtype)
    if good.numel() > 1 and name not in call.any_strides:
        yield "every other element", torch.stack([good, good], -1)[..., 0]
        yield "one element, expanded", good.flatten()[0].expand(good.shape)
    if name not in call.any_length:
        yield "longer", torch.cat([good, good])
        if len(good):
            yield "shorter", good[1:]
        if name not in call.any_type | call.any_shape:
            yield "of one more dimension", good.unsqueeze(0)
        if good.dim() > 1 and name not in call.any_width:
            yield "wider", torch.cat([good, good], -1)
            yield "narrower", good[..., 1:].contiguous()
    low, high = call.indices.get(name, (None, None))
    if low is not None and high is not None:
        for value in (low - 1, high, -(2**63), INT64_MAX):
            if low <= value < high or not -(2**63) <= value <= INT64_MAX:
                continue
            bad = good.clone()
            bad.view(-1)[-1] = value
            yield f"with {value} in it", bad


def attempt_all(cases: dict[str, Callable[[], Call]]) -> int:
    """Return the number of attempts that were not refused."""
    accepted = 0
    for entry, make in cases.items():
        print(f"{entry}: as it should be", flush=True)
        call = make()
        call.function(**call.arguments)
        for name in call.arguments:
            good = make()
            for what, value in wrong(good, name, good.arguments[name]):
                fresh = make()
                print(f"{entry}: {name} {what}", flush=True)
                accepted += not _refuses(fresh, {**fresh.arguments, name: value})
    return accepted


def _refuses(call: Call, arguments: dict[str, Any]) -> bool:
    try:
        call.function(**arguments)
    except REFUSALS as error:
        print(f"    {type(error).__name__}: {str(error).splitlines()[0]}")
        return True
    except Exception as error:
        print(f"    NOT AS A REFUSAL: {error!r}", flush=True)
        return False
    print("    ACCEPTED", flush=True)
    return False


def ids(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def simple(make: Callable[[], Any], arguments: dict[str, Any], **known: Any) -> Callable[[], Call]:
    return lambda: Call(make(), dict(arguments), **known)
