"""Explanations: exact contributions, effects as of a log without the event, no future events."""

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tgflow as tg
from helpers import made_streams
from helpers.devices import for_each_device, opened, place_of
from helpers.effort import cases
from helpers.made_models import X_DIM, batches_of, made_events, made_model, plan_for
from tgflow.graph import Horizon
from tgflow.graph.counts import Count
from tgflow.graph.tables import FeatureTable
from tgflow.models import MODELS
from tgflow.nn.groups import numbers_of
from tgflow.serve.explain import Explainer, LabelQuestion, logistic, shapley
from tgflow.train.config import ContinualConfig
from tgflow.train.step import TrainStep
from tgflow.train.tasks import LabelTask, TaskConfig

STREAM = made_events(60)
NOW = int(STREAM.t[-1]) + 1
PAIR = int(STREAM.src[-1]), int(STREAM.dst[-1])
for_each_model = pytest.mark.parametrize("name", [*MODELS])
STATELESS = ["tgat+pairs", "graphmixer+pairs", "craft", "dygformer", "edgebank-tw", "own"]
"""Models whose scores are functions of the neighbors and of lists of single nodes and pairs."""


def recounted_model(name):
    """Return a small model whose counts are all counted again without an event."""
    if name.endswith("+pairs"):
        return made_model(name, pair_features=("recency", "frequency", "destination"))
    return made_model(name, **({"groups": ("recency", "frequency")} if name == "counts" else {}))


class LinearPairs(tg.TemporalModel):
    """A linear score of the pair features."""

    fanouts, strategy, reads_nodes = (), "recent", False
    counts = numbers_of(("recency",))

    def __init__(self):
        super().__init__()
        weight = torch.randn(len(self.counts), 1, generator=torch.Generator().manual_seed(0))
        self.weight = torch.nn.Parameter(weight.double())

    def forward(self, batch):
        logits = (batch.counts @ self.weight).squeeze(-1)
        return tg.Scores(logits[:, 0], logits[:, 1:])


class ManyCounts(tg.TemporalModel):
    """The mean of numbers that depend on the events of the two nodes alone."""

    fanouts, strategy, reads_nodes = (), "recent", False
    counts = (
        *(Count(of, half_life=30.0).decayed for of in ("pair", "reverse", "src", "dst_as_src")),
        *(Count(of).num for of in ("src_new", "src_switch", "dst_new", "own_transition")),
        *(Count(of).age for of in ("src_as_dst", "dst", "src_new")),
        *(Count("pair").rank, Count("pair").since, Count("pair", 1, 3.0, "source").decayed),
    )

    def forward(self, batch):
        logits = batch.counts.mean(-1)
        return tg.Scores(logits[:, 0], logits[:, 1:])


def own_model(name):
    return ManyCounts() if name == "own" else recounted_model(name)


def graph_of(events, horizon=None):
    graph = tg.TemporalGraph(edge_x=FeatureTable(X_DIM), horizon=horizon)
    graph.append(events)
    return graph


def recent(model, graph):
    """Return an engine that samples the latest neighbors."""
    return tg.Inference(model, graph, strategy="recent" if model.fanouts else None)


def trained(name, events=STREAM):
    """Return an engine of a graph and of a model that has stored its events."""
    model = made_model(name)
    learner = TrainStep(model, ContinualConfig())
    for batch in batches_of(plan_for(model, events)):
        learner.commit(batch, learner.predict(batch))
    return recent(model, graph_of(events))


def without(events, *eids):
    """Return a graph without some events, but of as many nodes, by a later event."""
    kept = [i for i in range(len(events)) if i not in eids]
    graph, last = graph_of(events[torch.tensor(kept, dtype=torch.int64)]), events[-1:]
    node = torch.maximum(events.src, events.dst).max().view(1)
    graph.append(tg.EventBatch(node, node, last.t + 10**6, last.x, relation=last.relation))
    return graph


def score(engine, src, dst, t):
    return engine.score(torch.tensor([src]), torch.tensor([dst]), t).item()


@for_each_model
def test_contributions_add_up_to_the_logit(name):
    engine = trained(name)
    for src, dst in (PAIR, (0, 11), (3, 3)):
        found = Explainer(engine).explain(src, dst, NOW)
        assert found.logit == pytest.approx(score(engine, src, dst, NOW), abs=1e-5)  # float32
        total = found.baseline + sum(group.logit for group in found.groups)
        largest = max(abs(group.logit) for group in found.groups)  # 2^64 in an order by recency
        assert total == pytest.approx(found.logit, rel=1e-6, abs=1e-6 + 1e-15 * largest)
        assert found.probability == pytest.approx(float(logistic(np.array(found.logit))))
        assert found.position == len(STREAM)
        drops = [event.drop for event in found.events]
        assert drops == sorted(drops, reverse=True)


