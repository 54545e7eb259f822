"""Generated files, also in the formats of TGB and RelBench, and reading them completely."""

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GOOD = b"1,2,3,0.5,0\n"
HEADER = b"src,dst,t,f0,label\n"
SCHEMA = {"features": ["f0"], "label": "label"}


def read(source, position=None, polls=None):
    """Return all arrivals, in polls, from a position on; `polls` keeps those before an error."""
    source.start({} if position is None else {0: position})
    try:
        polls = [] if polls is None else polls
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


Row = tuple[int, int, int]
NUM_USERS = 6
NUM_ITEMS = 8


def jodie_rows(num=120, seed=3):
    """Return users and items, counted apart from 0, at times that tie; one user comes late."""
    rng = np.random.default_rng(seed)
    late = NUM_USERS - 1
    users, items = rng.integers(late, size=num), rng.integers(NUM_ITEMS, size=num)
    users[:late], items[:NUM_ITEMS] = range(late), range(NUM_ITEMS)
    users[num * 3 // 4 :: 7] = late
    t = rng.integers(0, 3, size=num).cumsum()
    return list(zip(users.tolist(), items.tolist(), t.tolist(), strict=True))


def shifted(rows):
    """Return the rows as TGB numbers them: items after users."""
    first = max(src for src, _, _ in rows) + 1
    return [(src, dst + first, t) for src, dst, t in rows]


def negatives_of(part, events, num=4):
    """Return up to `num` negatives of each event of a part, by the rule of TGB's generator.

    Half are destinations that the source had in training, the others any; none is one that it has
    at the same time in the part. The list of a source without training history is float64: TGB
    concatenates an empty array of floats with integers.

    Args:
        part: Events of validation or of the test.
        events: All events.
        num: 8 gives all other destinations, as in tgbl-wiki-v2.
    """
    rng = np.random.default_rng(5)
    trained = events[: -sum(map(len, parts_of(events)))]
    everything = np.unique([dst for _, dst, _ in events])
    negatives = {}
    for src, dst, t in part:
        same = [other for source, other, time in part if (source, time) == (src, t)]
        past = np.setdiff1d([other for source, other, _ in trained if source == src], same)
        past = rng.permutation(past)[: num // 2]  # float64 if empty, as NumPy's empty list
        rest = rng.permutation(np.setdiff1d(everything, [*same, *past]))[: num - len(past)]
        negatives[src, dst, t] = np.concatenate([past, rest])
    return negatives


def parts_of(rows):
    """Return the rows of validation and of the test, by the quantiles of time."""
    val_time, test_time = np.quantile([t for _, _, t in rows], [0.70, 0.85])
    val = [row for row in rows if val_time < row[2] <= test_time]
    return val, [row for row in rows if row[2] > test_time]


def write_tgb(folder, rows=None, protocol=4):
    """Write tgbl-made's three files; return its rows as TGB numbers them."""
    folder.mkdir(exist_ok=True)
    rows = jodie_rows() if rows is None else rows
    header = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features"
    lines = [f"{src},{dst},{t}.0,0,{src / 10},1.0" for src, dst, t in rows]
    (folder / "tgbl-made_edgelist_v2.csv").write_text("\n".join([header, *lines]) + "\n")
    events = shifted(rows)
    for part, own in zip(("val", "test"), parts_of(events), strict=True):
        data = pickle.dumps(negatives_of(own, events), protocol=protocol)
        (folder / f"tgbl-made_{part}_ns_v2.pkl").write_bytes(data)
    return events


def write_relbench(folder, events, is_bipartite=True):
    """Write events, as TGB numbers them, and negatives in the layout of RelBench's export."""
    (folder / "db").mkdir(parents=True)
    (folder / "negatives").mkdir()
    text = "name: tgbl-made\nmanifest_version: 1\ntables:\n  events:\n    pkey: event_id\n"
    (folder / "manifest.yaml").write_text(text)
    src, dst, t = np.array(events).T
    num_src = int(src.max()) + 1
    ids = {"nodes": int(dst.max()) + 1}
    if is_bipartite:
        ids = {"src_nodes": num_src, "dst_nodes": int(dst.max()) + 1 - num_src}
        dst = dst - num_src
    for name, num in ids.items():
        pq.write_table(pa.table({"id": np.arange(num)}), folder / "db" / f"{name}.parquet")
    columns = {
        "event_id": np.arange(len(src)),
        "src_id": src,
        "dst_id": dst,
        "event_ts": pa.array(t * 10**9).cast(pa.timestamp("ns", tz="UTC")),
        "weight": (src / 10).astype(np.float32),
    }
    pq.write_table(pa.table(columns), folder / "db" / "events.parquet")
    for part, own in zip(("val", "test"), parts_of(events), strict=True):
        (folder / "negatives" / f"{part}_ns.pkl").write_bytes(
            pickle.dumps(negatives_of(own, events))
        )
