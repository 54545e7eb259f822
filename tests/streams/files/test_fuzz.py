"""Any bytes give rows, bad rows or a declared error: never a crash, a hang, or much memory."""

import gzip
import io
import os
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import tries
from tgflow.streams import StreamError, open_files
from tgflow.streams.errors import CODES

EXAMPLES = int(os.environ.get("TGFLOW_FUZZ", tries(60, 8)))


def read_all(path, **schema):
    """Read a file to its end or to a declared error; every row is accounted for."""
    started = time.monotonic()
    try:
        source = open_files(path, **schema)
        source.start({})
        try:
            while 0 not in source.ended():
                for rows in (polled.rows for polled in source.poll({0}, 10)):
                    assert len(rows.events) + len(rows.faults) == rows.num_rows
                    assert {row.code for row in rows.faults} <= set(CODES)
                    assert all(row.text.isprintable() for row in rows.faults)
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
    """Return what to do to the bytes of a file."""
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
def test_mutated_files_give_rows_or_a_declared_error(scratch, name, mutation):
    path = scratch / name
    path.write_bytes(mutate(WHOLE[name], mutation))
    schema = {} if name.startswith("jodie") else {"features": "x"}
    read_all(path, **schema)


@settings(max_examples=EXAMPLES)
@given(st.binary(max_size=400))
@pytest.mark.parametrize("name", WHOLE)
def test_any_bytes_give_rows_or_a_declared_error(scratch, name, data):
    path = scratch / name
    head, _, rest = WHOLE[name].partition(b"\n")
    path.write_bytes(data)
    read_all(path)
    path.write_bytes(head + b"\n" + rest.split(b"\n")[0] + b"\n" + data)
    read_all(path)


BOUNDED = """
import resource, sys
from tgflow.streams import open_files
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    source = open_files(path, features="x" if path.endswith("jsonl") else None)
    source.start({})
    num_bad = 0
    while 0 not in source.ended():
        num_bad += sum(len(polled.rows.faults) for polled in source.poll({0}, 10))
    source.close()
    assert num_bad, path
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""
LARGE = {
    "nested.jsonl": JSONL + b'{"src": ' + b"[" * (20 << 20) + b"\n",
    "digits.jsonl": JSONL + b'{"src": 1, "dst": "b", "t": ' + b"9" * (20 << 20) + b"}\n",
    "line.csv": CSV + b"9" * (60 << 20) + b"\n",
    "quote.csv": CSV + b'"' + b"a,\n" * 20_000,
    "short.csv": CSV + b"a\n" * 100_000,
}


@pytest.mark.slow
def test_large_poison_takes_bounded_memory(tmp_path):
    for name, data in LARGE.items():
        (tmp_path / name).write_bytes(data)
    paths = [str(tmp_path / name) for name in LARGE]
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, *paths], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 256
