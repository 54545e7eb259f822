"""Labels that come after their events, in training: exact on replay and resume, learned, judged."""

from dataclasses import replace

import pytest
import torch

from helpers.devices import (
    apart,
    cuda,
    place_of,
    without_autograd_threads,  # noqa: F401
)
from helpers.effort import slow
from helpers.made_streams import by_feature, seeded, small_tgn
from tgflow import ContinualConfig, ContinualTrainer, TemporalGraph, open_run
from tgflow.checkpoint import Checkpoint, CheckpointStore, CheckpointWriter
from tgflow.graph.events import NO_LABEL, LateLabels
from tgflow.graph.log import Added, EventLog, Horizon
from tgflow.train.config import ExecutionConfig
from tgflow.train.tasks import LabelTask, TaskConfig

SETTINGS = {"batch_size": 20, "learning_rate": 1e-2, "mrr_negatives": 5}
SIZE = 300


def events_without(every=3):
    """Events of which each third has a label of its own."""
    events = by_feature(SIZE)
    return replace(events, label=events.label.where(torch.arange(SIZE) % every == 0, NO_LABEL))


def late_stream(seed=0, size=25):
    """Events in pieces, and between them the labels of earlier ones, some wrong and corrected."""
    events, truth, g = events_without(), by_feature(SIZE).label, torch.Generator().manual_seed(seed)
    waiting = [eid for eid in range(SIZE) if eid % 3]
    for start in range(0, SIZE, size):
        yield events[start : start + size]
        due = [eid for eid in waiting if eid < start - 40]
        for eid in due[: int(torch.randint(30, (), generator=g))]:
            waiting.remove(eid)
            wrong = int(torch.rand((), generator=g) < 0.1)
            late = int(torch.randint(-300, 900, (), generator=g))
            t = int(events.t[min(start + size, SIZE) - 1]) + late
            yield LateLabels([eid], [-truth[eid] if wrong else truth[eid]], [t])
            if wrong:
                waiting.append(eid)


def trainer_of(
    delay=None,
    *,
    execution=None,
    updates=1,
    replay_ratio=0.5,
    threads=1,
    device="cpu",
    horizon=None,
    forgets=True,
    **changes,
):
    task = TaskConfig(kind="edge", target="label", classes=2, label_delay=delay, **changes)
    model = small_tgn(dropout=0.1)
    seeded(lambda: LabelTask(task).add_decoder(model, 2))
    config = ContinualConfig(
        **SETTINGS, task=task, updates=updates, replay_ratio=replay_ratio, num_threads=threads
    )
    graph = TemporalGraph("undirected", 2, horizon=horizon)
    if not forgets:
        graph.forget = lambda first: None
    return ContinualTrainer(model.to(device), graph, config, execution=execution)


def state_of(trainer):
    """Return all tensors of a checkpoint, and its notes but for clocks."""
    found = trainer.checkpoint()
    sections = {name: make() for name, make in found.sealed.items()} | found.sections
    notes = {k: v for k, v in found.meta.items() if k not in ("progress", "config")}
    if "edge_x" in sections:  # features of forgotten events are kept or not
        sections["edge_x"] = {"x": sections["edge_x"]["x"][found.meta["first"] :]}
    return {(s, n): x for s, parts in sections.items() for n, x in parts.items()}, notes


def assert_same(left, right):
    (tensors, notes), (others, own) = state_of(left), state_of(right)
    assert notes == own
    assert tensors.keys() == others.keys()
    for name, x in tensors.items():
        assert torch.equal(x, others[name]), name


def added_labels(trainer):
    """Return a list to which the late labels of a trainer's stream are added, and where."""
    log, found = trainer.graph.log, []
    log.add_labels = lambda late: found.append((len(log), late)) or log.late.add(late)
    return found


def recorded(log, labels):
    """Return the stream of the events of a log, one by one, with labels where they were added."""
    for position in range(len(log) + 1):
        yield from (late for at, late in labels if at == position)
        if position < len(log):
            yield log.read(position, position + 1)


def with_features(stream, start=0):
    """Return the events of a stream with their features, from a log position on."""
    x, at = by_feature(SIZE).x, 0
    for part in stream:
        if isinstance(part, LateLabels):
            if at >= start:
                yield part
            continue
        first, at = at, at + len(part)
        if at > start:
            rest = max(start - first, 0)
            yield replace(part[rest:], x=x[first + rest : at])


CASES = [
    slow(None, {}),
    slow("20m", {"label_memory": 1 << 15}),
    slow("20m", {"updates": 2}),
    slow(None, {"horizon": Horizon(96)}),
    ("20m", {"horizon": Horizon(ticks=3000)}),
    slow("20m", {"horizon": Horizon(96), "label_memory": 1 << 15}),
]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(EventLog, "piece", 20)


