"""The continual loop: predict, learn, store; no future leak with any number of threads."""

import copy
import json
import math

import pytest
import torch

from helpers.effort import cases
from helpers.live_runs import assert_same_state, state_of, untimed
from helpers.made_streams import made_events, pieces, small_tgat, small_tgn
from helpers.strategies import skewed_events
from tgflow import checkpoint as ckpt
from tgflow.graph import EventLog, TemporalGraph
from tgflow.graph.events import EventBatch, concat
from tgflow.models import SmoothedCounts, TGNConfig
from tgflow.streams import open_stream
from tgflow.train import stream_trainer
from tgflow.train.config import ContinualConfig
from tgflow.train.continual import ContinualTrainer
from tgflow.train.finite import TrainingDiverged
from tgflow.train.observe import Callback


class Recorder(Callback):
    def __init__(self):
        self.steps = []

    def on_step(self, record):
        self.steps.append(record.to_json())


def trainer_of(model=None, graph=None, **changes):
    settings = {"batch_size": 20, "learning_rate": 1e-2, "mrr_negatives": 5, **changes}
    graph = TemporalGraph("undirected", 2) if graph is None else graph
    model = small_tgn() if model is None else model
    return ContinualTrainer(model, graph, ContinualConfig(**settings))


def run(events, *sizes, **changes):
    recorder, trainer = Recorder(), trainer_of(**changes)
    result = trainer.run(pieces(events, *sizes or (64,)), recorder)
    return trainer, recorder.steps, result


def test_memory_by_part_stays_within_its_bytes_an_event():
    """Of the default model; half of the neighbors are parts of chunks that later events fill."""
    events = skewed_events(24_000, 500)
    model = small_tgn(edge_x_dim=0, pair_features=TGNConfig().pair_features)
    trainer = trainer_of(model, TemporalGraph(), batch_size=6_000)
    trainer.run(pieces(events, 6_000))
    parts = {name: num / len(events) for name, num in trainer.memory_parts().items()}
    assert parts["events"] == 24
    assert parts["counts"] <= 200
    assert parts["neighbors"] <= 70


def test_training_improves_metrics_and_reports_them():
    trainer, steps, result = run(made_events(900, noise=0.05), updates=2, learning_rate=2e-2)
    assert len(steps) == 45
    assert trainer.position == trainer.graph.num_events == 900
    assert result["test.ap"] > 0.78
    assert result["test.ap"] > result["prequential.ap"] + 0.05
    assert result["test.start_event"] == 780
    assert result["num_events"] == 900
    assert steps[-1]["running.loss"] < 0.9 * steps[0]["loss"]
    assert steps[-1]["stop"] == 900
    assert steps[-1]["lag_events"] == 0
    assert result["visibility"] == "event"
    assert 0 < result["overhead_share"] < 1
    assert json.loads(json.dumps(result)) == result
    assert json.loads(json.dumps(steps)) == steps


def test_first_event_and_empty_stream_have_defined_results():
    _, steps, result = run(made_events(1), batch_size=4)
    assert result["num_events"] == 1
    assert result["num_fallbacks"] == 5  # no destination was known before
    assert math.isfinite(steps[0]["loss"])
    _, steps, result = run(made_events(0))
    assert (steps, result["num_events"]) == ([], 0)
    assert "test.ap" not in result


def test_without_updates_events_are_still_predicted_and_stored():
    trainer, steps, result = run(made_events(60), updates=0)
    assert all(step["loss"] is None for step in steps)
    fresh = small_tgn().state_dict()
    assert all(torch.equal(x, fresh[name]) for name, x in trainer.model.state_dict().items())
    assert trainer.model.state.state_dict()["rows"].any()
    assert "prequential.ap" in result


@pytest.mark.parametrize("visibility", ["event", "batch"])
def test_results_do_not_depend_on_threads_lookahead_and_batch_boundaries(visibility, monkeypatch):
    events = made_events(210)
    base, steps, result = run(events, num_threads=0, visibility=visibility)
    for sizes, num_threads, ahead in [((1, 90, 3), 1, 1), ((500,), 3, 7)]:
        monkeypatch.setattr(stream_trainer, "PREFETCH_BATCHES", ahead)
        other, other_steps, other_result = run(
            events, *sizes, visibility=visibility, num_threads=num_threads
        )
        assert list(map(untimed, other_steps)) == list(map(untimed, steps))
        assert untimed(other_result) == untimed(result)
        assert_same_state(base, other)