@pytest.mark.parametrize("horizon", [None, Horizon(events=16)], ids=str)
def test_contributions_of_a_linear_score_are_weighted_differences(horizon):
    engine = tg.Inference(LinearPairs(), graph_of(STREAM, horizon))
    src, dst = PAIR
    found = Explainer(engine).explain(src, dst, NOW)
    plan = tg.Plan.for_model(engine.model, engine.graph, batch_size=1)
    ends = torch.tensor([src, 50]), torch.tensor([[dst], [51]])
    roots = plan.draws.ask(*ends, torch.tensor([NOW, NOW]), torch.tensor([60, 60]))
    x, x0 = roots.counts[:, 0]
    parts = engine.model.weight[:, 0] * (x - x0)
    expected = {"pair": parts[:18].sum().item(), "destination": parts[18:].sum().item()}
    assert {each.name: each.logit for each in found.groups} == pytest.approx(expected, abs=1e-9)
    assert all(each.text.endswith("1 s before") for each in found.groups)


def worths(num):
    return st.lists(st.floats(-9, 9), min_size=2**num, max_size=2**num)


@given(st.integers(0, 4).flatmap(worths))
def test_shapley_values_are_mean_gains_over_all_orders(values):
    num = len(values).bit_length() - 1
    expected = np.zeros(num)
    for order in permutations(range(num)):
        subset = 0
        for player in order:
            expected[player] += values[subset | 1 << player] - values[subset]
            subset |= 1 << player
    found = shapley(np.array(values))
    np.testing.assert_allclose(
        found, expected / math.factorial(num), atol=1e-12
    )  # rounding of sums


@pytest.mark.parametrize("name", STATELESS)
def test_effect_of_an_event_is_that_of_a_log_without_it(name):
    engine = recent(own_model(name), graph_of(STREAM))
    for src, dst in (PAIR, (0, 11), (4, 4)):
        found = Explainer(engine).explain(src, dst, NOW)
        assert found.events or (src, dst) != PAIR
        for event in found.events:
            other = recent(engine.model, without(STREAM, event.eid))
            expected = found.logit - score(other, src, dst, NOW)
            assert event.drop == pytest.approx(expected, abs=1e-5)  # float32
            there = STREAM[event.eid : event.eid + 1]
            assert (event.src, event.dst, event.t) == (int(there.src), int(there.dst), int(there.t))


class RelatedCounts(ManyCounts):
    """The mean of numbers of events with the relation of the scored event."""

    counts = (
        *(Count(of, half_life=30.0).decayed for of in ("pair_relation", "dst_relation")),
        *(Count("src_relation").age, Count("dst").num),
    )


def test_explanation_of_a_relation_considers_its_events():
    relation = torch.arange(len(STREAM)) % 3
    events = replace(STREAM, relation=relation)
    model, drops = RelatedCounts(), []
    engine = recent(model, graph_of(events))
    for asked in range(3):
        found = Explainer(engine).explain(*PAIR, NOW, relation=asked)
        total = found.baseline + sum(group.logit for group in found.groups)
        assert total == pytest.approx(found.logit, abs=1e-6)
        for event in found.events:
            other = recent(model, without(events, event.eid))
            asking = torch.tensor([PAIR[0]]), torch.tensor([PAIR[1]]), NOW
            expected = found.logit - other.score(*asking, relation=asked).item()
            assert event.drop == pytest.approx(expected, abs=1e-5)
        drops.append({event.eid: event.drop for event in found.events})
    assert drops[0] != drops[1]
    with pytest.raises(ValueError, match="give the relation of each pair"):
        Explainer(engine).explain(*PAIR, NOW)


def test_counts_that_decay_by_events_lose_the_weight_of_an_event():
    engine = recent(made_model("poptrack", decay=0.9), graph_of(STREAM))
    found = Explainer(engine).explain(*PAIR, NOW)
    half_life = 200 * math.log(2) / -math.log(0.9)
    for event in found.events:
        assert event.drop == pytest.approx(0.5 ** ((60 - event.eid) / half_life), rel=1e-9)


def test_only_the_latest_events_are_counted_again(monkeypatch):
    engine = recent(ManyCounts(), graph_of(STREAM))
    expected = Explainer(engine).explain(*PAIR, NOW)
    monkeypatch.setattr("tgflow.serve.explain._MAX_RECOUNTED", 10)
    found = Explainer(engine).explain(*PAIR, NOW)
    assert (found.logit, found.groups) == (expected.logit, expected.groups)
    drops = {event.eid: event.drop for event in found.events}
    eids = sorted(drops)[-10:]
    assert any(drops[eid] for eid in eids)
    assert not any(drop for eid, drop in drops.items() if eid not in eids)


