"""Concurrent queries during appends and training: isolated and consistent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
import torch

import tgflow as tg
from helpers.made_models import X_DIM, made_events, made_model
from tgflow.inference.engine import ReadWriteLock
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


def learned(name, *others):
    """Final state of a run under concurrent queries."""
    model, graph = made_model(name), tg.TemporalGraph(edge_x=FeatureTable(X_DIM))
    trainer = tg.ContinualTrainer(model, graph, tg.ContinualConfig(batch_size=20, seed=1))
    engine = tg.Inference(model, graph)
    trainer.changing = engine.changing
    stream = (STREAM[start : start + 20] for start in range(0, 240, 20))
    result = {}
    steps = trainer.steps(stream)
    next(steps)  # there are nodes to ask about

    def learn():
        for _ in steps:
            pass
        result.update(trainer.result())

    beside(learn, *(partial(other, engine) for other in others))
    state = {} if model.state is None else model.state.state_dict()
    parameters = {name: x.clone() for name, x in model.state_dict().items()}
    return result["prequential.ap"], state | parameters


@pytest.mark.parametrize("name", ["tgn", "tgat"])
def test_queries_do_not_change_a_run(name):
    def embed(engine):
        seen = torch.arange(engine.graph.num_nodes)
        assert engine.embed(seen, 10_000).isfinite().all()

    def rank(engine):
        assert engine.rank(torch.tensor([0]), 10_000).scores.isfinite().all()

    ap, parts = learned(name)
    asked_ap, asked = learned(name, embed, rank)
    assert asked_ap == ap
    assert asked.keys() == parts.keys()
    assert all(torch.equal(asked[part], parts[part]) for part in parts)


def test_lock_is_fair_in_request_order():
    lock, order, threads = ReadWriteLock(), [], []

    def take(name, exclusive):
        with lock.held(exclusive=exclusive):
            order.append(name)

    with lock.held(exclusive=False):
        for asked in (("trainer", True), ("asker", False)):
            threads.append(threading.Thread(target=take, args=asked))
            threads[-1].start()
            while len(lock._queue) < len(threads) and not order:
                time.sleep(0.001)
        assert order == [], "the asker could share, but the trainer came first"
    for thread in threads:
        thread.join()
    assert order == ["trainer", "asker"]
