"""Features of pairs: their exact history in 24 columns, and a decoder that reads them."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log1p

import pytest
import torch

from helpers.made_plans import plan_of
from helpers.strategies import graph_events, skewed_events
from tgflow.graph import TemporalGraph
from tgflow.nn import LinkDecoder, PairFeatures
from tgflow.nn.decoder import SKIP_GAIN
from tgflow.plan import NegativeSampler

HOUR, DAY, WEEK = 3600.0, 86_400.0, 604_800.0


def columns(num: int, age: float | None) -> list[float]:
    if age is None:
        return [0.0] * 6
    return [1.0, log1p(num), log1p(age) / 16, *(exp(-age / s) for s in (HOUR, DAY, WEEK))]


def test_features_are_the_history_of_the_pair_in_seconds() -> None:
    events = graph_events((0, 1, 0), (1, 0, 500), (0, 1, 1000), (2, 1, 2000), (0, 1, 7000))
    graph = TemporalGraph.from_events(events, time_unit="ms")
    plan = plan_of(
        graph, batch_size=1, counts=PairFeatures.counts, replay=None,
        negatives=NegativeSampler("historical", 1),
    )  # fmt: skip
    batch = plan.batch(0, 4)
    assert (int(batch.negative_src), int(batch.negative_dst)) in [(1, 0), (2, 1)]
    event, negative = PairFeatures()(batch)
    expected = [*columns(2, 6.0), *columns(1, 6.5), *columns(3, 6.0), *columns(3, 5.0)]
    torch.testing.assert_close(event, torch.tensor(expected))
    if int(batch.negative_src) == 1:
        expected = [*columns(1, 6.5), *columns(2, 6.0), *columns(3, 6.0), *columns(1, 6.5)]
    else:
        expected = [*columns(1, 5.0), *columns(0, None), *columns(1, 5.0), *columns(3, 5.0)]
    torch.testing.assert_close(negative, torch.tensor(expected))


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_an_untrained_decoder_ranks_pairs_by_recency(unit: str) -> None:
    """The pair's latest event in either direction decides, then the destination's."""
    ticks = 1000 if unit == "ms" else 1
    past = (6, 3, 50), (0, 2, 100), (6, 5, 1000), (3, 0, 8000), (6, 4, 9000), (0, 1, 9990)
    events = graph_events(*((src, dst, t * ticks) for src, dst, t in (*past, (0, 9, 10_000))))
    graph = TemporalGraph.from_events(events, time_unit=unit)
    batch = plan_of(
        graph, batch_size=7, counts=PairFeatures.counts, negatives=NegativeSampler(num=99)
    ).batch(0, 0)
    skip = LinkDecoder(6, pair_features=True).pair_skip
    assert skip is not None
    with torch.no_grad():
        logits = SKIP_GAIN * skip(PairFeatures()(batch)).view(-1)
    by_dst = dict(zip(batch.negative_dst[-1].tolist(), logits[-99:].tolist(), strict=True))
    by_dst[9] = float(logits[6])
    assert sorted(by_dst, key=by_dst.__getitem__, reverse=True) == [1, 3, 2, 4, 0, 5, 9]
    assert by_dst[9] == 0.0  # nothing is known
    p = d = log1p(9900) / 16
    assert by_dst[2] == pytest.approx(6 * (1 - p) + 3 * (0.7 - d), rel=1e-5)


def test_without_counts_there_is_a_way_out() -> None:
    graph = TemporalGraph.from_events(skewed_events(30, 5))
    batch = replace(plan_of(graph).batch(0, 1), counts=())
    with pytest.raises(
        ValueError, match="pair features need 3 counts of the past, the batch has 0"
    ):
        LinkDecoder(6, pair_features=True)(torch.zeros(99, 6), batch)
