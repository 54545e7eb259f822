"""Training through a cache: the same losses, bit for bit, as without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_streams import made_events, small_tgat, small_tgn

from tgflow.cache import CachedTable, cached
from tgflow.cache.policy import POLICIES, Policy
from tgflow.graph import TemporalGraph
from tgflow.tables import FeatureTable
from tgflow.train.continual import ContinualConfig, ContinualTrainer
from tgflow.train.observe import EpochRecord, Observer, StepRecord
from tgflow.train.offline import OfflineConfig, OfflineTrainer

EVENTS = made_events(400)
MODELS = {"tgn": lambda: small_tgn(history=0), "tgat": small_tgat}
PLACES = ("host", "disk")


class Losses(Observer):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_epoch(self, record: EpochRecord) -> None:
        self.seen.append((record.loss, record.val))

    def on_step(self, record: StepRecord) -> None:
        self.seen.append((record.loss, record.metrics))


def table_of(place: str, folder: Path) -> FeatureTable:
    return (
        FeatureTable(2, place="disk", path=folder / "x.rows")
        if place == "disk"
        else FeatureTable(2)
    )


def trained_offline(model: str, graph: TemporalGraph, num_threads: int = 1) -> list[Any]:
    config = OfflineConfig(
        batch_size=20, learning_rate=1e-2, epochs=2, mrr_negatives=3, num_threads=num_threads
    )
    losses = Losses()
    result = OfflineTrainer(MODELS[model](), graph, config, losses).fit()
    timeless = {
        name: value
        for name, value in result.items()
        if not any(word in name for word in ("seconds", "per_second", "overhead"))
    }
    return [*losses.seen, timeless]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("model", MODELS)
def test_offline_training_does_not_change_with_the_cache(
    model: str, place: str, tmp_path: Path
) -> None:
    expected = trained_offline(model, TemporalGraph.from_events(EVENTS))
    for policy in POLICIES:
        for num_threads in (0, 2):
            folder = tmp_path / f"{policy}-{num_threads}"
            folder.mkdir()
            graph, cache = graph_through(place, folder, policy)
            assert trained_offline(model, graph, num_threads) == expected
            assert policy == "static" or cache.counters.hits > 0
            cache.close()


def graph_through(place: str, folder: Path, policy: Policy) -> tuple[TemporalGraph, CachedTable]:
    cache = cached(table_of(place, folder), rows=50, policy=policy)
    graph = TemporalGraph(edge_x=cache)
    graph.append(EVENTS)
    return graph, cache


@pytest.mark.parametrize("place", PLACES)
def test_continual_training_does_not_change_with_the_cache(place: str, tmp_path: Path) -> None:
    def trained(graph: TemporalGraph) -> list[Any]:
        losses = Losses()
        config = ContinualConfig(batch_size=20, learning_rate=1e-2, mrr_negatives=3)
        stream = [EVENTS[start : start + 30] for start in range(0, 400, 30)]
        ContinualTrainer(small_tgn(), graph, config).run(stream, losses)
        return losses.seen

    expected = trained(TemporalGraph(edge_x_dim=2))
    for policy in POLICIES:
        if policy == "belady":
            continue  # it plans for what comes next, and nobody knows that of a stream
        folder = tmp_path / policy
        folder.mkdir()
        cache = cached(table_of(place, folder), rows=50, policy=policy)
        assert trained(TemporalGraph(edge_x=cache)) == expected
        cache.close()
