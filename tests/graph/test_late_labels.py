"""Late labels of a log, against scans of all entries."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.strategies import begin_by_scan, graph_events
from tgflow import TemporalGraph
from tgflow.checkpoint import Checkpoint
from tgflow.graph.events import NO_LABEL, LateLabels
from tgflow.graph.log import Added, EventLog, Horizon
from tgflow.train.trainer_state import graph_of, save_graph

LABELS = [0, 1, 7, NO_LABEL]


@st.composite
def labeled_streams(draw, least=1, most=12):
    """Times of events, and between them entries (event, label, time), often of the same events."""
    t, items = 0, []
    for _ in range(draw(st.integers(least, most))):
        t += draw(st.integers(0, 2))
        items.append(t)
        num = sum(isinstance(x, int) for x in items)
        events = st.integers(0, 3) | st.integers(max(0, num - 20), num)
        entry = st.tuples(events, st.sampled_from(LABELS), st.integers(t - 3, t + 4))
        late = draw(st.lists(entry, max_size=4))
        items.append([(eid, label, at) for eid, label, at in late if eid < num])
    return items


def late_of(rows):
    return LateLabels(*torch.tensor(rows, dtype=torch.int64).view(-1, 3).unbind(1))


def entries_of(items, since=lambda times, at: 0):
    """Return the times, and (event, label, time, written_at) of all entries but repeated ones."""
    times = [x for x in items if isinstance(x, int)]
    entries, at = [], 0
    for item in items:
        if isinstance(item, int):
            at += 1
            continue
        for eid, label, t in item:
            same = [entry for entry in entries if entry[0] == eid]
            is_new = not same or same[-1][1] != label
            if is_new and eid >= since(times[:at], at):
                entries.append((eid, label, t, at))
    return times, entries


def known_at_of(entry, times):
    later = [position for position, time in enumerate(times) if time > entry[2]]
    return max(later[0], entry[3]) if later else None


def seen_by_scan(eid, position, times, entries):
    """Return the late label of an event as seen from a position, and since where; None: none."""
    known = [(known_at_of(entry, times), entry[2], i) for i, entry in enumerate(entries)]
    mine = [key for key in known if entries[key[2]][0] == eid and key[0] is not None]
    seen = [key for key in mine if key[0] <= position]
    return (entries[max(seen)[2]][1], max(seen)[0]) if seen else None


def fed(items, log_of, looks):
    """Feed a stream; `looks` asks for labels on the way, which orders entries earlier."""
    for item in items:
        if isinstance(item, int):
            log_of.append(graph_events((0, 1, item)))
        else:
            for row in item:
                log_of.log.add_labels(late_of([row]))
                if looks:
                    log_of.log.late.find(torch.arange(4), 0)


@given(items=labeled_streams(), looks=st.booleans())
def test_labels_seen_from_positions_match_a_scan_of_all_entries(items, looks):
    graph = TemporalGraph()
    fed(items, graph, looks)
    (times, entries), late = entries_of(items), graph.log.late
    assert len(late) == len(entries)
    pairs = [(eid, q) for eid in range(-1, len(times)) for q in range(len(times))]
    eid, at = torch.tensor(pairs).unbind(1)
    own = torch.arange(len(pairs)) + 100
    expected = [seen_by_scan(*pair, times, entries) for pair in pairs]
    labels, place = late.labels(eid, at, own), late.find(eid, at)
    known = late.known(slice(0, int(late.num_known(torch.tensor(len(times) - 1)))))
    for row, (label, seen) in enumerate(zip(labels.tolist(), expected, strict=True)):
        since = int(known.known_at[place[row]]) if place[row] >= 0 else None
        assert (label, since) == (seen or (row + 100, None))
    keys = [(known_at_of(entry, times), entry[2], i) for i, entry in enumerate(entries)]
    order = sorted(key for key in keys if key[0] is not None and key[0] < len(times))
    rows = [(known_at, *entries[i][:3]) for known_at, _, i in order]
    columns = (known.known_at, known.eid, known.label, known.t)
    assert [*zip(*(column.tolist() for column in columns), strict=True)] == rows
    for i, (_, _, entry) in enumerate(order):
        earlier = [j for j in range(i) if entries[order[j][2]][0] == entries[entry][0]]
        assert known.before[i] == max(earlier, default=-1)
    for position in range(len(times) + 1):
        fresh = late.fresh(position)
        hidden = {i for at, _, i in keys if at is not None and at < position}
        seen = [i for _, _, i in sorted((entry[2], 0, i) for i, entry in enumerate(entries))
                if i not in hidden and entries[i][3] <= position]  # fmt: skip
        assert fresh.eid.tolist() == [entries[i][0] for i in seen]
        assert fresh.t.tolist() == [entries[i][2] for i in seen]


HORIZON, STEPS = Horizon(18), 6


def since_by_scan(times, at):
    return begin_by_scan(times, Horizon(18), at, STEPS)


@given(
    items=labeled_streams(8, 60), forgets=st.floats(0, 1), cut=st.integers(0, 60), rng=st.randoms()
)
def test_labels_within_a_horizon_match_a_scan_whatever_is_forgotten(items, forgets, cut, rng):
    """Also after a checkpoint, which has what is left."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tgflow.graph.log.STEPS", STEPS)
        patched.setattr(EventLog, "piece", 5)
        graph, whole = (TemporalGraph(horizon=HORIZON) for _ in range(2))
        for item in items:
            fed([item], graph, False)
            fed([item], whole, False)
            if rng.random() < forgets:
                graph.forget_outside(graph.num_events)
        times, entries = entries_of(items, since_by_scan)
        begin, position = graph.forgotten, max(0, len(times) - cut)
        if since_by_scan(times, position) >= begin:
            begin, writer = since_by_scan(times, position), Checkpoint({})
            save_graph(writer, graph, position)
            graph = resumed(writer, items)
        late, last, end = graph.log.late, whole.log.late, len(times)
        assert len(late) == len(entries)
        late.forget(begin := max(begin, since_by_scan(times, end - 1)))
        pairs = [(eid, end - 1) for eid in range(begin, end)]
        eid, at = torch.tensor(pairs).unbind(1)
        seen = [e for e in entries if (at_ := known_at_of(e, times)) is None
                or e[0] >= since_by_scan(times[:at_], at_)]  # fmt: skip
        expected = [seen_by_scan(*pair, times, seen) for pair in pairs]
        found = late.labels(eid, at, torch.full_like(eid, 100)).tolist()
        assert found == [100 if each is None else each[0] for each in expected]
        assert torch.equal(late.find(eid, at), last.find(eid, at))
        assert torch.equal(late.num_known(at), last.num_known(at))
        held = late.read(late.first, len(late))["written_at"].tolist()
        assert held == [at for *_, at in entries][late.first :]


def resumed(checkpoint, items):
    """Return the graph of a checkpoint with the rest of a stream."""
    graph, at = graph_of(checkpoint), 0
    position = graph.num_events
    for item in items:
        at += isinstance(item, int)
        if at > position or (at == position and not isinstance(item, int)):
            fed([item], graph, False)
    return graph


def test_adding_counts_and_refuses_unknown_events():
    graph = TemporalGraph.from_events(graph_events((0, 1, 5), (0, 1, 6)))
    rows = [(1, 3, 6), (0, 1, 6), (0, 1, 8), (0, 2, 7)]
    assert graph.log.add_labels(late_of(rows)) == Added(2, 1, 1)
    assert graph.log.add_labels(late_of(rows[:1])) == Added(0, 0, 1)
    with pytest.raises(IndexError, match="a label is of event 2; the log has 2 events"):
        graph.log.add_labels(late_of([(0, 9, 6), (2, 1, 6)]))
    assert len(graph.log.late) == 3
    with pytest.raises(ValueError, match=r"t must be int64 \[1\], got torch.float32"):
        LateLabels([0], [1], torch.zeros(1))
