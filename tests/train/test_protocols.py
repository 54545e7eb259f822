"""Named protocols: plain settings, and the line that reports differences."""

import math

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from helpers.effort import slow
from helpers.made_models import made_model
from helpers.made_streams import made_events, pieces, small_tgat, small_tgn
from helpers.plans import tied_events
from tgflow.base.keys import derive_key
from tgflow.base.metrics import ranks
from tgflow.graph import TemporalGraph
from tgflow.graph.events import EventBatch
from tgflow.graph.ids import NodeIds
from tgflow.nn.model import Scores, TemporalModel
from tgflow.plan.negatives import NegativeSampler, PairHistory
from tgflow.plan.plan import Plan
from tgflow.train.config import ContinualConfig, OfflineConfig, TrainingConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.offline import OfflineTrainer, is_better
from tgflow.train.protocols import continual_line, offline_line, protocol_settings


def test_protocol_is_described_in_one_line():
    assert offline_line(OfflineConfig(**protocol_settings("dyglib/1")), 0.123) == (
        "dyglib/1: 70/15/15, new nodes 10% in the same pass, batch 200, event-exact neighbors, "
        "memory of the batch's start, random:1 (may hit a positive), best epoch by AP and AUC, "
        "ties 12%"
    )
    assert continual_line(ContinualConfig(**protocol_settings("prequential/1")), 0.0) == (
        "prequential/1: each event predicted, then learned, batch 200, event-exact neighbors, "
        "memory of the batch's start, random:20 and historical:20 known at the batch's start, "
        "test the last 15%, ties 0%"
    )


@pytest.mark.parametrize(
    ("select", "ap", "auc", "wins"),
    [
        ("ap", 0.6, 0.1, True),
        ("ap", 0.5, 0.9, False),
        ("ap+auc", 0.5, 0.5, True),
        ("ap+auc", 0.6, 0.4, False),
        ("ap+auc", 0.4, 0.6, False),
        ("mrr", 0.9, 0.9, False),
    ],
)
def test_best_epoch_is_chosen_by_the_configured_metric(select, ap, auc, wins):
    found = {"ap": ap, "auc": auc, "mrr": 0.5}
    assert is_better(select, found, {"ap": 0.5, "auc": 0.5, "mrr": 0.5}) is wins


def trainer_of(events=None, **changes):
    graph = TemporalGraph.from_events(made_events(300) if events is None else events)
    settings = {"batch_size": 20, "epochs": 1, "mrr_negatives": 3, **changes}
    return OfflineTrainer(small_tgn(), graph, OfflineConfig(**settings))


def test_published_protocol_draws_its_negatives():
    before = trainer_of(test_negatives=("inductive",))
    negatives = before._evaluation_plan("test", "inductive", 1).draws.negatives
    assert negatives.since == before.split.val_start
    trainer = trainer_of(**protocol_settings("dyglib/1") | {"batch_size": 20, "epochs": 1})
    assert trainer._val_plan.draws.negatives.collide
    assert trainer._train_plan.draws.negatives.collide
    assert not trainer._evaluation_plan("test", "historical", 1).draws.negatives.replace
    negatives = trainer._evaluation_plan("test", "inductive", 1).draws.negatives
    assert negatives.since == trainer.split.test_start
    result = trainer.fit()
    assert result["protocol"] == "dyglib/1"
    assert "changed: batch_size 20 for 200; epochs 1 for 100" in result["protocol_line"]


def test_training_negatives_come_from_training_or_all_destinations():
    src, dst = torch.arange(200) % 5, 10 + torch.arange(200) % 7
    dst[190:] = 99  # appears only in the test split
    for protocol, is_drawn in ((None, False), ("tgbl/1", True)):
        events = EventBatch(src, dst, torch.arange(200))
        plan = trainer_of(events, protocol=protocol)._train_plan
        drawn = {d for i in range(len(plan)) for d in plan.batch(0, i).negative_dst[:, 0].tolist()}
        assert (99 in drawn) is is_drawn


