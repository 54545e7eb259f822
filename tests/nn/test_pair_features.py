"""Features of pairs: their exact history in 14 columns, and a decoder that reads them."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log1p

import pytest
import torch
from torch.nn import functional as F

from helpers.made_plans import plan_of
from helpers.strategies import graph_events, skewed_events
from tgflow.graph import TemporalGraph
from tgflow.models import MODELS
from tgflow.nn import LinkDecoder, PairFeatures
from tgflow.nn.decoder import PAIR_GAIN
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
    expected = [*columns(2, 6.0), *columns(1, 6.5), log1p(3), log1p(5.0) / 16]
    torch.testing.assert_close(event, torch.tensor(expected))
    if int(batch.negative_src) == 1:
        expected = [*columns(1, 6.5), *columns(2, 6.0), log1p(1), log1p(6.5) / 16]
    else:
        expected = [*columns(1, 5.0), *columns(0, None), log1p(3), log1p(5.0) / 16]
    torch.testing.assert_close(negative, torch.tensor(expected))


def test_a_decoder_adds_the_features_before_the_nonlinearity() -> None:
    graph = TemporalGraph.from_events(skewed_events(100, 9))
    batch = plan_of(graph, counts=PairFeatures.counts, negatives=NegativeSampler(num=3)).batch(0, 5)
    decoder, z = LinkDecoder(6, pair_dim=PairFeatures.dim), torch.randn(len(batch.nodes) + 90, 6)
    scores = decoder(z, batch)
    src = torch.cat([batch.src_row, batch.negative_src_row.flatten()])
    dst = torch.cat([batch.dst_row, batch.negative_dst_row.flatten()])
    hidden = decoder.src_proj(z[src]) + decoder.dst_proj(z[dst])
    hidden = hidden + PAIR_GAIN * decoder.pair_proj(decoder.pair_features(batch))
    logits = decoder.out(F.relu(hidden)).squeeze(-1)
    torch.testing.assert_close(torch.cat([scores.positive, scores.negative.flatten()]), logits)


def test_without_counts_there_is_a_way_out() -> None:
    graph = TemporalGraph.from_events(skewed_events(30, 5))
    batch = replace(plan_of(graph).batch(0, 1), counts=())
    with pytest.raises(
        ValueError, match="pair features need 3 counts of the past, the batch has 0"
    ):
        LinkDecoder(6, pair_dim=PairFeatures.dim)(torch.zeros(99, 6), batch)
    with pytest.raises(ValueError, match=r"pair_dim must be 0 or .*, 14, got 7"):
        LinkDecoder(6, pair_dim=7)


@pytest.mark.parametrize("name", ["tgn", "tgat", "graphmixer", "jodie"])
def test_models_ask_for_what_their_decoder_reads(name: str) -> None:
    entry = MODELS[name]
    plain, with_pairs = (entry.model(entry.config(pair_features=on)) for on in (False, True))
    assert plain.counts == ()
    assert with_pairs.counts == PairFeatures.counts
    names = {name for name, _ in with_pairs.named_parameters()}
    assert names - {name for name, _ in plain.named_parameters()} == {"decoder.pair_proj.weight"}
