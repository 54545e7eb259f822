"""Columns as named arrays in one file: NumPy's `.npz`, and dicts of tensors that torch saved."""

from __future__ import annotations

import pickle
import zipfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from tgflow.streams.errors import StreamError
from tgflow.streams.files.table import BinaryDecoder, array_of

MAX_BYTES = 1 << 30
"""Bytes that a compressed file's array may have whatever its size; beyond, `MAX_RATIO` counts."""
MAX_RATIO = 200


class ArraysDecoder(BinaryDecoder):
    """Arrays of one length: of one dimension, or of two, whose rows are lists.

    Args:
        path: The file.
        shapes: Of each array; those without rows of their own are no columns.

    Raises:
        StreamError: If the columns differ in length.
    """

    def __init__(self, path: Path, shapes: Mapping[str, Sequence[int]]) -> None:
        columns = {name: shape for name, shape in shapes.items() if len(shape) in (1, 2)}
        lengths = {shape[0] for shape in columns.values()}
        if len(lengths) > 1:
            text = ", ".join(f"{name} {list(shape)}" for name, shape in columns.items())
            raise StreamError(str(path), "schema", f"its arrays differ in length: {text:.200}")
        super().__init__(path, list(columns), next(iter(lengths), 0), may_grow=False)

    def batches(
        self, names: Sequence[str], num_rows: int, first: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows; damage found on the way is `SourceCorrupt`."""
        try:
            columns = self.load(names)
        except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
            raise self.damaged(first, error) from error
        for start in range(first, self.num_events or 0, num_rows):
            part = {name: array_of(x[start : start + num_rows]) for name, x in columns.items()}
            yield pa.RecordBatch.from_pydict(part)

    @abstractmethod
    def load(self, names: Sequence[str]) -> Mapping[str, Any]:
        """Return some of the arrays."""


class NpzDecoder(ArraysDecoder):
    """A file of `numpy.savez`; arrays of objects, which would be unpickled, are refused.

    Args:
        path: The file.

    Raises:
        StreamError: If it is none.
    """

    def __init__(self, path: Path) -> None:
        try:
            with zipfile.ZipFile(path) as file:
                shapes = {
                    info.filename.removesuffix(".npy"): _shape(file, info)
                    for info in file.infolist()
                    if info.filename.endswith(".npy")
                }
        except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError) as error:
            text = f"no readable .npz file: {error!s:.100}"
            raise StreamError(str(path), "syntax", text) from None
        super().__init__(path, shapes)

    def load(self, names: Sequence[str]) -> Mapping[str, Any]:
        """Return some of the arrays."""
        with np.load(self._path, allow_pickle=False) as file:
            return {name: file[name] for name in names}


class TensorsDecoder(ArraysDecoder):
    """A dict of tensors that `torch.save` wrote, such as `TemporalData.to_dict()`.

    It is read with `weights_only=True`, so that nothing in it is run; a `TemporalData` that was
    saved as it is names its class, and is refused.

    Args:
        path: The file.

    Raises:
        StreamError: If it is none.
    """

    def __init__(self, path: Path) -> None:
        self._tensors = _tensors(path)
        super().__init__(path, {name: x.shape for name, x in self._tensors.items()})

    def load(self, names: Sequence[str]) -> Mapping[str, Any]:
        """Return some of the tensors."""
        return {name: self._tensors[name].numpy() for name in names}


def _shape(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[int, ...]:
    """Return an array's shape by its header.

    Raises:
        ValueError: If it holds objects, or more than its file.
    """
    if info.file_size > max(MAX_BYTES, MAX_RATIO * info.compress_size):
        raise ValueError(f"{info.filename} would unpack to {info.file_size:,} bytes")
    with file.open(info) as member:
        version = np.lib.format.read_magic(member)
        read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            version, np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(member)
    if dtype.hasobject:
        raise ValueError(f"{info.filename} holds Python objects, which are not unpickled")
    if int(np.prod(shape, dtype=object)) * dtype.itemsize > info.file_size:
        raise ValueError(f"{info.filename} is shorter than its header says")
    return tuple(shape)


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    way_out = "save a dict of tensors: torch.save(data.to_dict(), path), or pass the object itself"
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        first = str(error).strip().partition("\n")[0]
        text = f"torch cannot load it safely ({first:.100}); {way_out}"
        raise StreamError(str(path), "syntax", text) from None
    if not isinstance(found, dict):
        text = f"it holds a {type(found).__name__}; {way_out}"
        raise StreamError(str(path), "syntax", text)
    tensors = (torch.Tensor,)
    return {str(name): x for name, x in found.items() if isinstance(x, tensors)}