@pytest.mark.parametrize("visibility", ["event", "batch"])
@pytest.mark.parametrize("changed", cases([130, 139, 140], [139]))
def test_changed_event_changes_no_earlier_prediction(visibility, changed):
    """Scores in its micro-batch may differ by rounding, as matrix heights differ."""
    events = made_events(240)
    others = concat([events[:changed], made_events(240, seed=9)[: 240 - changed]])
    others = EventBatch(others.src, others.dst, events.t, others.x)
    recorded = []
    for stream in (events, others):
        scores = {}
        trainer = trainer_of(visibility=visibility, updates=2, replay_ratio=1.0)
        predict = trainer._learner.predict

        def keep(batch, predict=predict, scores=scores):
            out = predict(batch)
            scores.update(zip(batch.eid.tolist(), out.positive.tolist(), strict=True))
            return out

        trainer._learner.predict = keep
        trainer.run(pieces(stream, 64))
        recorded.append([scores[eid] for eid in range(240)])
    before = changed // 20 * 20
    assert recorded[0][:before] == recorded[1][:before]
    assert recorded[0][before:changed] == pytest.approx(recorded[1][before:changed], abs=1e-6)
    assert recorded[0][changed:] != recorded[1][changed:]


class Timed(list):
    """Batches of events, as a source has them."""

    unit = "ms"


def test_stream_of_another_time_unit_is_refused():
    message = r"the stream's ticks are of unit 'ms', the graph's of 's'; create .*time_unit='ms'\)"
    with pytest.raises(ValueError, match=message):
        trainer_of().run(Timed(pieces(made_events(40), 40)))
    trainer = trainer_of(graph=TemporalGraph("undirected", 2, time_unit="ms"))
    assert trainer.run(Timed(pieces(made_events(40), 40)))["num_events"] == 40


def test_deleted_events_stay_deleted_in_a_checkpoint(tmp_path):
    events = made_events(300)
    trainers = trainer_of(updates=2, replay_ratio=0.5), trainer_of(updates=2, replay_ratio=0.5)
    for trainer in trainers:
        trainer.run(pieces(events[:200], 50))
    for trainer in trainers[:1]:
        trainer.graph.delete(torch.arange(0, 200, 3))
        trainer.graph.delete_node(int(events.src[100]))
        trainer.graph.retain(max_count=5)
    straight, unchanged = trainers
    path = ckpt.save(tmp_path / "c", straight.checkpoint())
    resumed = ContinualTrainer.from_checkpoint(small_tgn(seed=99), ckpt.load(path))
    assert resumed.graph.stats().num_entries == straight.graph.stats().num_entries
    for trainer in (straight, unchanged, resumed):
        trainer.run(pieces(events[200:], 50))
    assert_same_state(straight, resumed)
    forgot, knew = state_of(straight), state_of(unchanged)
    assert any(not torch.equal(x, knew[name]) for name, x in forgot.items() if name[0] == "model")


@pytest.mark.parametrize(("model_of", "negatives"), [(small_tgn, "all"), (small_tgat, 5)])
def test_resume_mid_stream_matches_undisturbed_run(tmp_path, model_of, negatives):
    events = made_events(240)
    settings = {"updates": 2, "replay_ratio": 0.7, "mrr_negatives": negatives}

    def new():
        graph = TemporalGraph("undirected", 2, time_unit="h")
        return trainer_of(model_of(), graph, **settings)

    straight, trainer, recorder, again_recorder = new(), new(), Recorder(), Recorder()
    straight.run(pieces(events, 64), recorder)
    saved = next(trainer.checkpoint() for r in trainer.steps(pieces(events, 100)) if r.stop == 120)
    assert len(saved.sections["events"]["src"]) == saved.meta["position"] == 120
    path = ckpt.save(tmp_path / "c", saved)
    again = ContinualTrainer.from_checkpoint(model_of(seed=99), ckpt.load(path))
    result = again.run(pieces(events[120:], 33), again_recorder)
    assert list(map(untimed, again_recorder.steps)) == list(map(untimed, recorder.steps[6:]))
    assert untimed(result) == untimed(straight.result())
    assert again.graph.seconds_per_tick == 3600.0
    assert_same_state(straight, again)


def test_events_already_in_the_graph_are_history():
    events = made_events(100)
    graph = TemporalGraph.from_events(events[:30])
    trainer = trainer_of(graph=graph)
    steps = list(trainer.steps([events[30:]]))
    assert steps[0].start == 30
    assert steps[0].num_fallbacks == 0
    assert [step.stop for step in steps] == [50, 70, 90, 100]


MUTATIONS = [
    [40, "delete_node", {"node": "x"}],
    [30, "append_late", {}],
    [41, "compact", {}],
    [40, "forget", {}],
    [40, "compact"],
]
MOMENTS = [
    ("0.exp_avg", torch.zeros(0)),  # a fused step would read past its end
    ("0.exp_avg_sq", torch.zeros(2, 3)),
    ("0.step", torch.zeros(3)),
    ("0.exp_avg", torch.zeros(1, dtype=torch.float64)),
    ("9999.exp_avg", torch.zeros(1)),
    ("x.exp_avg", torch.zeros(1)),
    ("0.more", torch.zeros(1)),
]


