"""Tensors as bytes in the safetensors format, written and read without trust in anything.

    header bytes (u64) | header: {name: {dtype, shape, data_offsets}} | the tensors' data

Written straight from the tensors' memory: hashing and writing copy nothing and hold no lock of the
interpreter. Read by a parser that believes nothing: see `read`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tgflow.checkpoint.content import Tensors
from tgflow.checkpoint.errors import CheckpointDamaged, UntrustedCheckpoint

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
MAX_HEADER_BYTES = 2 << 20
MAX_TENSORS = 1 << 14
MAX_DIMS = 16
MAX_VALUES = 1 << 17
MAX_ELEMENTS = 1 << 60
CHUNK_BYTES = 8 << 20

_Entry = tuple[str, torch.dtype, list[int], int, int]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A section's bytes: a header, and the tensors' own memory."""

    header: bytes
    data: list[memoryview]

    @property
    def num_bytes(self) -> int:
        """Length in all."""
        return len(self.header) + sum(view.nbytes for view in self.data)

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Yield the bytes in pieces that are neither tiny nor huge."""
        small = bytearray(self.header)
        for view in self.data:
            if view.nbytes < CHUNK_BYTES:
                small += view
            else:
                yield bytes(small)
                small.clear()
                yield from (view[i : i + CHUNK_BYTES] for i in range(0, len(view), CHUNK_BYTES))
            if len(small) >= CHUNK_BYTES:
                yield bytes(small)
                small.clear()
        if small:
            yield bytes(small)


def encode(tensors: Tensors) -> Encoded:
    """Return the bytes of a section; the same tensors always give the same bytes.

    Raises:
        ValueError: If a tensor is of a kind that no file holds, or there are too many.
    """
    header, data, offset = {}, [], 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):
        x = tensors[name].detach()
        if x.dtype not in _NAMES or x.layout != torch.strided or x.dim() > MAX_DIMS:
            raise ValueError(f"tensor {name!r} cannot be saved: {x.dtype}, {x.layout}, {x.dim()}-d")
        view = x.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        place = [offset, offset := offset + view.nbytes]
        header[name] = {"dtype": _NAMES[x.dtype], "shape": list(x.shape), "data_offsets": place}
        data.append(view)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES or len(header) > MAX_TENSORS:
        raise ValueError(f"a section holds at most {MAX_TENSORS} tensors, got {len(header)}")
    return Encoded(len(text).to_bytes(8, "little") + text, data)


def read(what: str, descriptor: int, size: int) -> Tensors:
    """Return the tensors of an open file, each in memory of its own.

    Args:
        what: The file's name, for messages.
        descriptor: The file.
        size: Its size in bytes.

    Raises:
        UntrustedCheckpoint: If the header is larger than ours ever are, is no plain JSON, or does
            not describe exactly the bytes that follow, each once.
        CheckpointDamaged: If the file gets shorter meanwhile.
    """
    start, entries = check(what, descriptor, size)
    tensors = {}
    for name, dtype, shape, begin, _ in entries:
        x = tensors[name] = torch.empty(shape, dtype=dtype)
        if x.numel():
            _fill(what, descriptor, x.reshape(-1).view(torch.uint8).numpy().data, start + begin)
    return tensors


def check(what: str, descriptor: int, size: int) -> tuple[int, list[_Entry]]:
    """Return where the data of an open file begins, and its entries; as `read`, which see."""
    start = 8 + _header_bytes(what, os.pread(descriptor, 8, 0), size)
    return start, _entries(what, os.pread(descriptor, start - 8, 8), size - start)


def check_like(what: str, found: Tensors, expected: Tensors) -> None:
    """Raise unless `found` has the names, shapes and dtypes of `expected`.

    Args:
        what: The section, for messages.
        found: A section that was loaded.
        expected: What the configuration implies, such as a new model's `state_dict()`.

    Raises:
        UntrustedCheckpoint: If not.
    """
    for name in sorted(found.keys() ^ expected.keys()):
        side = "lacks" if name in expected else "has an unknown"
        raise UntrustedCheckpoint(f"{what} {side} tensor {name!r:.80}")
    for name, x in expected.items():
        y = found[name]
        if y.dtype != x.dtype or y.shape != x.shape:
            raise UntrustedCheckpoint(
                f"{what}: {name} is {y.dtype} {tuple(y.shape)}, the configuration asks for "
                f"{x.dtype} {tuple(x.shape)}"
            )


def _header_bytes(what: str, start: bytes, size: int) -> int:
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(MAX_HEADER_BYTES, size - 8):
        raise UntrustedCheckpoint(
            f"{what} is no safetensors file: it claims a header of {length} bytes"
        )
    return length


def _entries(what: str, text: bytes, num_bytes: int) -> list[_Entry]:
    """Return name, dtype, shape, begin and end of each tensor; together they are all the data."""
    if text.count(b",") > MAX_VALUES:
        raise UntrustedCheckpoint(f"{what} has a header of {text.count(b',')} values")
    try:
        header = json.loads(text, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise UntrustedCheckpoint(f"{what} has a header that is no JSON: {error}") from None
    if not isinstance(header, dict) or len(header) > MAX_TENSORS:
        raise UntrustedCheckpoint(f"{what} has a header that is no table of tensors, or a huge one")
    header.pop("__metadata__", None)
    entries = [(name, *_entry(what, name, entry)) for name, entry in header.items()]
    end = 0
    for name, _, _, begin, stop in sorted(entries, key=lambda entry: entry[3:]):
        if begin != end:
            raise UntrustedCheckpoint(
                f"{what}: tensor {name!r:.80} overlaps another, or leaves a gap"
            )
        end = stop
    if end != num_bytes:
        raise UntrustedCheckpoint(f"{what} describes {end} bytes of data, it has {num_bytes}")
    return entries


def _entry(what: str, name: str, entry: Any) -> tuple[torch.dtype, list[int], int, int]:
    """Return dtype, shape, begin and end of one tensor, checked against each other."""
    try:
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        good = all(type(x) is int and 0 <= x < MAX_ELEMENTS for x in (*shape, begin, end))
        good = good and type(shape) is list and len(shape) <= MAX_DIMS and len(entry) == 3
        good = good and math.prod(max(x, 1) for x in shape) < MAX_ELEMENTS
        dtype = DTYPES[kind]
    except (LookupError, TypeError, ValueError):
        good = False
    if not good or math.prod(shape) * dtype.itemsize != end - begin:
        raise UntrustedCheckpoint(f"{what}: the entry of tensor {name!r:.80} contradicts itself")
    return dtype, shape, begin, end


def _fill(what: str, descriptor: int, view: memoryview, offset: int) -> None:
    """Read into all of `view`."""
    done = 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            raise CheckpointDamaged(f"{what} got shorter while it was read")
        done += count


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key occurs twice")
    return table