@pytest.mark.parametrize("name", ["graphmixer+pairs", "edgebank"])
def test_first_events_that_halve_the_probability_do_so_in_a_log_without_them(name):
    engine = recent(recounted_model(name), graph_of(STREAM))
    # its own scale, as the score of a pair that was met once is 1
    probabilities = (lambda x: x) if name == "edgebank" else logistic
    found = Explainer(engine).explain(*PAIR, NOW, probabilities=probabilities, num_events=60)
    eids = [event.eid for event in found.events]
    left = []
    for num in range(1, len(eids) + 1):
        graph = without(STREAM, *eids[:num])
        value = score(recent(engine.model, graph), *PAIR, NOW)
        left.append(float(probabilities(np.array(value))))
    halved = [i + 1 for i, each in enumerate(left) if each <= found.probability / 2]
    assert found.num_to_halve == (halved[0] if halved else None)
    assert found.probability_left == pytest.approx(left[-1], abs=1e-5)
    if name == "edgebank":
        assert found.num_to_halve == int(((STREAM.src == PAIR[0]) & (STREAM.dst == PAIR[1])).sum())


@pytest.mark.parametrize("name", cases([*MODELS], ["tgn+pairs", "tgat+pairs", "counts"]))
def test_later_events_do_not_change_an_explanation_of_the_past(name):
    engine = trained(name, STREAM[:40])
    at = int(STREAM.t[39]) + 1
    expected = Explainer(engine).explain(*PAIR, at)
    later = STREAM[40:]
    engine.graph.append(tg.EventBatch(later.src, later.dst, later.t + 1, later.x))
    assert Explainer(engine).explain(*PAIR, at) == expected
    assert Explainer(engine).explain(*PAIR, at + 500, as_of=40).events == (
        Explainer(recent(engine.model, graph_of(STREAM[:40]))).explain(*PAIR, at + 500).events
    )


def test_memory_that_does_not_reach_back_is_refused():
    engine = trained("tgn")
    with pytest.raises(ValueError, match="no history is kept; ask about a later time"):
        Explainer(engine).explain(*PAIR, int(STREAM.t[30]))
    engine.model.state.keep_past(20)
    with pytest.raises(ValueError, match="memory reaches back 20 events, to position 40"):
        Explainer(engine).explain(*PAIR, int(STREAM.t[30]))


@for_each_model
def test_pair_without_history_is_explained(name):
    graph = graph_of(STREAM)
    engine = recent(made_model(name), graph)
    found = Explainer(engine).explain(*PAIR, 0)
    assert (found.position, found.events, found.num_to_halve) == (0, (), None)
    assert found.logit == pytest.approx(found.baseline, abs=1e-5)
    for group in found.groups:
        assert group.events == ()
        assert group.logit == pytest.approx(0.0, abs=1e-5)
    assert Explainer(engine).explain(*PAIR, NOW, num_events=0).logit is not None


def test_invalid_arguments_are_refused():
    engine = recent(made_model("tgat"), graph_of(STREAM))
    explain = Explainer(engine).explain
    for arguments, options, error, message in (
        ((0, 99, NOW), {}, IndexError, "dst has node 99"),
        ((0, 1, 2**63), {}, ValueError, "t must be a tick of 64 bits"),
        ((0, 1, NOW), {"as_of": 61}, ValueError, "as_of must be log positions from 0 to 60"),
        ((0, 1, NOW), {"num_events": -1}, ValueError, "num_events must be at least 0, got -1"),
    ):
        with pytest.raises(error, match=message):
            explain(*arguments, **options)
    with pytest.raises(ValueError, match="can be left out of fan-outs that are numbers"):
        Explainer(tg.Inference(engine.model, engine.graph, "all")).explain(0, 1, NOW)


def test_ages_are_in_the_unit_of_the_graph():
    for unit, age in (("tick", "1 tick"), ("h", "1 h")):
        graph = tg.TemporalGraph(time_unit=unit)
        graph.append(tg.EventBatch(STREAM.src, STREAM.dst, STREAM.t))
        [group] = Explainer(tg.Inference(made_model("edgebank"), graph)).explain(*PAIR, NOW).groups
        assert group.text.endswith(f"the last one {age} before")


@for_each_device
def test_explanation_is_the_same_on_every_device(device):
    engines = []
    for each in (device, "cpu"):
        graph = tg.TemporalGraph(edge_x=FeatureTable(X_DIM), device=opened(each))
        graph.append(STREAM)
        engines.append(recent(made_model("tgat+pairs").to(place_of(each)), graph))
    found, expected = (Explainer(engine).explain(*PAIR, NOW) for engine in engines)
    assert found.logit == pytest.approx(expected.logit, abs=1e-4)  # float32
    drops = [{event.eid: event.drop for event in each.events} for each in (found, expected)]
    assert drops[0] == pytest.approx(drops[1], abs=1e-4)