@pytest.mark.parametrize(("delay", "changes"), CASES)
def test_late_labels_give_the_bits_of_a_replay_of_their_recorded_positions(delay, changes):
    """Whatever the pieces, prefetching and threads, and the moment of freeing."""
    live = trainer_of(delay, forgets=False, **changes)
    labels = added_labels(live)
    live.run(late_stream())
    assert len(live.graph.log.late) > 30
    beside = ExecutionConfig(beside=True)
    again = trainer_of(delay, execution=beside, threads=0, **changes)
    again.run(with_features(recorded(live.graph.log, labels)))
    assert_same(live, again)
    assert live.result()["prequential.edge.ap"] == again.result()["prequential.edge.ap"]
    if "horizon" in changes:
        assert again.graph.log.first > 100
        assert again.graph.log.late.first >= 20
        assert again.result()["prequential.edge.late.too_late"] > 10
        other = trainer_of(delay, **changes | {"horizon": None})
        other.run(late_stream())
        assert other.result()["prequential.edge.ap"] != again.result()["prequential.edge.ap"]


@pytest.mark.parametrize(("delay", "changes"), CASES)
def test_resume_with_late_labels_matches_an_undisturbed_run(delay, changes, tmp_path):
    whole = trainer_of(delay, forgets=False, **changes)
    labels = added_labels(whole)
    whole.run(late_stream())
    first = trainer_of(delay, **changes)
    for record in first.steps(late_stream()):
        if record.stop == 160:
            break
    store = CheckpointStore(tmp_path / "checkpoints")
    writer = CheckpointWriter(store)
    assert writer.submit(160, first.checkpoint())
    assert writer.wait().last_step == 160
    _, checkpoint = store.newest()
    model = trainer_of(delay, **changes).model
    second = ContinualTrainer.from_checkpoint(model, checkpoint)
    assert second.position == 160
    second.run(with_features(recorded(whole.graph.log, labels), 160))
    assert_same(whole, second)
    assert whole.result()["prequential.edge.ap"] == second.result()["prequential.edge.ap"]


@pytest.mark.usefixtures("without_autograd_threads")
@pytest.mark.parametrize("device", [apart, cuda])
def test_late_labels_on_a_device_match_the_cpu(device):
    """Inputs and predictions reach the host later, which changes nothing but rounding."""
    trainers = [trainer_of("20m", device=place) for place in ("cpu", place_of(device))]
    expected, found = (trainer.run(late_stream()) for trainer in trainers)
    for key in ("judged", "pending", "corrected"):
        assert found[f"prequential.edge.late.{key}"] == expected[f"prequential.edge.late.{key}"]
    out, on_device = (trainer.model.label_decoder.out.weight.cpu() for trainer in trainers)
    # 15 Adam steps of 0.01; float16 inputs and float32 sums round differently
    assert torch.allclose(out, on_device, atol=2e-3)


def test_checkpoint_has_labels_added_from_python():
    trainer = trainer_of()
    trainer.run([events_without()])
    truth = by_feature(SIZE).label
    unknown = [eid for eid in range(SIZE) if eid % 3]
    assert trainer.add_labels(eid=unknown, label=truth[unknown]) == Added(200, 0, 0)
    model = trainer_of().model
    again = ContinualTrainer.from_checkpoint(model, trainer.checkpoint())
    assert_same(trainer, again)
    more = replace(by_feature(SIZE), t=by_feature(SIZE).t + 10**6)
    for each in (trainer, again):
        each.run([more])
    assert_same(trainer, again)
    assert trainer.result()["prequential.edge.late.judged"] == 200


def test_labels_are_added_by_the_ids_and_times_of_their_events():
    trainer = trainer_of()
    events = events_without()
    trainer.run([events])
    rows = [1, 4, 7]
    named = {"src": events.src[rows], "dst": events.dst[rows], "t": events.t[rows]}
    assert trainer.add_labels(**named, label=[1, -1, None]) == Added(3, 0, 0)
    assert trainer.add_labels(**named, label=[1, 1, None], time=int(events.t[-1])) == Added(0, 1, 2)
    assert trainer.graph.log.late.read(0, 4)["eid"].tolist() == [1, 4, 7, 4]
    assert open_run(trainer).known_labels(torch.tensor([1, 4, 7, 0, 2])) == [
        *(1, 1, None),
        int(events.label[0] > 0) or -1,
        None,
    ]
    with pytest.raises(ValueError, match="label 1 is of no event; the log has 300 events"):
        trainer.add_labels(src=[1, 1], dst=[13, 13], t=[int(events.t[1]), 5], label=[1, 1],
                           eid=[1, 300])  # fmt: skip
    with pytest.raises(ValueError, match="name the events by eid=, or by src="):
        trainer.add_labels(src=[1], label=[1])
    twice = replace(events[:2], src=events.src[:1].repeat(2), dst=events.dst[:1].repeat(2),
                    t=events.t[-1:].repeat(2) + 9)  # fmt: skip
    trainer.run([twice])
    with pytest.raises(ValueError, match="label 0 is of several events: give eid="):
        trainer.add_labels(src=twice.src[:1], dst=twice.dst[:1], t=twice.t[:1], label=[1])
    assert len(trainer.graph.log.late) == 4


