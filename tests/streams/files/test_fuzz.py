"""Any bytes give rows, bad rows or a declared error, without crash, hang or much memory."""

import gzip
import io
import os
import time

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from tgflow.streams import FileSource, StreamError
from tgflow.streams.errors import CODES

EXAMPLES = int(os.environ.get("TGFLOW_FUZZ", tries(60, 8)))


def read_all(path, **schema):
    """Read a file to its end or to a declared error; every row is accounted for."""
    started = time.monotonic()
    try:
        source = FileSource(path, **schema)
        source.start({})
        try:
            while 0 not in source.ended():
                for rows in source.poll({0}, 10):
                    assert len(rows.events) + len(rows.faults) == rows.num_rows
                    assert {code for code, _ in rows.faults.values()} <= set(CODES)
                    assert all(text.isprintable() for _, text in rows.faults.values())
        finally:
            source.close()
    except StreamError:
        pass
    assert time.monotonic() - started < 20, "it takes a second, on a busy machine a few"


def written(write):
    sink = io.BytesIO()
    write(sink)
    return sink.getvalue()


TABLE = pa.table(
    {
        "src": [f"n{i % 7}" for i in range(300)],
        "dst": pa.array([f"n{i % 5}" for i in range(300)]).dictionary_encode(),
        "t": np.arange(300),
        "x": [[0.5, 1.0]] * 300,
    }
)


def write_stream(sink):
    with pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, 100)


CSV = b"src,dst,t,x\n" + b"".join(b"%d,%d,%d,0.25\n" % (i, i % 5, i) for i in range(40))
JSONL = b"".join(b'{"src": %d, "dst": "b", "t": 2.0, "x": [1, 2e3]}\n' % i for i in range(20))
WHOLE = {
    "events.csv": CSV,
    "events.csv.gz": gzip.compress(CSV),
    "events.tsv": CSV.replace(b",", b"\t"),
    "jodie.csv": b"user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
    + b"".join(b"%d,0,%d.0,0,-0.1,0.2\n" % (i, i) for i in range(30)),
    "events.jsonl": JSONL,
    "events.parquet": written(lambda sink: pa.parquet.write_table(TABLE, sink)),
    "events.arrow": written(lambda sink: pa.feather.write_feather(TABLE, sink)),
    "events.ipc": written(write_stream),
}


@st.composite
def mutations(draw):
    """Return a mutation of the bytes of a file."""
    where = st.integers(0, 1 << 16)
    edits = draw(st.lists(st.tuples(where, st.integers(0, 255)), max_size=8))
    inserted = draw(
        st.sampled_from([b"", b"null", b"{}", b'"', b"\0", b"\r", b"\n", b"[[", b"1e999"])
    )
    return edits, draw(where), inserted, draw(st.integers(0, 3))


def mutate(data, mutation):
    edits, at, inserted, kind = mutation
    data = bytearray(data)
    for place, byte in edits:
        data[place % len(data)] = byte
    at %= len(data)
    data[at:at] = inserted
    return bytes(data[:at] if kind == 0 else data)


@settings(max_examples=EXAMPLES)
@given(mutations())
@pytest.mark.parametrize("name", WHOLE)
def test_mutated_files_give_rows_or_raise_a_declared_error(scratch, name, mutation):
    path = scratch / name
    path.write_bytes(mutate(WHOLE[name], mutation))
    schema = {} if name.startswith("jodie") else {"features": "x"}
    read_all(path, **schema)
