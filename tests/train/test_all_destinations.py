"""Ranking events among all known destinations, in parts."""

from dataclasses import replace

import pytest
import torch

from helpers.effort import cases
from helpers.made_streams import made_events, pieces, small_counts, small_tgat, small_tgn
from tgflow.base.metrics import ranks
from tgflow.graph import TemporalGraph
from tgflow.nn.groups import PAIR_GROUPS
from tgflow.plan.negatives import NegativeSampler
from tgflow.plan.plan import Plan
from tgflow.train.config import ContinualConfig, ExecutionConfig, OfflineConfig, TrainingConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.offline import OfflineTrainer

CONFIG = ContinualConfig(batch_size=16, learning_rate=1e-2, mrr_negatives="all", mrr_every=1)


def tgat():
    return small_tgat(pair_features=PAIR_GROUPS)


MODELS = [pytest.param(m, id=m.__name__) for m in (small_tgn, tgat, small_counts)]


def trained(model, config=CONFIG, events=None, **options):
    trainer = ContinualTrainer(model(), TemporalGraph(edge_x_dim=2), config, **options)
    return trainer, trainer.run(pieces(made_events(100) if events is None else events, 50))


@pytest.mark.parametrize(
    ("model", "visibility"),
    [(small_tgn, "batch"), (tgat, "batch"), (tgat, "event"), (small_counts, "event")],
)
def test_ranks_match_scores_of_all_destinations_one_event_at_a_time(model, visibility):
    """Uses a model that does not learn, so that the last batch can be scored again."""
    config = replace(CONFIG, updates=0, visibility=visibility, strategy="recent")
    events = made_events(96)
    trainer, _ = trained(model, config, events[:80])
    plan = Plan.for_model(
        trainer.model, graph := TemporalGraph.from_events(events), batch_size=16,
        visibility=visibility, strategy="recent", negatives=NegativeSampler(random=1),
    )  # fmt: skip
    known = graph.log.read(0, 80).dst.unique()
    expected = []
    trainer.model.eval()
    for eid in range(80, 96):
        others = known[known != events.dst[eid]]
        src = events.src[eid : eid + 1]
        dst = torch.cat([events.dst[eid : eid + 1], others]).unsqueeze(0)
        if visibility == "event" and trainer.model.state is None:
            as_of = torch.tensor([eid])
        else:
            as_of = torch.tensor([80])
        with torch.no_grad():
            scores = trainer.model(
                plan.of_roots(plan.draws.ask(src, dst, events.t[eid : eid + 1], as_of))
            )
        expected.append(float(ranks(scores.positive, scores.negative)))
    scored, _ = trained(model, config, events[:80], scores=True)
    (record,) = scored.steps([events[80:]])
    assert record.scores.rank.tolist() == expected
    assert record.metrics["mrr"] == pytest.approx(sum(1 / r for r in expected) / 16)


@pytest.mark.parametrize("model", MODELS)
def test_ranks_do_not_depend_on_parts_threads_or_slices(model, monkeypatch):
    _, result = trained(model)
    assert result["mrr_destinations"] == len(made_events(100).dst.unique())
    assert f"all {result['mrr_destinations']} destinations known" in result["protocol_line"]
    _, plain = trained(model, replace(CONFIG, strategy="recent"))
    for pairs, changes in ((1, {}), (100_000, {"num_threads": 0})):
        monkeypatch.setattr(TrainingConfig, "max_pairs", pairs)
        _, other = trained(model, replace(CONFIG, strategy="recent", **changes))
        for name in ("prequential.mrr", "test.mrr", "prequential.ap"):
            assert other[name] == pytest.approx(plain[name], abs=1e-6)  # ties are of 2^-17
    _, one = trained(model, replace(CONFIG, mrr_negatives=1))
    for name in ("prequential.ap", "running.loss"):
        assert one[name] == result[name]
    assert "prequential.mrr" not in one


def test_ranks_match_where_a_batch_is_predicted_while_it_is_learned():
    execution = ExecutionConfig(beside=True)
    _, beside = trained(small_tgn, execution=execution)
    _, plain = trained(small_tgn)
    for name in ("prequential.mrr", "prequential.ap", "running.loss"):
        assert beside[name] == plain[name]


def test_sliced_training_ranks_alike():
    """Dropout is off: it is drawn for each slice."""
    sliced, whole = (
        trained(lambda: small_tgn(dropout=0), replace(CONFIG, slices=slices))[1]
        for slices in (4, 1)
    )
    for name in ("prequential.mrr", "prequential.ap"):
        assert sliced[name] == pytest.approx(whole[name], abs=1e-4)  # float32 in other orders


def test_sample_and_historical_negatives_beside_all():
    found = []
    for every in (5, 1):
        config = replace(CONFIG, updates=0, mrr_every=every, mrr_further="historical:4")
        trainer = ContinualTrainer(small_tgn(), TemporalGraph(edge_x_dim=2), config, scores=True)
        records = [*trainer.steps(pieces(made_events(100), 50))]
        found.append(torch.cat([record.scores.rank for record in records]))
        result = trainer.result()
        assert result["prequential.mrr"] == pytest.approx(float((1 / found[-1]).nanmean()))
        assert 0 < result["prequential.mrr_hist"] <= 1
    some, every = found
    is_ranked = ~some.isnan()
    assert int(is_ranked.sum()) == 20
    assert torch.equal(some[is_ranked], every[is_ranked])


@pytest.mark.parametrize("select", cases(["ap", "mrr"], ["mrr"]))
@pytest.mark.parametrize("model", MODELS)
def test_offline_ranks_are_among_all_destinations(model, select, monkeypatch):
    graph = TemporalGraph.from_events(made_events(300))
    settings = {"batch_size": 20, "epochs": 1, "strategy": "recent", "select": select}
    config, results = OfflineConfig(mrr_negatives="all", **settings), []
    for pairs in (100_000, 37):
        monkeypatch.setattr(TrainingConfig, "max_pairs", pairs)
        results.append(OfflineTrainer(model(), graph, config).fit())
    for name in ("test.mrr", "test.ap", "inductive.test.mrr", "val.ap"):
        assert results[0][name] == pytest.approx(results[1][name], abs=1e-6)  # ties are of 2^-17
    if select == "ap":
        one = OfflineTrainer(model(), graph, OfflineConfig(mrr_negatives=1, **settings)).fit()
        assert results[0]["test.ap"] == pytest.approx(one["test.ap"], abs=1e-6)
    num = len(graph.log.read(0, 300).dst.unique())
    assert results[0]["mrr_destinations"] == num
    assert f"MRR among all {num} destinations" in results[0]["protocol_line"]


def test_all_destinations_exclude_other_negatives():
    for changes in ({"test_negatives": ("historical",)}, {"inductive": "apart"}):
        with pytest.raises(ValueError, match='mrr_negatives="all" ranks among all destinations'):
            OfflineConfig(mrr_negatives="all", **changes)
    with pytest.raises(ValueError, match="among_all is for random negatives"):
        NegativeSampler(historical=1, among_all=True)
