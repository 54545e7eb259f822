"""From events to records, in the forms that the codecs read."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from tgflow.events import EventBatch
from tgflow.ids import NodeIds
from tgflow.streams.kafka.config import CodecName

ROWS = {"json": 1, "csv": 1, "struct": 1, "arrow": 1000}
"""How many events a record holds where nothing else is said."""

Encode = Callable[[pa.RecordBatch], bytes]


def event_rows(events: EventBatch, ids: NodeIds) -> pa.RecordBatch:
    """Return events by their own ids: src, dst, t, label if there, features as lists x."""
    columns: dict[str, pa.Array] = {
        "src": pa.array(ids.decode(events.src)),
        "dst": pa.array(ids.decode(events.dst)),
        "t": pa.array(events.t.numpy()),
    }
    if events.label is not None:
        columns["label"] = pa.array(events.label.numpy())
    if events.x is not None:
        flat = pa.array(events.x.numpy().astype(np.float32, copy=False).reshape(-1))
        columns["x"] = pa.FixedSizeListArray.from_arrays(flat, events.x_dim)
    return pa.RecordBatch.from_pydict(columns)


def records(rows: pa.RecordBatch, codec: CodecName, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield records of at most `size` rows, each with how many it holds.

    Raises:
        ValueError: If the codec cannot hold them: text ids in structures.
    """
    encode = _ENCODERS[codec]
    for start in range(0, len(rows), size):
        part = rows.slice(start, size)
        yield encode(part), len(part)


def layout_of(schema: pa.Schema) -> str:
    """Return the layout of structures that hold rows of a schema."""
    parts = [f"{name}:<i8" for name in schema.names if name != "x"]
    if "x" in schema.names:
        parts.append(f"x:<f4[{schema.field('x').type.list_size}]")
    return ",".join(parts)


def _json(rows: pa.RecordBatch) -> bytes:
    [row] = rows.to_pylist()
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode()


def _csv(rows: pa.RecordBatch) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in rows.to_pylist():
        x = row.pop("x", ())
        writer.writerow([*row.values(), *x])
    return out.getvalue().removesuffix("\n").encode()


def _struct(rows: pa.RecordBatch) -> bytes:
    from tgflow.streams.kafka.codecs.struct import struct_dtype

    if not pa.types.is_integer(rows.schema.field("src").type):
        raise ValueError("structures hold integer ids only, and these are text: choose arrow")
    out = np.empty(len(rows), dtype=struct_dtype(layout_of(rows.schema)))
    for name in rows.schema.names:
        column = rows[name]
        out[name] = (
            column.flatten().to_numpy().reshape(len(rows), -1) if name == "x" else column.to_numpy()
        )
    return out.tobytes()


def _arrow(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


_ENCODERS: dict[str, Encode] = {"json": _json, "csv": _csv, "struct": _struct, "arrow": _arrow}


def partition_of(src: pa.Array, num_partitions: int) -> Any:
    """Return the partition of each source node, int64: the same node goes to the same one."""
    if pa.types.is_integer(src.type):
        return np.mod(src.to_numpy(), num_partitions)
    from crc32c import crc32c

    texts = src.to_pylist()
    hashes = np.fromiter((crc32c(text.encode()) for text in texts), np.int64, len(texts))
    return hashes % num_partitions