def test_explanation_is_serializable_and_shown_on_one_line():
    engine = recent(made_model("tgat+pairs"), graph_of(STREAM))
    found = Explainer(engine).explain(*PAIR, NOW)
    as_dict = found.to_dict()
    assert as_dict["groups"][0]["name"] == found.groups[0].name
    assert as_dict["events"][0]["eid"] == found.events[0].eid
    assert "\n" not in repr(found)


LABELED = replace(STREAM, label=(2 * STREAM.src + torch.arange(len(STREAM))) % 3)
ASKED_X = torch.tensor([[2.0, -0.5]])


TWO = replace(LABELED, label=LABELED.label.clamp(max=1))


def labeled(name, num_classes, events=LABELED, reads_x=True):
    """Return an engine of a model with a random label decoder, and the labels."""
    task = LabelTask(TaskConfig(kind="edge", target="is_odd", classes=num_classes))
    engine = trained(name, events)
    made_streams.seeded(lambda: task.add_decoder(engine.model, X_DIM if reads_x else 0))
    made_streams.seeded(lambda: torch.nn.init.normal_(engine.model.label_decoder.out.weight))
    return engine, task.labels_of(engine.graph)


def label_logits(engine, labels, src, dst, t, x=ASKED_X):
    """Return the logits of the classes of an event."""
    ends = torch.tensor([src]), torch.tensor([dst])
    return engine.score_events(*ends, t, x, labels)[1][0].double()


@pytest.mark.parametrize("name", ["tgn", "jodie", "graphmixer", "tgat"])
@pytest.mark.parametrize("num_classes", [2, 3])
def test_contributions_to_a_label_add_up_to_its_logit(name, num_classes):
    events = TWO if num_classes == 2 else LABELED
    engine, labels = labeled(name, num_classes, events)
    asked = LabelQuestion(labels, ASKED_X, [("amount", 1, "2"), ("hour", 1, "-0.5")])
    for src, dst in (PAIR, (0, 12), (12, 13)):
        found = Explainer(engine).explain(src, dst, NOW, of=asked)
        total = found.baseline + sum(group.logit for group in found.groups)
        assert total == pytest.approx(found.logit, abs=1e-6)
        share = label_logits(engine, labels, src, dst, NOW).softmax(0)
        code = 1 if num_classes == 2 else int(share.argmax())
        assert found.probability == pytest.approx(float(share[code]), abs=1e-5)  # float32
        assert found.of == "is_odd"
        assert found.label == (1 if num_classes == 2 else [*labels.history.codes][code])
        names = {group.name for group in found.groups}
        assert {"amount", "hour", "source labels", "neighborhood"} <= names
        assert ("memory" in names) == (engine.model.state is not None)
        for record, ends, node in zip(
            found.history, (LABELED.src, LABELED.dst), (src, dst), strict=True
        ):
            eids = (ends == node).nonzero().squeeze(1)
            assert record.num_known == len(eids)
            assert [each.eid for each in record.latest] == eids.tolist()[::-1][:8]
            own = events.label[eids]
            kinds = own > 0 if num_classes == 2 else own == found.label
            assert record.num_positive == int(kinds.sum())
    other = next(label for label in labels.history.codes or (0,) if label != found.label)
    if num_classes == 3:
        again = Explainer(engine).explain(*PAIR, NOW, of=asked._replace(label=other))
        share = label_logits(engine, labels, *PAIR, NOW).softmax(0)
        assert again.probability == pytest.approx(
            float(share[labels.history.codes[other]]), abs=1e-5
        )
    else:
        with pytest.raises(ValueError, match="of two labels that of class 1 is explained"):
            Explainer(engine).explain(*PAIR, NOW, of=asked._replace(label=0))


def test_effects_on_a_label_are_those_of_logs_without_the_event():
    engine, labels = labeled("tgat", 2, TWO)
    found = Explainer(engine).explain(*PAIR, NOW, of=LabelQuestion(labels, ASKED_X))
    assert {group.name for group in found.groups} >= {"features"}
    assert len(found.events) > 3
    for event in found.events[:6]:
        graph = tg.TemporalGraph(edge_x=FeatureTable(X_DIM))
        kept = [i for i in range(len(LABELED)) if i != event.eid]
        graph.append(TWO[torch.tensor(kept)])
        other = labels.task.labels_of(graph)
        logits = label_logits(recent(engine.model, graph), other, *PAIR, NOW)
        assert event.drop == pytest.approx(found.logit - float(logits[1] - logits[0]), abs=1e-5)