def test_figures_judge_what_was_predicted_before_the_label_came():
    """Late labels give the figures of own ones, for the same predictions; others are counted."""
    events = by_feature(SIZE)
    plain = trainer_of("3650d", label_replay=0.0)
    plain.run([events])
    late = trainer_of("3650d", label_replay=0.0)
    late.run([events_without(), LateLabels([1, 2], [NO_LABEL, -1], [0, 0])])
    expected, found = plain.result(), late.result()
    assert found["prequential.edge.late.pending"] == 200
    rest = [eid for eid in range(SIZE) if eid % 3]
    t = int(events.t[-1])
    delay = torch.tensor([3000] * 100 + [100_000] * 100)
    late.add_labels(eid=rest, label=events.label[rest], time=(events.t[rest] + delay).tolist())
    more = replace(events, t=events.t + 200_000)[:20]
    for each in (plain, late):
        each.run([more])
    expected, found = plain.result(), late.result()
    assert found["prequential.edge.late.pending"] == 0
    assert found["prequential.edge.late.judged"] == 200
    assert found["prequential.edge.late.too_late"] == 0
    for key in ("accuracy", "ap", "auc"):
        assert found[f"prequential.edge.{key}"] == pytest.approx(
            expected[f"prequential.edge.{key}"], abs=0.02
        )
    assert 2700 < found["prequential.edge.late.delay_median"] < 3300
    assert 9e4 < found["prequential.edge.late.delay_p90"] < 1.1e5
    assert t


def test_label_that_comes_after_its_prediction_was_dropped_is_counted():
    trainer = trainer_of(label_memory=4096)
    trainer.run([events_without()])
    trainer.add_labels(eid=[1, 298], label=[1, 1])
    trainer.run([replace(by_feature(20), t=by_feature(20).t + 10**6)])
    found = trainer.result()
    assert found["prequential.edge.late.judged"] + found["prequential.edge.late.too_late"] == 2
    assert isinstance(trainer.checkpoint(), Checkpoint)


@pytest.mark.parametrize(("delay", "changes"), [("20m", {}), (None, {"label_replay": 0.0})])
def test_decoder_learns_late_labels_from_kept_inputs(delay, changes):
    """Own ones after their delay, and others, without replay of events."""
    trainer = trainer_of(delay, replay_ratio=0.0, **changes)
    events = by_feature(SIZE)
    unknown = replace(events, label=torch.full_like(events.label, NO_LABEL))
    first = [
        unknown[:100],
        LateLabels(torch.arange(60), events.label[:60], events.t[99].expand(60)),
    ]
    trainer.run(first if delay is None else [events[:20]])
    out = trainer.model.label_decoder.out.weight
    assert not out.any(), "no label is known yet"
    trainer.run([unknown[100:140] if delay is None else events[20:140]])
    assert out.any()


def test_label_of_an_event_before_the_horizon_is_refused_and_counted():
    trainer = trainer_of(horizon=Horizon(96))
    trainer.run([events_without()])
    assert trainer.add_labels(eid=[1, 299], label=[1, 1]) == Added(1, 0, 0, 1)
    trainer.run([replace(by_feature(20), t=by_feature(20).t + 10**6)])
    found = trainer.result()
    assert found["prequential.edge.late.judged"] == found["prequential.edge.late.too_late"] == 1
    assert "prequential.edge.majority.ap" not in found, "of the events before the horizon, too"


def test_labels_that_are_known_at_once_need_no_space():
    trainer = trainer_of()
    trainer.run([by_feature(100)])
    sections = trainer.checkpoint().sections
    assert not [name for name in sections if name.startswith(("label_", "late_"))]
    trainer.run([replace(events_without(), t=events_without().t + 10**6)])
    sections = trainer.checkpoint().sections
    assert {"label_inputs", "label_predictions", "late_figures"} <= sections.keys()