def test_separate_new_node_pass_uses_only_their_events_and_destinations():
    trainer = trainer_of(inductive="apart", protocol="tgbl/1")
    start = trainer.split.test_start
    new = start + trainer.split.touches_new[start:].nonzero().flatten()
    plan = trainer._new_nodes_plan("test", NegativeSampler(random=50, cut=300, collide=True))
    batches = [plan.batch(0, index) for index in range(len(plan))]
    assert torch.equal(torch.cat([batch.eid for batch in batches]), new)
    drawn = {d for batch in batches for d in batch.negative_dst.flatten().tolist()}
    assert drawn == set(trainer.graph.log.gather(new).dst.tolist())


def test_pooled_negatives_come_from_the_pool_and_exclude_the_event_unless_allowed():
    src, dst = torch.tensor([1, 1]), torch.tensor([7, 50])
    places = {"start": torch.zeros(2, dtype=torch.int64), "stop": 2}
    history = PairHistory(TemporalGraph.from_events(made_events(5)).log)
    pool = PairHistory.of_pool(torch.tensor([7, 8, 7, 9]))
    kept = NegativeSampler(500, pool=pool).draw(history, derive_key(1), src, dst, **places)
    assert [set(row) for row in kept.dst.tolist()] == [{8, 9}, {7, 8, 9}]
    assert kept.own_sources
    free = NegativeSampler(500, pool=pool, collide=True)
    free = free.draw(history, derive_key(1), src, dst, **places)
    assert set(free.dst[0].tolist()) == {7, 8, 9}
    with pytest.raises(ValueError, match="at least one destination"):
        PairHistory.of_pool(torch.empty(0, dtype=torch.int64))


def test_mrr_among_past_pairs_is_a_separate_metric():
    results = {}
    for num in (None, 4):
        config = ContinualConfig(batch_size=20, mrr_negatives=5, mrr_further=num and "historical:4")
        trainer = ContinualTrainer(small_tgn(), TemporalGraph(edge_x_dim=2), config)
        results[num] = trainer.run(pieces(made_events(200), 50))
    assert 0 < results[4]["test.mrr_hist"] <= 1
    assert results[4]["test.mrr_hist"] != results[4]["test.mrr"]
    assert "test.mrr_hist" not in results[None]
    for metric in ("prequential.ap", "prequential.mrr", "running.loss"):
        assert results[4][metric] == pytest.approx(results[None][metric], abs=1e-5)


@pytest.mark.parametrize(("every", "visibility"), [(1, "event"), (3, "batch")])
def test_mrr_of_returns_first_meetings_and_last_destinations_matches_a_scan(every, visibility):
    events = tied_events(150, num_nodes=6)
    config = ContinualConfig(
        batch_size=20,
        mrr_negatives=5,
        mrr_every=every,
        mrr_further="recent:3,source:2",
        visibility=visibility,
    )
    trainer = ContinualTrainer(Fixed(), TemporalGraph(edge_x_dim=3), config, scores=True)
    rows = [*zip(events.src.tolist(), events.dst.tolist(), events.t.tolist(), strict=True)]
    found = {}
    for record in trainer.steps(pieces(events, 50)):
        for eid, rank in zip(record.eid.tolist(), record.scores.rank.tolist(), strict=True):
            if math.isnan(rank):
                continue
            src, dst, t = rows[eid]
            is_return = any(row[:2] == (src, dst) and row[2] < t for row in rows[:eid])
            found.setdefault("mrr_returns" if is_return else "mrr_first", []).append(1 / rank)
            past = rows[: record.start]
            for name, most, nodes in (
                ("mrr_source", 2, [v for u, v, _ in past if u == src]),
                ("mrr_recent", 3, [v for _, v, _ in past]),
            ):
                last = [*dict.fromkeys(nodes[: -8 * most - 1 : -1])][:most]
                if others := [v for v in last if v != dst]:
                    above = sum(Fixed.of(v) > Fixed.of(dst) for v in others)
                    found.setdefault(name, []).append(1 / (1 + above))
    result = trainer.result()
    assert len(found) == 4
    for name, worths in found.items():
        assert result[f"prequential.{name}_events"] == len(worths)
        mean = sum(worths) / len(worths)
        assert result[f"prequential.{name}"] == pytest.approx(mean)  # float64, summed by batch


