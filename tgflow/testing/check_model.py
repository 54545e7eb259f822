"""Checks of a model against the contract of `TemporalModel`, for custom models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tgflow.graph import TemporalGraph
from tgflow.graph.batch import Batch
from tgflow.graph.events import EventBatch
from tgflow.graph.tables import FeatureTable
from tgflow.nn.model import TemporalModel, check_is_model
from tgflow.plan.negatives import NegativeSampler
from tgflow.plan.plan import Plan
from tgflow.plan.replay import ExperienceReplay
from tgflow.train.config import ContinualConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.inference import Inference
from tgflow.train.plans import make_plan

NUM_NODES = 12
_BATCH = 20


class ContractViolation(AssertionError):
    """Raised when a model breaks the contract of `TemporalModel`; names each failed check."""


def check_model(
    make: Callable[[], TemporalModel], *, checks: Sequence[str] | None = None
) -> list[str]:
    """Check a model against the contract of `TemporalModel`, on small generated streams.

    Takes about a second for a small model.

    Args:
        make: The model's class, or a function without arguments that returns a new model. It is
            called several times, each time with the same seed. Streams have features of the widths
            that the model reads.
        checks: Names of checks to run; None: all of `CHECKS`.

    Returns:
        The names of the checks that passed.

    Raises:
        ContractViolation: If a check fails; the message names every failed check.
        ValueError: If there is no such check.

    Example:
        >>> "future leak" in tg.check_model(tg.EdgeBank)
        True
    """
    names = list(CHECKS) if checks is None else list(checks)
    if unknown := [name for name in names if name not in CHECKS]:
        raise ValueError(f"there is no check {unknown[0]!r}; there are {', '.join(CHECKS)}")
    case, failures = _Case(make), []
    for name in names:
        try:
            CHECKS[name](case)
        except Exception as error:  # a model may fail in any way
            what = str(error) if isinstance(error, _Failed) else f"raised {error!r}"
            failures.append(f"{name}: {what}")
    if failures:
        lines = "\n".join(f"  * {each}" for each in failures)
        raise ContractViolation(f"{type(case.model()).__name__} breaks the contract:\n{lines}")
    return names


class _Failed(Exception):
    """Raised by a failed check."""


class _Case:
    """A model to check, and the streams and plans to check it with."""

    def __init__(self, make: Callable[[], TemporalModel]) -> None:
        self._make = make
        model = self.model()
        check_is_model(model)
        self.x_dim = 2 if model.edge_x_dim is None else model.edge_x_dim
        self.node_x_dim = model.node_x_dim or 0
        self.events = self.stream(60)

    def model(self) -> TemporalModel:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = self._make()
        return model.eval() if isinstance(model, torch.nn.Module) else model

    def stream(self, size: int) -> EventBatch:
        return made_events(size, num_nodes=NUM_NODES, x_dim=self.x_dim)

    def graph(self) -> TemporalGraph:
        generator = torch.Generator().manual_seed(1)
        node_x = torch.randn(NUM_NODES, self.node_x_dim, generator=generator)
        return TemporalGraph(
            "undirected",
            edge_x=FeatureTable(self.x_dim) if self.x_dim else None,
            node_x=FeatureTable.from_tensor(node_x) if self.node_x_dim else None,
        )

    def plan(self, events: EventBatch, *, batch_size: int = _BATCH, **options: Any) -> Plan:
        graph = self.graph()
        graph.append(events)
        return made_plan(self.model(), graph, batch_size=batch_size, **options)

    def scores(self, events: EventBatch, **options: Any) -> list[Tensor]:
        """Return a new model's scores of all batches of a stream, `[B, 1 + m]` each."""
        return scores_of(self.model(), batches_of(self.plan(events, **options)))

    def trained_on(self, events: EventBatch, until: int) -> TemporalModel:
        model = self.model()
        scores_of(model, list(batches_of(self.plan(events)))[: until // _BATCH])
        return model


def _shapes(case: _Case) -> None:
    found = case.scores(case.events)
    for batch, scores in zip(batches_of(case.plan(case.events)), found, strict=True):
        shape = tuple(scores.shape)
        _require(shape == (len(batch.eid), 3), f"got scores {shape} of 2 negatives")
    _require_finite(found, "a score is not finite")


def _future_leak(case: _Case) -> None:
    longer = case.stream(80)
    dst, x = longer.dst.clone(), None if longer.x is None else longer.x.clone()
    dst[60:] = 0
    if x is not None:
        x[60:] = 9.0
    later = replace(longer, dst=dst, x=x)
    expected = case.scores(longer)[:3]
    for other in (longer[:60], later):
        _require_equal(case.scores(other)[:3], expected, "events after a batch change its scores")


def _own_features(case: _Case) -> None:
    if case.events.x is None:
        return
    x = case.events.x.clone()
    x[59] += 5  # the last event, which no other event sees
    _require_equal(
        case.scores(replace(case.events, x=x)),
        case.scores(case.events),
        "the features of an event change its own score",
    )


def _simultaneous_events(case: _Case) -> None:
    dst = case.events.dst.clone()
    dst[58] = dst[0] if dst[58] != dst[0] else dst[1]  # events 57 to 59 have one time
    before, after = (
        case.scores(events)[2][[17, 19], 0]
        for events in (case.events, replace(case.events, dst=dst))
    )
    _require_close(after, before, "an event changes the score of another one of the same time")


def _batch_dependence(case: _Case) -> None:
    model = case.trained_on(case.events, 40)
    with torch.no_grad():
        together = model(case.plan(case.events).batch(0, 2)).positive
        for size in (1, 7):
            alone = model(case.plan(case.events, start=40, batch_size=size).batch(0, 0)).positive
            _require_close(
                alone, together[:size], "a score depends on the other events of the batch"
            )


def _negatives(case: _Case) -> None:
    model, plan = case.trained_on(case.events, 40), case.plan(case.events)
    with torch.no_grad():
        alone, beside = (model(plan.part(0, 2, slice(0, _BATCH), num)) for num in (0, 2))
    _require(alone.negative.shape == (_BATCH, 0), "no negatives have scores")
    _require_close(alone.positive, beside.positive, "the score of an event depends on negatives")


def _forward_changes_state(case: _Case) -> None:
    model = case.trained_on(case.events, 40)
    batch, before = case.plan(case.events).batch(0, 2), _state_of(model)
    with torch.no_grad():
        first, second = model(batch), model(batch)
    _require_same(_state_of(model), before, "forward changes the state")
    _require_equal(
        [second.positive, second.negative],
        [first.positive, first.negative],
        "two calls of forward give two results in evaluation mode",
    )
    model.messages(batch, first)
    _require_same(_state_of(model), before, "messages changes the state")


def _empty_batch(case: _Case) -> None:
    for num_negatives in (0, 2):
        model = case.trained_on(case.events, 40)
        nothing = case.plan(case.events).part(0, 2, slice(0, 0), num_negatives)
        before = _state_of(model)
        for training in (True, False):
            scores = model.train(training)(nothing)
            _require(scores.positive.shape == (0,), "no events have scores")
            _require(scores.negative.shape == (0, num_negatives), "no events have negatives")
            model.commit(nothing, scores)
        _require_same(_state_of(model), before, "a batch without events changes the state")


def _first_events(case: _Case) -> None:
    node = torch.tensor([4, 4, 4])
    x = torch.ones(3, case.x_dim) if case.x_dim else None
    events = EventBatch(torch.tensor([3, 4, 4]), node, torch.arange(3), x)
    what = "the first event of a node, or an event of a node with itself, has no finite score"
    for batch_size in (1, 3):
        _require_finite(case.scores(events, batch_size=batch_size), what)


def _large_times(case: _Case) -> None:
    events = replace(case.events, t=case.events.t * 10**16)  # centuries in nanoseconds
    _require_finite(case.scores(events), "times of centuries give scores that are not finite")


def _absolute_time(case: _Case) -> None:
    later = replace(case.events, t=case.events.t + 2**40)
    _require_equal(
        case.scores(later), case.scores(case.events), "a shift of all times changes scores"
    )


def _replay(case: _Case) -> None:
    model = case.model()
    if model.state is not None:
        model.state.keep_past(100)
    plan = case.plan(case.events, replay=ExperienceReplay(1.0, horizon=60))
    first: dict[int, Tensor] = {}
    batches = list(batches_of(plan))
    for batch, scores in zip(batches, scores_of(model, batches), strict=True):
        for row, eid in enumerate(batch.eid.tolist()):
            if row < batch.num_new:
                first[eid] = scores[row, 0]
            else:
                _require_close(
                    scores[row, 0], first[eid], "a replayed event has another score than before"
                )


def _resume(case: _Case) -> None:
    whole, first = (ContinualTrainer(case.model(), case.graph(), _CONFIG) for _ in range(2))
    whole.run([case.events], progress=False)
    first.run([case.events[:30]], progress=False)
    resumed = ContinualTrainer.from_checkpoint(case.model(), first.checkpoint())
    resumed.run([case.events[30:]], progress=False)
    expected, found = whole.checkpoint().sections, resumed.checkpoint().sections
    for part, tensors in expected.items():
        _require_same(
            found[part], tensors, f"a resumed run differs from an undisturbed one in {part}"
        )


def _embeddings(case: _Case) -> None:
    model = case.trained_on(case.events, 40)
    if type(model).embed is TemporalModel.embed:
        return
    graph, before = case.graph(), _state_of(model)
    graph.append(case.events[:40])
    engine, nodes = Inference(model, graph), torch.arange(graph.num_nodes)
    t = int(case.events.t[39]) + 1
    z = engine.embed(nodes, t)
    _require(z.dim() == 2 and bool(z.isfinite().all()), f"embed gives {z.shape}, or not finite")
    _require_close(engine.embed(nodes[:3], t), z[:3], "an embedding depends on the other nodes")
    _require_same(_state_of(model), before, "embed changes the state")


_CONFIG = ContinualConfig(batch_size=10, learning_rate=1e-2, mrr_negatives=2)

CHECKS: dict[str, Callable[[_Case], None]] = {
    "shapes": _shapes,
    "future leak": _future_leak,
    "own features": _own_features,
    "simultaneous events": _simultaneous_events,
    "batch dependence": _batch_dependence,
    "negatives": _negatives,
    "pure forward": _forward_changes_state,
    "empty batch": _empty_batch,
    "first events": _first_events,
    "large times": _large_times,
    "absolute time": _absolute_time,
    "replay": _replay,
    "resume": _resume,
    "embeddings": _embeddings,
}
"""The checks of `check_model` by name."""


def made_events(
    size: int, *, num_nodes: int = NUM_NODES, x_dim: int = 2, seed: int = 0
) -> EventBatch:
    """Return a stream whose sources return to few destinations, with three events at a time."""
    generator = torch.Generator().manual_seed(seed)
    half = num_nodes // 2
    src = torch.randint(half, (size,), generator=generator)
    dst = half + (src + torch.randint(2, (size,), generator=generator)) % half
    x = torch.randn(size, x_dim, generator=generator) if x_dim else None
    return EventBatch(src, dst, torch.arange(size) // 3 * 7, x)


def made_plan(
    model: TemporalModel,
    graph: TemporalGraph,
    *,
    batch_size: int = _BATCH,
    num_negatives: int = 2,
    visibility: Any = "event",
    slices: int = 1,
    **options: Any,
) -> Plan:
    """Return the plan of a graph's events, as a continual trainer makes it."""
    config = ContinualConfig(batch_size=batch_size, visibility=visibility, slices=slices)
    return make_plan(graph, model, config, NegativeSampler(random=num_negatives), seed=3, **options)


def batches_of(plan: Plan, epoch: int = 0) -> Iterator[Batch]:
    """Yield the batches of a plan in order."""
    return (plan.batch(epoch, index) for index in range(len(plan)))


@torch.no_grad()
def scores_of(model: TemporalModel, batches: Iterable[Batch]) -> list[Tensor]:
    """Score batches in order in evaluation mode, each from earlier events: `[B, 1 + m]` each."""
    model.eval()
    if model.state is not None:
        model.state.reset()
    found = []
    for batch in batches:
        scores = model(batch)
        found.append(torch.cat([scores.positive.unsqueeze(1), scores.negative], dim=1))
        model.commit(batch, scores)
    return found


def _state_of(model: TemporalModel) -> dict[str, Tensor]:
    return {} if model.state is None else model.state.state_dict()


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise _Failed(what)


def _require_finite(found: Iterable[Tensor], what: str) -> None:
    _require(all(bool(scores.isfinite().all()) for scores in found), what)


def _require_equal(found: Sequence[Tensor], expected: Sequence[Tensor], what: str) -> None:
    for one, two in zip(found, expected, strict=True):
        if not torch.equal(one, two):
            raise _Failed(f"{what} (by up to {float((one - two).abs().max()):.3g})")


def _require_close(found: Tensor, expected: Tensor, what: str) -> None:
    if not torch.allclose(found, expected, rtol=1e-5, atol=1e-5):
        raise _Failed(f"{what} (by up to {float((found - expected).abs().max()):.3g})")


def _require_same(found: dict[str, Tensor], expected: dict[str, Tensor], what: str) -> None:
    names = [name for name in expected if not torch.equal(found[name], expected[name])]
    _require(not names, f"{what}: {', '.join(names)}")
