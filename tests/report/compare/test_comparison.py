"""A comparison gives each model the results of a separate run."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers.devices import (
    needs_apart,
    opened,
    place_of,
    without_autograd_threads,  # noqa: F401
)
from helpers.live_runs import untimed
from helpers.made_streams import made_events, pieces, small_tgat, small_tgn
from tgflow import TGN, ContinualConfig, ContinualTrainer, Scores, TemporalGraph
from tgflow import checkpoint as ckpt
from tgflow.checkpoint import CheckpointError
from tgflow.graph import EventLog, Horizon
from tgflow.graph.tables import FeatureTable
from tgflow.report.compare import Comparison, Entrant
from tgflow.report.compare.attributes import event_facts
from tgflow.train import TrainingDiverged
from tgflow.train.config import ExecutionConfig

CONFIG = ContinualConfig(batch_size=20, mrr_negatives=5, learning_rate=1e-2, seed=7)
EVENTS = made_events(130)


def tgn(seed=0, label="tgn", **options):
    return Entrant(label, seed, small_tgn(seed), **options)


def tgat(seed=0, label="tgat", **options):
    return Entrant(label, seed, small_tgat(seed), **options)


def comparison(*lineup, config=CONFIG):
    return Comparison(lineup, TemporalGraph("undirected", 2), config)


def compared(*lineup, events=EVENTS, config=CONFIG):
    found = comparison(*lineup, config=config)
    found.run(pieces(events, 64))
    return found


def rows(found):
    return {each.key: each.scores.rows for each in found.participants}


def figures(found):
    """Return the results of each model, without timing and memory growth."""
    results = found.result()["participants"]
    return {key: untimed(drop(each, "microseconds", "bytes")) for key, each in results.items()}


def drop(mapping, *names):
    return {key: value for key, value in mapping.items() if key not in names}


def assert_same_scores(left, right):
    assert left.keys() == right.keys()
    for key, scores in left.items():
        assert torch.equal(scores, right[key]), key


@pytest.mark.parametrize(
    ("horizon", "changes"),
    [
        (None, {"mrr_further": "historical:3", "updates": 2}),
        (None, {"updates": 0, "mrr_negatives": "all", "mrr_every": 1}),
        (Horizon(32), {"replay_ratio": 0.5}),
    ],
)
def test_each_model_matches_a_separate_run(horizon, changes, monkeypatch):
    monkeypatch.setattr(EventLog, "piece", 8)
    config = replace(CONFIG, **changes)
    graph = TemporalGraph("undirected", 2, horizon=horizon)
    found = Comparison((tgn(0), tgat(1), tgn(1)), graph, config)
    found.run(pieces(EVENTS[:60], 30))
    found = Comparison.from_checkpoint((tgn(0), tgat(1), tgn(1)), found.checkpoint())
    found.run(pieces(EVENTS[60:], 64))
    for key, make in (("tgn/0", small_tgn), ("tgat/1", small_tgat), ("tgn/1", small_tgn)):
        seed = int(key[-1])
        own = replace(config, seed=seed, data_seed=7, mrr_every=1)
        graph = TemporalGraph("undirected", 2, horizon=horizon)
        alone = ContinualTrainer(make(seed), graph, own)
        result = untimed(alone.run(pieces(EVENTS, 50)))
        mine = figures(found)[key]
        same = [name for name in result if name.startswith(("prequential.", "test.", "running."))]
        assert same
        assert {n: result[n] for n in same if n != "test.start_event"} == {
            n: mine[n] for n in same if n != "test.start_event"
        }
    assert horizon is None or graph.log.first > 60
    whole = TemporalGraph("undirected", 2)
    whole.append(EVENTS)
    facts, expected = (event_facts(each, 0, 130) for each in (found.graph, whole))
    assert all(np.array_equal(facts[name], expected[name]) for name in expected)


@pytest.mark.slow
@needs_apart[0]
@pytest.mark.usefixtures("without_autograd_threads")
def test_captured_comparison_on_a_device_has_the_bits_of_an_uncaptured_one():
    """Its groups take turns, in the same slots."""
    found = []
    for capture in (False, True):
        table = FeatureTable(2, placement="device", device=(gpu := opened("apart")))
        graph = TemporalGraph("undirected", edge_x=table, device=gpu)
        lineup = [Entrant(e.label, e.seed, e.model.to(place_of("apart"))) for e in (tgn(), tgat(1))]
        compare = Comparison(lineup, graph, CONFIG, execution=ExecutionConfig(capture=capture))
        compare.run(pieces(EVENTS, 64))
        assert len(compare._slots) == 5 * capture
        found.append((rows(compare), [each.model for each in lineup]))
    assert_same_scores(found[0][0], found[1][0])
    for plain, captured in zip(*(models for _, models in found), strict=True):
        for x, y in zip(plain.parameters(), captured.parameters(), strict=True):
            assert torch.equal(x.cpu(), y.cpu())


def test_scores_do_not_depend_on_order_or_other_models():
    both = compared(tgn(0), tgat(0), tgn(1))
    other = compared(tgn(1), tgat(0), tgn(0))
    assert_same_scores(rows(both), rows(other))
    assert figures(both) == figures(other)
    alone = compared(tgat(0))
    assert torch.equal(rows(alone)["tgat/0"], rows(both)["tgat/0"])


def test_models_with_the_same_needs_share_batches():
    found = compared(tgn(0), tgat(0), tgn(1), tgn(0, "other"))
    assert found.result()["num_groups"] == 2
    assert found.num_batches == 4
    microseconds = found.result()["participants"]["tgn/1"]["microseconds"]
    assert all(microseconds[name] > 0 for name in ("compute", "commit", "preparation"))
    parts = ("compute", "commit", "preparation")
    assert microseconds["all"] == pytest.approx(sum(microseconds[name] for name in parts))


class Diverging(TGN):
    """A TGN with non-finite scores from some batch on."""

    def forward(self, batch):
        scores = super().forward(batch)
        if batch.host.begin < 60:
            return scores
        return Scores(scores.positive * float("nan"), scores.negative, scores.carry)


def diverging(seed=0):
    model = small_tgn(seed)
    model.__class__ = Diverging
    return Entrant("bad", seed, model)


def test_diverging_model_drops_out_and_the_others_continue():
    found = compared(tgn(0), diverging(), tgat(0))
    failure = found.result()["participants"]["bad/0"]["failure"]
    assert failure["at"] == 60
    assert "positive score" in failure["reason"]
    assert len(rows(found)["bad/0"]) == 60
    assert_same_scores(drop(rows(found), "bad/0"), drop(rows(compared(tgn(0), tgat(0))), "bad/0"))
    assert found.position == 130


def test_comparison_ends_when_no_model_is_left():
    with pytest.raises(TrainingDiverged, match="no model is left: epoch 0, batch 3"):
        compared(diverging(0), diverging(1))


def test_frozen_copy_stops_learning_and_keeps_storing():
    copy = tgn(0, "tgn frozen", frozen_of="tgn", frozen_at=55)
    found = compared(tgn(0), copy)
    learning, frozen = rows(found)["tgn/0"], rows(found)["tgn frozen/0"]
    assert torch.equal(frozen[:80], learning[:80])  # 60 to 80 are predicted by the same parameters
    assert not torch.equal(frozen[80:], learning[80:])
    before = comparison(tgn(0))
    before.run(pieces(EVENTS[:60], 60))
    kept = before.participants[0].entrant.model.state_dict()
    for name, parameter in copy.model.named_parameters():
        assert torch.equal(parameter, kept[name]), name
    assert int(copy.model.state.clock[:, -1].max()) == 130  # all is stored


def interrupted(make, tmp_path, stop_after):
    """Return a comparison saved after some micro-batches and resumed from disk."""
    found = make()
    for number, _ in enumerate(found.steps(pieces(EVENTS, 64)), 1):
        if number == stop_after:
            break
    ckpt.save(tmp_path / "saved", found.checkpoint())
    rest = EVENTS[found.position :]
    saved = ckpt.load(tmp_path / "saved")
    lineup = [each.entrant for each in make().participants]
    resumed = Comparison.from_checkpoint(lineup, saved)
    resumed.run(pieces(rest, 64))
    return resumed


@pytest.mark.parametrize("stop_after", [1, 5])
def test_resumed_comparison_has_the_same_bits(tmp_path, stop_after):
    def make():
        copy = tgn(0, "tgn frozen", frozen_of="tgn", frozen_at=80)
        return comparison(tgn(0), diverging(), tgat(0), copy)

    whole = make()
    whole.run(pieces(EVENTS, 64))
    resumed = interrupted(make, tmp_path, stop_after)
    assert_same_scores(rows(whole), rows(resumed))
    assert figures(whole) == figures(resumed)


def test_checkpoint_of_other_models_is_refused(tmp_path):
    saved = compared(tgn(0)).checkpoint()
    with pytest.raises(CheckpointError, match="comparison of tgn/0"):
        Comparison.from_checkpoint([tgat(0)], saved)


@pytest.mark.parametrize(
    ("lineup", "message"),
    [
        ([], "at least one model"),
        ([tgn(0), tgn(0)], "tgn/0 appears twice"),
        ([tgn(0, "x", frozen_of="tgn", frozen_at=5)], "x/0 is a copy of tgn, which is missing"),
    ],
)
def test_invalid_lineups_are_refused(lineup, message):
    with pytest.raises(ValueError, match=message):
        comparison(*lineup)


def test_entrants_may_differ_only_in_learning_settings():
    with pytest.raises(ValueError, match="got batch_size"):
        tgn(learning={"batch_size": 3})
    found = compared(tgn(0), tgn(0, "slow", learning={"learning_rate": 1e-4}))
    assert not torch.equal(rows(found)["tgn/0"][60:], rows(found)["slow/0"][60:])