@pytest.fixture(scope="module")
def forty():
    """The checkpoint of a trainer that has learned 40 events."""
    return run(made_events(40))[0].checkpoint()


@pytest.mark.parametrize(
    ("place", "wrong", "text"),
    [
        *(("mutations", [row], "the checkpoint's events cannot be used") for row in MUTATIONS),
        ("mutations", [[40, "delete", {}]], r"eid 40 .* is not in the log"),
        *((("optimizer", name), wrong, f"optimizer.*{name}") for name, wrong in MOMENTS),
        ("progress", 5, "progress is 5"),
        ("config", {"seed": 1}, "config lacks"),
        ("segment_start", 10**6, "segment_start is 1000000, and not from 0 to 40"),
        ("index", -1, "index is -1"),
        ("replay_from", "0", "replay_from is '0'"),
        ("trainer", "offline", "of trainer 'offline', not of 'continual'"),
        (("model", "updater.time_proj.weight"), torch.zeros(1), "does not fit this model"),
    ],
)
def test_damaged_checkpoints_are_refused_with_their_name(forty, place, wrong, text):
    saved = copy.deepcopy(forty)
    if wrong == [[40, "delete", {}]]:
        saved.sections["mutations"] = {"0": torch.tensor([40])}
    if isinstance(place, str):
        saved.meta[place] = wrong
    else:
        saved.sections[place[0]][place[1]] = wrong
    is_plain = place in ("mutations", "trainer") or place[0] == "model"
    with pytest.raises(ckpt.CheckpointError if is_plain else ckpt.UntrustedCheckpoint, match=text):
        ContinualTrainer.from_checkpoint(small_tgn(), saved)


def rows_of(names, start):
    src, dst = zip(*names, strict=True)
    return {"src": src, "dst": dst, "t": [start + i for i in range(len(names))]}


def test_later_stream_continues_with_the_ids_of_the_first():
    days = [("ann", "bob"), ("bob", "cy"), ("ann", "cy")], [("dan", "ann"), ("eve", "dan")]
    first, second = (
        open_stream(rows_of(names, 10 * i), time_unit="s") for i, names in enumerate(days)
    )
    trainer = ContinualTrainer(SmoothedCounts(), TemporalGraph())
    trainer.run(first)
    assert trainer.run(second)["num_nodes"] == 5
    assert trainer.ids is first.ids is second.ids
    assert trainer.ids.decode(trainer.graph.log.read(3, 5).src) == ["dan", "eve"]


def test_ids_that_do_not_continue_are_refused():
    names = [("ann", "bob"), ("bob", "cy")]
    trainer = ContinualTrainer(SmoothedCounts(), TemporalGraph())
    trainer.run(open_stream(rows_of(names, 0), time_unit="s"))
    read = open_stream(rows_of(names, 10), time_unit="s")
    list(read)
    with pytest.raises(ValueError, match=r"open it with those of this trainer.*ids=trainer\.ids"):
        trainer.run(read)
    with pytest.raises(ValueError, match="which would mix up nodes"):
        trainer.run(open_stream(rows_of(names, 10), time_unit="s", bipartite=True))
    other = ContinualTrainer(SmoothedCounts(), trainer.graph)
    with pytest.raises(ValueError, match="the graph has 3 nodes and the stream has ids of 0"):
        other.run(open_stream(rows_of(names, 10), time_unit="s"))


def test_later_training_does_not_change_a_snapshot(monkeypatch):
    monkeypatch.setattr(EventLog, "piece", 64)
    trainer = trainer_of()
    for record in trainer.steps(pieces(made_events(280), 30)):
        if record.stop == 160:
            snapshot = trainer.checkpoint()
            then = copy.deepcopy(snapshot.sections), {k: x() for k, x in snapshot.sealed.items()}
            later = ckpt.Checkpoint({}, copies_later=True)
            trainer.save_to(later)
            assert not {"state", "events", "edge_x"} & later.sections.keys()
    later.sections.update({name: make() for name, make in later.later.items()})
    assert set(snapshot.sealed) == {"events-64-000000", "events-64-000001"}
    now = snapshot.sections, {name: make() for name, make in snapshot.sealed.items()}
    beside = later.sections, now[1]
    for before, after in zip(then * 2, now + beside, strict=True):
        assert before.keys() == after.keys()
        for part, tensors in before.items():
            assert all(torch.equal(x, after[part][name]) for name, x in tensors.items()), part


def test_failed_prediction_does_not_change_memory():
    events = made_events(200)
    events.x[105] = math.inf
    trainer = trainer_of(replay_ratio=0.0)
    with pytest.raises(TrainingDiverged):
        trainer.run([events])
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    assert trainer.model.state.state_dict()["rows"].isfinite().all()


def test_non_finite_parameters_always_stop_training():
    trainer = trainer_of()
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.fill_(math.nan)
    with pytest.raises(TrainingDiverged):
        trainer.run([made_events(1000)])
    assert trainer.position == 0
