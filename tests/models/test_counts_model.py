"""Shares of the count model, against the paper's equations on a scan of earlier events."""

import math

import pytest
import torch

from helpers.made_models import batches_of, made_events, made_model, plan_for
from tgflow import EventBatch, TemporalGraph
from tgflow.nn.groups import numbers_of, recency_weights
from tgflow.plan import CountHistory

STREAM = made_events(24)
TAU = 50.0
SIZE = 7


def decayed(times, t):
    return sum(math.exp(-(t - at) / TAU) for at in times)


class Past:
    """Inputs of the equations from the events before a time."""

    def __init__(self, events, t, depth):
        rows = zip(events.src.tolist(), events.dst.tolist(), events.t.tolist(), strict=True)
        self.t, self.depth = t, depth
        self.events = [row for row in rows if row[2] < t]
        self.last, self.following = {}, []
        for u, v, at in self.events:
            before = self.last.setdefault(u, [])
            self.following += [(before[-1], v, at)] if before else []
            before.append(v)

    def c(self, events, *wanted):
        pairs = [(x, y) for x, y in wanted]
        return decayed(
            [at for u, v, at in events if any(x in (u, None) and y in (v, None) for x, y in pairs)],
            self.t,
        )


def shares(past, u, z, scale):
    c, events = past.c, past.events
    share = (c(events, (None, z)) + 1) / (c(events, (None, None)) + SIZE)
    times = [at for a, b, at in events if (a, b) == (u, z)]
    found = [math.log(share), math.log((c(events, (u, z)) + share) / (c(events, (u, None)) + 1))]
    last = past.last.get(u, [])[::-1][: past.depth]
    for k in range(past.depth):
        if k >= len(last):
            found.append(0.0)
            continue
        row = c(past.following, (last[k], None))
        found.append(math.log((c(past.following, (last[k], z)) + share) / (row + 1)))
    return [*found, math.exp(-(past.t - max(times)) / scale) if times else 0.0]


PAPER = {"groups": ["shares"], "hidden": (), "gain": 1.0}


def test_shares_match_the_equations_at_every_prefix():
    model = made_model(
        "counts", depth=3, half_life=TAU * math.log(2), num_destinations=SIZE, scale=30.0, **PAPER
    )
    for batch in batches_of(plan_for(model, STREAM, counts_dtype=torch.float64)):
        found = batch.counts
        for row in range(len(batch)):
            past, u = Past(STREAM, int(batch.t[row]), 3), int(batch.src[row])
            for column, z in enumerate([int(batch.dst[row]), *batch.negative_dst[row].tolist()]):
                expected = shares(past, u, z, 30.0)
                assert found[row, column].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_table_of_the_paper_is_reproduced():
    """Source 0 visits a, b, c, b, c, and another source d; what is next, of a, b, c, d?"""
    src, dst = torch.tensor([0, 0, 0, 0, 0, 9]), torch.tensor([1, 2, 3, 2, 3, 4])
    graph = TemporalGraph.from_events(EventBatch(src, dst, torch.arange(6)))
    model = made_model("counts", depth=2, half_life=1e15, num_destinations=4, **PAPER)
    asked = EventBatch(torch.tensor([0]), torch.tensor([1]), torch.tensor([6]))
    history, others = CountHistory(graph, model.counts), torch.tensor([[2, 3, 4]])
    found = history.answer(asked, None, others, limit=torch.tensor([6]), stop=6)
    share, *rows = found[0, :, :4].exp().T.tolist()
    assert share == pytest.approx([2 / 10, 3 / 10, 3 / 10, 2 / 10])
    assert [[round(x, 2) for x in row] for row in rows] == [
        [0.20, 0.38, 0.38, 0.03],
        [0.10, 0.65, 0.15, 0.10],
        [0.07, 0.10, 0.77, 0.07],
    ]


def test_number_of_parameters_matches_the_paper():
    assert sum(p.numel() for p in made_model("counts", **PAPER).parameters()) == 9


def test_untrained_model_ranks_pairs_by_recency():
    model = made_model("counts")
    for batch in batches_of(plan_for(model, STREAM, counts_dtype=torch.float64)):
        x = batch.counts.float()
        first = numbers_of(("recency",))
        weights = torch.tensor(recency_weights(["recency"]))
        scores = model(batch)
        expected = x[..., : len(first)] @ weights
        found = torch.cat([scores.positive.unsqueeze(1), scores.negative], 1)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)  # float32 sums of 100


def test_no_groups_are_refused():
    with pytest.raises(ValueError, match="groups must name at least one group"):
        made_model("counts", groups=())
