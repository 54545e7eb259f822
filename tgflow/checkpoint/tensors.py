"""Tensors in the safetensors format, written and read without trusting the data."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Container, Iterator
from dataclasses import dataclass

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tgflow.checkpoint.checkpoint import Tensors
from tgflow.checkpoint.names import CheckpointDamaged, CheckpointError, UntrustedCheckpoint

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
CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Encoded:
    """Serialized section: a header, and the tensors' own memory."""

    header: bytes
    data: list[Tensor]
    """Flat and contiguous, on any device."""

    @property
    def num_bytes(self) -> int:
        """Total length in bytes."""
        return len(self.header) + sum(x.nbytes for x in self.data)

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Yield the bytes in chunks of moderate size, each valid until the next."""
        small = bytearray(self.header)
        for x in self.data:
            if not x.numel():  # of NumPy it has a stride of 0, which no view as bytes may have
                continue
            if x.nbytes < CHUNK_BYTES:
                small += x.cpu().view(torch.uint8).numpy().data
            else:
                yield bytes(small)
                small.clear()
                for part in torch.split(x, CHUNK_BYTES // x.element_size()):
                    yield part.cpu().view(torch.uint8).numpy().data
            if len(small) >= CHUNK_BYTES:
                yield bytes(small)
                small.clear()
        if small:
            yield bytes(small)


def encode(tensors: Tensors, *, align: int = 8) -> Encoded:
    """Serialize a section; equal tensors always give equal bytes.

    The data begins at a multiple of `align`, with the widest types.
    """
    header, data, offset = {}, [], 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):
        x = tensors[name].detach()
        if x.dtype not in _NAMES or x.layout != torch.strided or x.dim() > MAX_DIMS:
            raise ValueError(f"tensor {name!r} cannot be saved: {x.dtype}, {x.layout}, {x.dim()}-d")
        data.append(x.contiguous().reshape(-1))
        place = [offset, offset := offset + x.nbytes]
        header[name] = {"dtype": _NAMES[x.dtype], "shape": list(x.shape), "data_offsets": place}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % align)
    if len(text) > MAX_HEADER_BYTES or len(header) > MAX_TENSORS:
        raise ValueError(f"a section holds at most {MAX_TENSORS} tensors, got {len(header)}")
    return Encoded(len(text).to_bytes(8, "little") + text, data)


def read(what: str, descriptor: int, size: int) -> Tensors:
    """Read the tensors of an open file, each into its own memory."""
    offset, tensors = check(what, descriptor, size)
    for x in tensors.values():
        data = x.reshape(-1).view(torch.uint8).numpy().data if x.numel() else memoryview(b"")
        done = 0
        while done < len(data):
            count = os.preadv(descriptor, [data[done:]], offset + done)
            if count == 0:
                raise CheckpointDamaged(f"{what} was truncated during the read")
            done += count
        offset += len(data)
    return tensors


def offsets(what: str, descriptor: int, size: int) -> dict[str, int]:
    """Return the byte of an open file at which each tensor begins."""
    offset, tensors = check(what, descriptor, size)
    found = {}
    for name, x in tensors.items():
        found[name], offset = offset, offset + x.nbytes
    return found


def check(what: str, descriptor: int, size: int) -> tuple[int, Tensors]:
    """Return the offset of the data in an open file, and its unread tensors, in order."""
    start = os.pread(descriptor, 8, 0)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(MAX_HEADER_BYTES, size - 8):
        raise UntrustedCheckpoint(
            f"{what} is no safetensors file: it claims a header of {length} bytes"
        )
    try:
        with safe_open(f"/dev/fd/{descriptor}", framework="np") as file:
            described = [(name, file.get_slice(name)) for name in file.offset_keys()]
            kinds = [(name, x.get_dtype(), x.get_shape()) for name, x in described]
    except (SafetensorError, UnicodeError) as error:
        raise UntrustedCheckpoint(f"{what} is no safetensors file: {error!s:.200}") from None
    if len(kinds) > MAX_TENSORS:
        raise UntrustedCheckpoint(
            f"{what} has {len(kinds)} tensors, at most {MAX_TENSORS} are read"
        )
    for name, kind, shape in kinds:
        if kind not in DTYPES or len(shape) > MAX_DIMS:
            raise UntrustedCheckpoint(
                f"{what}: tensor {name!r:.80} is {kind} of {len(shape)} dimensions, no tgflow's"
            )
    return 8 + length, {name: torch.empty(shape, dtype=DTYPES[kind]) for name, kind, shape in kinds}


def check_finite(what: str, found: Tensors, *, limits: Container[str] = ()) -> None:
    """Raise CheckpointError if a tensor has NaN, or an infinity where its name is not in `limits`.

    A run saves no such values, as it ends before.
    """
    for name, x in found.items():
        if x.is_floating_point() and x.numel():
            low, high = (float(each) for each in x.aminmax())
            is_limited = math.isinf(low) or math.isinf(high)
            if math.isnan(low) or (is_limited and name not in limits):
                raise CheckpointError(
                    f"{what}: {name} has values that are not finite: bring the checkpoint back "
                    "from a copy, or move it away to continue from the one before"
                )


def check_like(what: str, found: Tensors, expected: Tensors) -> None:
    """Raise unless `found` has the names, shapes and dtypes of `expected`.

    what: Section name, for messages.
    found: A loaded section.
    expected: Tensors implied by the configuration, such as a new model's `state_dict()`.
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
