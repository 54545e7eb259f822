"""Helpers for file tests: generated files, and reading them completely."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

GOOD = b"1,2,3,0.5,0\n"
HEADER = b"src,dst,t,f0,label\n"
SCHEMA = {"features": ["f0"], "label": "label"}


def read(source, position=None):
    """Return all arrivals, in polls, from a position on."""
    source.start({} if position is None else {0: position})
    try:
        polls = []
        while 0 not in source.ended():
            polls += source.poll({0}, 5)
        return polls
    finally:
        source.close()


def flat(polls):
    """Return the events with their row numbers, and the bad rows with numbers and locations."""
    events, bad, first = [], [], 0
    for poll in polls:
        index = range(poll.num_rows) if poll.index is None else poll.index.tolist()
        columns = poll.events
        rows = zip(
            columns.src.to_pylist(),
            columns.dst.to_pylist(),
            columns.t.tolist(),
            [()] * len(columns) if columns.x is None else map(tuple, columns.x.tolist()),
            strict=True,
        )
        events += [(first + i, *row) for i, row in zip(index, rows, strict=True)]
        bad += [(first + b.index, b.code, dict(b.origin.place), b.origin.raw) for b in poll.bad()]
        assert len(poll.events) + len(poll.bad()) == poll.num_rows
        first += poll.num_rows
    return events, bad


def poll_on(source, polls):
    while 0 not in source.ended():
        polls += source.poll({0}, 5)


def csv_of(first, last):
    """Return rows `first` to `last` of a file of src, dst, t."""
    return b"".join(b"%d,2,%d\n" % (i, i) for i in range(first, last))


def table_of(num_rows):
    """Return a table of src, dst, t."""
    t = np.arange(num_rows)
    return pa.table({"src": t % 7, "dst": t % 5, "t": t})


def rows_of(stream):
    """Return (src, dst, t) of every event, with the stream's own ids."""
    found = []
    for batch in stream:
        ends = (stream.ids.decode(nodes) for nodes in (batch.src, batch.dst))
        found += zip(*ends, batch.t.tolist(), strict=True)
    return found