class Fixed(TemporalModel):
    """Scores each destination by a number of its own."""

    strategy, fanouts, reads_nodes = "recent", (), False

    @staticmethod
    def of(node):
        return node * 37 % 101 / 101

    def forward(self, batch):
        return Scores(self.of(batch.dst), self.of(batch.negative_dst))


def test_first_events_are_learned_but_not_measured():
    config = ContinualConfig(batch_size=20, warmup=50, mrr_negatives=3)
    trainer = ContinualTrainer(small_tgn(), TemporalGraph(edge_x_dim=2), config)
    records = list(trainer.steps(pieces(made_events(120), 50)))
    assert [bool(record.metrics) for record in records] == [False] * 3 + [True] * 3
    assert all(record.loss is not None for record in records)
    late = [record.metrics["ap"] for record in records[3:]]
    result = trainer.result()
    assert result["prequential.ap"] == pytest.approx(sum(late) / 3)
    assert "the first 50 not measured" in result["protocol_line"]


def fixed_of(tmp_path, counts):
    """Return a trainer with negatives of a file, `counts` per event, cycled."""
    events = made_events(300)
    split = trainer_of(events).split
    ids = NodeIds()
    ids.encode(events.src.tolist(), events.dst.tolist())
    spans = {"val": (split.val_start, split.test_start), "test": (split.test_start, 300)}
    names = torch.tensor(ids.decode(torch.arange(len(ids))))
    for part, (start, stop) in spans.items():
        num = torch.tensor((counts * 300)[: stop - start])
        own = events.dst[start:stop].repeat_interleave(num)
        first, second = (each.repeat(100)[: len(own)] for each in (names, names.roll(-1)))
        # no event is its own negative: rounding would break that tie
        columns = {"start": F.pad(num.cumsum(0), (1, 0)), "dst": first.where(first != own, second)}
        about = {"val_start": spans["val"][0], "test_start": spans["test"][0], "num_events": 300}
        about |= {"negatives": "val,test"}
        about = {key: str(value) for key, value in about.items()}
        save_file(columns, tmp_path / f"x.{part}.negatives.safetensors", about)
    src, dst = ids.encode(events.src.tolist(), events.dst.tolist())
    return EventBatch(src, dst, events.t, events.x), ids


@pytest.mark.parametrize("model", [small_tgn, small_tgat], ids=["tgn", "tgat"])
def test_one_against_many_metrics_do_not_depend_on_max_pairs(tmp_path, model, monkeypatch):
    events, ids = fixed_of(tmp_path, [5, 9, 1])
    results = []
    for max_pairs in (20_000, 37):
        monkeypatch.setattr(TrainingConfig, "max_pairs", max_pairs)
        config = OfflineConfig(
            **protocol_settings("tgbl/1") | {"batch_size": 20, "epochs": 1, "strategy": "recent"},
            fixed_negatives=str(tmp_path / "x"),
        )
        graph = TemporalGraph.from_events(events)
        results.append(OfflineTrainer(model(), graph, config, ids=ids).fit())
    whole, parts = results
    assert parts["test_negatives"] == "fixed"
    assert "fixed negatives of x, best epoch by MRR" in parts["protocol_line"]
    for name in ("val.mrr", "test.mrr", "test.hits@10", "test.ap", "test.num_events"):
        assert parts[name] == pytest.approx(whole[name], abs=1e-6)


