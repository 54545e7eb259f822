"""From events to records, in the forms that the codecs read."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tgflow.events import EventBatch
from tgflow.ids import NodeIds
from tgflow.streams.kafka.config import CodecName

ROWS = {"json": 1, "csv": 1, "arrow": 1000}
"""How many events a record holds by default."""

Encode = Callable[[pa.RecordBatch], bytes]


def event_rows(events: EventBatch, ids: NodeIds) -> pa.RecordBatch:
    """Return events by their own ids: src, dst, t, label, weight, features as lists x."""
    rows = replace(events, x=None).to_arrow(ids)
    if events.x is None:
        return rows
    flat = pa.array(events.x.numpy().astype(np.float32, copy=False).reshape(-1))
    return rows.append_column("x", pa.FixedSizeListArray.from_arrays(flat, events.x_dim))


def records(rows: pa.RecordBatch, codec: CodecName, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield records of at most `size` rows, each with how many it holds."""
    encode = _ENCODERS[codec]
    for start in range(0, len(rows), size):
        part = rows.slice(start, size)
        yield encode(part), len(part)


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


def _arrow(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


_ENCODERS: dict[str, Encode] = {"json": _json, "csv": _csv, "arrow": _arrow}


def partition_of(src: pa.Array, num_partitions: int) -> Any:
    """Return the partition of each source node, int64: the same node goes to the same one."""
    if pa.types.is_integer(src.type):
        return np.mod(src.to_numpy(), num_partitions)
    from crc32c import crc32c

    texts = src.to_pylist()
    hashes = np.fromiter((crc32c(text.encode()) for text in texts), np.int64, len(texts))
    return hashes % num_partitions
