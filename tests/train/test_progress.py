"""Micro-batches do not depend on how a stream is split; means match recounting."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.devices import opened
from helpers.made_streams import made_events, pieces
from tgflow.graph import TemporalGraph
from tgflow.train.plans import MicroBatcher
from tgflow.train.progress import Timeline


@given(
    size=st.integers(0, 50),
    sizes=st.lists(st.integers(0, 17), min_size=1, max_size=4).filter(any),
    batch_size=st.integers(1, 12),
    waiting=st.integers(0, 50),
)
@pytest.mark.parametrize("device", ["cpu", "apart"])
def test_tasks_follow_their_events_and_cover_all(device, size, sizes, batch_size, waiting):
    events = made_events(size)
    graph = TemporalGraph("undirected", 2, device=opened(device))
    graph.append(events[: min(waiting, size)])
    feeder = MicroBatcher(graph, 0, 0, batch_size, updates=2)
    named = []
    for epoch, index in feeder.tasks(pieces(events[waiting:], *sizes)):
        named.append((epoch, index))
        stop = min((index + 1) * batch_size, size)
        assert graph.num_events >= stop
        if waiting < stop:
            assert graph.num_events <= stop + (7 * batch_size if device == "apart" else 0)
    num = -(-size // batch_size)
    assert named == [(epoch, index) for index in range(num) for epoch in range(3)]
    assert torch.equal(graph.log.read(0, size).src, events.src)
    assert torch.equal(graph.edge_x.gather(torch.arange(size)), events.x)
    assert len(feeder.arrivals) == num


@given(
    sizes=st.lists(st.integers(0, 40), max_size=5),
    batch_size=st.integers(1, 9),
    most=st.integers(1, 4),
)
def test_turns_contain_the_batches_each_input_completes(sizes, batch_size, most):
    """All ranks with the same input form the same turns without waiting for more input."""
    events, ends = made_events(sum(sizes)), torch.tensor([0, *sizes]).cumsum(0).tolist()
    feeder = MicroBatcher(TemporalGraph("undirected", 2), 0, 0, batch_size, updates=1)
    came, num = [], 0

    def stream():
        for start, stop in pairwise(ends):
            yield events[start:stop]
            came.append(stop)

    for turn in feeder.turns(stream(), most):
        size = len(turn) // 2
        assert 1 <= size <= most
        assert turn == [(epoch, num + n) for n in range(size) for epoch in range(2)]
        num += size
        is_last = num * batch_size > len(events) or len(came) == len(sizes)
        assert is_last or ends[len(came)] < num * batch_size <= ends[len(came) + 1]
    assert num == -(-len(events) // batch_size)


@given(
    batches=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 8)), min_size=1, max_size=60),
    share=st.floats(0, 1),
)
def test_timeline_means_match_recounting(batches, share):
    timeline, position, spans = Timeline(capacity=4), 100, []
    for size, value in batches:
        figures = {"ap": (value / 8, 1.0), "loss": (value / 8, float(size))}
        timeline.add(position, position + size, figures)
        spans.append((position, size, value / 8))
        position += size
    assert len(timeline.segments) <= 4
    since = timeline.tail_start(share)
    assert since in [start for start, _, _ in spans]
    if since != timeline.segments[-1].start:
        assert position - since <= share * (position - 100)
    for start in (None, since):
        tail = [span for span in spans if start is None or span[0] >= start]
        means = timeline.mean(start)
        assert means["ap"] == pytest.approx(sum(v for _, _, v in tail) / len(tail))
        total = sum(size for _, size, _ in tail)
        assert means["loss"] == pytest.approx(sum(size * v for _, size, v in tail) / total)


@given(
    batches=st.lists(
        st.tuples(st.integers(0, 5), st.lists(st.integers(1, 21), max_size=6)), min_size=1
    )
)
def test_mrr_of_a_sample_has_its_number_of_events_and_its_standard_error(batches):
    timeline, position, every = Timeline(capacity=4), 0, []
    for unranked, rank in batches:
        size = unranked + len(rank)
        ranks = torch.tensor(rank, dtype=torch.float64)
        figures = {"mrr": (float(ranks.reciprocal().mean()), float(len(rank)))} if rank else {}
        timeline.add(position, position + size, figures, float(ranks.pow(-2).sum()))
        position += size
        every += rank
    found = timeline.mean()
    num = len(every)
    if not num:
        assert "mrr" not in found
        return
    values = 1 / torch.tensor(every, dtype=torch.float64)
    assert found["mrr"] == pytest.approx(float(values.mean()))
    if num == position:
        assert found.keys() == {"mrr"}
        return
    assert found["mrr_events"] == num
    expected = float(values.var(correction=0)) / num * (1 - num / position)
    assert found["mrr_error"] ** 2 == pytest.approx(expected, abs=1e-9)