def test_rule_with_the_highest_mrr_is_chosen_without_padding(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingConfig, "max_pairs", 37)
    events, ids = fixed_of(tmp_path, [5, 9, 1])
    config = OfflineConfig(**protocol_settings("tgbl/1"), fixed_negatives=str(tmp_path / "x"))

    def trained(model):
        return OfflineTrainer(model, TemporalGraph.from_events(events), config, ids=ids).fit()

    model = made_model("recency")
    result = trained(model)
    alone = [trained(made_model("recency", rule=rule))["val.mrr"] for rule in model.candidates]
    merits = model.state.state_dict()["merits"]
    assert (merits / merits.sum()).tolist() == pytest.approx([x / sum(alone) for x in alone])
    assert result["rule"] == model.candidates[int(merits.argmax())]


@pytest.mark.parametrize(
    ("make", "visibility"),
    [
        (small_tgn, "batch"),
        (small_tgat, "event"),
        slow(small_tgn, "event"),
        slow(small_tgat, "batch"),
    ],
)
def test_scores_among_many_match_those_of_each_event_alone(make, visibility):
    """Together, neighbors are projected once; alone and with gradients, targets are."""
    model = make(heads=4).eval()
    graph = TemporalGraph.from_events(made_events(300))
    plan = Plan.for_model(
        model, graph, batch_size=20, strategy="recent", visibility=visibility,
        negatives=NegativeSampler(random=200, cut=300),
    )  # fmt: skip
    for index in range(10):
        with torch.no_grad():
            batch = plan.batch(0, index)
            many = model(batch)
            parts = [plan.part(0, index, slice(row, row + 1)) for row in range(20)]
        alone = [model(part) for part in parts]
        for name in ("positive", "negative"):
            each = torch.cat([getattr(scores, name) for scores in alone])
            torch.testing.assert_close(getattr(many, name), each.detach(), atol=1e-5, rtol=1e-5)
        model.commit(batch, many)


def test_padding_is_not_counted_as_a_negative(tmp_path):
    """A model with equal scores for event and padding ranks an event without negatives first."""
    events, ids = fixed_of(tmp_path, [0, 2])
    config = OfflineConfig(batch_size=20, fixed_negatives=str(tmp_path / "x"))
    trainer = OfflineTrainer(small_tgn(), TemporalGraph.from_events(events), config, ids=ids)
    scored = list(trainer._scored(trainer._val_plan))
    for place, positive, negative, _ in scored:
        mask = place.host.negative_mask
        assert torch.equal(negative == -torch.inf, ~mask)
        assert (ranks(positive, negative)[~mask.any(1)] == 1).all()
    assert any((~each.place.host.negative_mask).any() for each in scored)


def test_negatives_of_another_split_or_without_ids_are_refused(tmp_path):
    events, ids = fixed_of(tmp_path, [2])
    config = OfflineConfig(fixed_negatives=str(tmp_path / "x"))
    graph = TemporalGraph.from_events(events[:290])
    with pytest.raises(ValueError, match=r"x has the split of 300 events, and .* has 290"):
        OfflineTrainer(small_tgn(), graph, config, ids=ids)
    with pytest.raises(ValueError, match=r"pass ids=stream\.ids"):
        OfflineTrainer(small_tgn(), TemporalGraph.from_events(events), config)
    with pytest.raises(ValueError, match="replace test_negatives"):
        OfflineConfig(fixed_negatives="x", inductive="apart")


def test_separate_new_node_metrics_do_not_change_the_others(tmp_path):
    same, apart = (
        trainer_of(inductive=inductive, seed=3, protocol="tgbl/1").fit()
        for inductive in ("same_pass", "apart")
    )
    for part in ("val", "test"):
        for metric in ("ap", "auc", "num_events"):
            assert apart[f"{part}.{metric}"] == same[f"{part}.{metric}"]
        count = f"inductive.{part}.num_events"
        assert apart[count] == same[count] > 0
    assert apart["inductive.test.ap"] != same["inductive.test.ap"]
    assert "new nodes 10% in a pass of their own" in apart["protocol_line"]
