"""Features of the count model, against the paper's equations on a scan of earlier events."""

import math

import pytest
import torch

from helpers.made_models import batches_of, made_events, made_model, plan_for
from tgflow.events import EventBatch
from tgflow.graph import TemporalGraph
from tgflow.plan.counts import CountHistory

STREAM = made_events(24)
EVERYTHING = {"base": True, "window": True, "recency": True, "scales": True, "ages": True}
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
        self.last, self.following, self.window, self.new = {}, [], [], []
        for u, v, at in self.events:
            before = self.last.setdefault(u, [])
            if before and (before[-1], v) not in [pair[:2] for pair in self.following]:
                self.new.append(v)
            self.following += [(before[-1], v, at)] if before else []
            self.window += [(p, v, at) for p in before[-depth:]]
            before.append(v)

    def c(self, events, *wanted):
        pairs = [(x, y) for x, y in wanted]
        return decayed(
            [at for u, v, at in events if any(x in (u, None) and y in (v, None) for x, y in pairs)],
            self.t,
        )


def features(past, u, z, *, base, window, recency, scales, both, ages, scale):
    c, events = past.c, past.events
    p = (c(events, (None, z)) + 1) / (c(events, (None, None)) + SIZE)
    share = (past.new.count(z) + 1) / (len(past.new) + SIZE) if base else p
    pair = [(u, z)] + [(z, u)] * both
    times = [at for a, b, at in events if (a, b) in pair]
    met = sum(decayed([at for a, b, at in events if (a, b) == each], past.t) for each in pair)
    known = c(events, (u, None)) + both * c(events, (None, u))
    found = [math.log(p), math.log((met + share) / (known + 1))]
    last = past.last.get(u, [])[::-1][: past.depth]
    for k in range(past.depth):
        if k >= len(last):
            found.append(0.0)
            continue
        row = c(past.following, (last[k], None))
        found.append(math.log((c(past.following, (last[k], z)) + share) / (row + 1)))
    if window:
        after = sum(c(past.window, (v, z)) for v in last)
        row = sum(c(past.window, (v, None)) for v in last)
        found.append(math.log((after + share) / (row + 1)))
    seen = [at for _, b, at in events if b == z]
    for s in (scale, scale / 10, scale * 10)[: 3 if scales else 1]:
        found.append(math.exp(-(past.t - max(times)) / s) if times else 0.0)
    if recency:
        found.append(math.exp(-(past.t - max(seen)) / scale) if seen else 0.0)
    if ages:
        found += [math.log1p(past.t - max(x)) / 16 if x else 2.0 for x in (times, seen)]
    return found


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("extras", [{}, EVERYTHING])
def test_features_match_the_equations_at_every_prefix(extras, both):
    settings = dict.fromkeys(EVERYTHING, False) | extras | {"both": both, "scale": 30.0}
    model = made_model(
        "counts", depth=3, half_life=TAU * math.log(2), num_destinations=SIZE, **settings
    )
    for batch in batches_of(plan_for(model, STREAM)):
        found = batch.counts
        for row in range(len(batch)):
            past, u = Past(STREAM, int(batch.t[row]), 3), int(batch.src[row])
            for column, z in enumerate([int(batch.dst[row]), *batch.negative_dst[row].tolist()]):
                expected = features(past, u, z, **settings)
                assert found[row, column].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("base", [False, True])
def test_table_of_the_paper_is_reproduced(base):
    """Source 0 visits a, b, c, b, c, and another source d; what is next, of a, b, c, d?"""
    src, dst = torch.tensor([0, 0, 0, 0, 0, 9]), torch.tensor([1, 2, 3, 2, 3, 4])
    graph = TemporalGraph.from_events(EventBatch(src, dst, torch.arange(6)))
    model = made_model("counts", depth=2, half_life=1e15, num_destinations=4, base=base)
    asked = EventBatch(torch.tensor([0]), torch.tensor([1]), torch.tensor([6]))
    history, others = CountHistory(graph, model.counts), torch.tensor([[2, 3, 4]])
    found = history.answer(asked, None, others, limit=torch.tensor([6]), stop=6)
    found = found[0, :, :4].exp().T.tolist()
    share, visits, after_c, after_b = found
    assert share == pytest.approx([2 / 10, 3 / 10, 3 / 10, 2 / 10])
    if base:  # the shares of continuations are used without counts
        continued = [after_c[0] * 2, after_b[1] * 3, after_c[2] * 2, after_c[3] * 2]
        assert continued == pytest.approx([1 / 7, 3 / 7, 2 / 7, 1 / 7])
        assert [round(x, 2) for x in continued] == [0.14, 0.43, 0.29, 0.14]
        return
    assert [[round(x, 2) for x in row] for row in (visits, after_c, after_b)] == [
        [0.20, 0.38, 0.38, 0.03],
        [0.10, 0.65, 0.15, 0.10],
        [0.07, 0.10, 0.77, 0.07],
    ]


@pytest.mark.parametrize(
    ("settings", "num"),
    [({}, 9), ({"window": True, "recency": True, "scales": True}, 13), ({"both": True}, 9)],
)
def test_number_of_parameters_matches_the_paper(settings, num):
    assert sum(p.numel() for p in made_model("counts", **settings).parameters()) == num
