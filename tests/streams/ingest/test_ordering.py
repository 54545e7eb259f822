import itertools

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from helpers.ingestion import Row, judge_rows
from tgflow.streams.ingest.admission import BoundedWindow, RecentIds, classify
from tgflow.streams.ingest.config import AFTER_ALL, BEFORE_ALL, OrderConfig
from tgflow.streams.ingest.ingest_state import PartitionState, Seen
from tgflow.streams.ingest.ordering import ReorderBuffer, ranks, sequence
from tgflow.streams.rows.row_batch import EventColumns

SMALL = st.integers(-10, 40)
HUGE = st.sampled_from([BEFORE_ALL, BEFORE_ALL + 1, -1, 0, 7, AFTER_ALL - 7, AFTER_ALL - 1])
CONFIGS = st.builds(
    OrderConfig,
    allowed_lateness=st.sampled_from([None, 1, 5, 2.0**62, 1e300]),
    max_time_jump=st.sampled_from(["none", 0.5, 3, 2.0**62, 1e300]),
)


def cut(items, at):
    """Cut a list at the given places."""
    edges = [0, *sorted({place % (len(items) + 1) for place in at}), len(items)]
    return [items[a:b] for a, b in itertools.pairwise(edges) if b > a]


@given(
    t=st.one_of(st.lists(SMALL, max_size=40), st.lists(st.one_of(SMALL, HUGE), max_size=40)),
    config=CONFIGS,
    at=st.lists(st.integers(0, 40), max_size=5),
    share=st.sampled_from([None, 1, 3]),
)
def test_classification_does_not_depend_on_batch_boundaries(t, config, at, share):
    expected = judge_rows([Row(0, 0, tick) for tick in t], config, share)
    front, done, late, bad, forced = PartitionState(), 0, [], {}, 0
    window = None if share is None else BoundedWindow([], share, 10**9)
    for piece in cut(t, at):
        front, rejected, more = classify(
            np.array(piece), front, config.limits("s"), window=window, sizes=1
        )
        late += [done + r.row for r in rejected if r.code == "late"]
        bad |= {done + r.row: r.code for r in rejected if r.code != "late"}
        forced, done = forced + more, done + len(piece)
    assert (late, bad, forced) == (expected.late, expected.bad, expected.forced)


def test_nearly_empty_buffer_frees_released_rows():
    buffer = ReorderBuffer()
    for i in range(60):  # one row of each poll stays buffered
        n = 50_000
        t = np.full(n, i)
        t[0] = 10**9
        ids = pa.array(np.arange(n))
        buffer.add(
            EventColumns(ids, ids, t, None, None, rank=ranks(0, np.arange(i * n, (i + 1) * n)))
        )
        buffer.release(i + 1)
    assert len(buffer) == 60
    arrays = {id(owner): len(owner) for rows in buffer.held() for owner in [owner_of(rows.t)]}
    assert sum(arrays.values()) <= 4 * 60
    rows = buffer.release(AFTER_ALL)
    assert sequence(rows.rank).tolist() == list(range(0, 60 * 50_000, 50_000))


def owner_of(array):
    return array if array.base is None else array.base


def test_remembered_ids_are_bounded_by_the_window():
    recent = RecentIds(100)
    windows = []
    for i in range(0, 10_000, 10):
        recent.duplicates(Seen(np.arange(i, i + 10), np.arange(i, i + 10)))
        windows.append(recent.window())
    assert len(recent._seq_of) <= 2 * 100 + 2048
    assert windows[-1].seen().seq.tolist() == list(range(9_900, 10_000))
    assert windows[500].seen().seq.tolist() == list(range(4_910, 5_010))
