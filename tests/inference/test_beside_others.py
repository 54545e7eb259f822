"""Concurrent queries during appends: isolated and consistent."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

import tgflow as tg
from helpers.made_models import X_DIM, made_events, made_model
from tgflow.tables import FeatureTable

STREAM = made_events(240)
NODES = torch.arange(12)


def graph_of(events):
    graph = tg.TemporalGraph(edge_x=FeatureTable(X_DIM))
    graph.append(events)
    return graph


def beside(work: Callable[[], None], *others: Callable[[], None]) -> None:
    """Run `work` while the others run repeatedly, at least once each; raise their errors."""
    done, errors = threading.Event(), []

    def repeated(other):
        try:
            other()
            while not done.is_set():
                other()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=repeated, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    try:
        work()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("name", ["tgat", "tgn", "tgn+pairs", "counts"])
def test_answers_as_of_a_position_do_not_change_during_appends(name):
    graph = graph_of(STREAM[:60])
    engine = tg.Inference(made_model(name), graph)
    expected = engine.score(NODES, NODES.flip(0), 150, as_of=50)

    def ask():
        assert torch.equal(engine.score(NODES, NODES.flip(0), 150, as_of=50), expected)

    def append():
        for start in range(60, 240, 6):
            graph.append(STREAM[start : start + 6])

    beside(append, ask, ask)
    assert graph.num_events == 240
