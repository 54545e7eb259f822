"""Concurrent queries during appends and training: isolated, consistent, without a trace."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

import tgflow as tg
from helpers.made_models import X_DIM, made_events, made_model
from helpers.made_streams import pieces
from tgflow.graph.tables import FeatureTable

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


def learner_of(name):
    config = tg.ContinualConfig(batch_size=10, learning_rate=1e-2, mrr_negatives=2)
    return tg.ContinualTrainer(made_model(name, dropout=0.2), graph_of(STREAM[:40]), config)


@pytest.mark.parametrize("name", ["tgat", "tgn"])
def test_queries_of_other_threads_do_not_change_what_is_learned(name):
    """Nor do checkpoints that they take."""
    alone, trainer = learner_of(name), learner_of(name)
    expected = list(alone.steps(pieces(STREAM[40:150], 30)))
    found, engines = [], [tg.Inference(trainer.model, trainer.graph) for _ in range(2)]

    def asked(engine):
        engine.score(NODES, NODES.flip(0), 150)
        engine.rank(NODES[:2], 150, k=3)

    beside(
        lambda: found.extend(trainer.steps(pieces(STREAM[40:150], 30))),
        *(partial(asked, engine) for engine in engines),
        lambda: engines[0].embed(NODES, 150),
        trainer.checkpoint,
    )
    assert [(r.loss, r.metrics) for r in found] == [(r.loss, r.metrics) for r in expected]
    sections = trainer.checkpoint().sections
    for part, tensors in alone.checkpoint().sections.items():
        for column, x in tensors.items():
            assert torch.equal(sections[part][column], x), (part, column)


def test_second_thread_that_takes_steps_is_refused():
    trainer = learner_of("tgn")
    steps = trainer.steps(pieces(STREAM[40:], 30))
    next(steps)
    for take in (trainer.run, lambda stream: next(trainer.steps(stream))):
        refused = pytest.raises(RuntimeError, match=r"two threads .* 'MainThread' is doing so")
        with ThreadPoolExecutor(1) as other, refused:
            other.submit(take, pieces(STREAM[40:], 30)).result()
    assert len(list(steps)) == 19
    assert trainer.position == trainer.graph.num_events == 240


def test_iterator_of_steps_ends_once_a_later_one_has_begun():
    trainer = learner_of("tgn")
    steps = trainer.steps(pieces(STREAM[40:140], 30))
    next(steps)
    while (stop := trainer.graph.num_events) < 90:  # four micro-batches ahead, by another thread
        time.sleep(0.001)
    assert len(list(trainer.steps([STREAM[stop:]]))) == 19
    with pytest.raises(RuntimeError, match="steps was called again"):
        next(steps)
    assert trainer.position == trainer.graph.num_events == 240
