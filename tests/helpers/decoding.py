"""Records decoded without a broker, and rows as records of each codec."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pyarrow as pa

from helpers.kafka_io import Reading
from tgflow.streams.kafka import KafkaConfig
from tgflow.streams.kafka.codecs import RecordDecoder
from tgflow.streams.kafka.consumer import Chunk, Cursor

CODECS = ("json", "csv", "arrow")


def config(codec, **settings):
    settings = {"time_unit": "s", "features": ["x[2]"]} | settings
    return KafkaConfig(url="kafka://h:1/edges", codec=codec, **settings)


def record(value, offset):
    return SimpleNamespace(value=value, key=None, offset=offset, timestamp=offset + 1000)


def decode(values, codec, **settings):
    polled = [record(value, 10 + i) for i, value in enumerate(values)]
    cursor = Cursor(9).after(polled[-1]) if values else Cursor(10)
    chunk = Chunk(0, polled, cursor, {})
    reading = Reading()
    reading.add(RecordDecoder(config(codec, **settings)).decode(chunk))
    return reading


def arrow(src, dst=None, t=None, x=None, **columns):
    n = len(src)
    found = {
        "src": pa.array(src),
        "dst": pa.array([1] * n if dst is None else dst),
        "t": pa.array([0] * n if t is None else t),
    }
    lists = [[0.5, 1.5]] * n if x is None else x
    found["x"] = pa.array(lists, pa.list_(pa.float32(), 2)) if lists is not False else None
    found |= columns
    batch = pa.RecordBatch.from_pydict({k: v for k, v in found.items() if v is not None})
    return arrow_stream(batch)


def arrow_stream(batch, options=None):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def row(codec, src, dst, t, x=(0.5, 1.5)):
    if codec == "json":
        return json.dumps({"src": src, "dst": dst, "t": t, "x": list(x)}).encode()
    if codec == "csv":
        return ",".join(str(v) for v in (src, dst, t, *x)).encode()
    return arrow([src], [dst], [t], [list(x)])
