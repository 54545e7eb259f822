"""The training bench at tiny sizes: rows well formed, peers optional, turns fair."""

import math
import time
from dataclasses import replace
from importlib.metadata import PackageNotFoundError

import pytest
import torch

import benchmarks.train
import benchmarks.train_models
from benchmarks import peers, train_device
from benchmarks.own_models import (
    own_dygformer,
    own_graphmixer,
    own_jodie,
    own_tgn_with_pairs,
    own_tpnet,
)
from benchmarks.race import Laps, link_loss, race
from helpers.effort import slow
from helpers.emulator.device import EmulatedDevice
from tgflow.bench import setup, train
from tgflow.bench.setup import Options
from tgflow.bench.train import Task, graph_on, own_tgat, own_tgn
from tgflow.events import EventBatch


def made_task(num_events: int = 120, batch_size: int = 10) -> Task:
    draw = torch.Generator().manual_seed(0)
    src = torch.randint(8, (num_events,), generator=draw)
    dst = 8 + src % 3
    t = torch.arange(num_events) * 5
    x = torch.randn(num_events, 6, generator=draw)
    events = EventBatch(src, dst, t, x)
    return Task(events, 100, batch_size=batch_size, dim=8, neighbors=3, lr=1e-2)


class Counting:
    """A contender that notes whose turn it was."""

    def __init__(self, name: str, turns: list[str], num_batches: int) -> None:
        self.name, self.turns, self.left = name, turns, num_batches

    def train(self, num_batches: int) -> list[float]:
        self.turns.append(self.name)
        size = min(num_batches, self.left)
        self.left -= size
        return [float(self.left)] * size

    def evaluate(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([1.0]), torch.tensor([0.0])


def test_contenders_take_turns_and_the_slow_one_gets_fewer_batches():
    turns: list[str] = []
    laps = {
        "fast": Laps(Counting("fast", turns, 10), 4, 10),
        "slow": Laps(Counting("slow", turns, 10), 1, 10),
    }
    race(laps, 10, Options())
    laps["fast"].evaluate()
    assert turns == ["fast", "slow"] * 3
    assert [len(laps["fast"].losses), len(laps["slow"].losses)] == [10, 3]
    assert laps["fast"].held_out_ap == 1.0
    assert laps["fast"].losses == [6.0] * 4 + [2.0] * 4 + [0.0] * 2


def test_the_first_turn_warms_up_unless_it_is_the_only_one():
    assert Laps(Counting("", [], 0), 1, 1, turns=[1.0, 5.0, 7.0]).median == 6
    assert Laps(Counting("", [], 0), 1, 1, turns=[1.0]).median == 1


def test_link_loss_of_knowing_nothing_is_twice_log_two():
    assert float(link_loss(torch.zeros(3), torch.zeros(3))) == pytest.approx(2 * math.log(2))


@pytest.mark.parametrize(
    "make",
    [
        *(slow(own_tgn), own_tgn_with_pairs, own_tgat),
        *(own_jodie, own_graphmixer, own_dygformer, own_tpnet),
    ],
)
def test_own_models_train_on_the_task(make):
    own = make(made_task())
    speed, losses = train.train_in_turns(own, Options())
    assert len(losses) == own.task.num_batches
    assert all(math.isfinite(loss) for loss in losses)
    assert speed > 0
    positive, negative = own.evaluate()
    assert len(positive) == len(negative) == 20
    assert 0 < own.torch_seconds < own.seconds


@pytest.mark.parametrize(
    "peer",
    [*peers.TGN, *peers.TGAT, *peers.GRAPHMIXER, *peers.DYGFORMER, *peers.TPNET],
    ids=lambda peer: peer.adapter,
)
def test_peers_run_the_same_task_where_they_are_installed(peer):
    contender = peers.load(peer, made_task())
    if contender == peer.not_installed:
        pytest.skip(f"{peer.library} is {contender}")
    assert not isinstance(contender, str), contender
    losses = contender.train(4) + contender.train(100)
    assert len(losses) == made_task().num_batches
    assert all(math.isfinite(loss) for loss in losses)
    positive, negative = contender.evaluate()
    assert len(positive) == len(negative) == 20


def test_without_peers_the_rows_say_how_to_get_them(monkeypatch):
    def not_installed(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(peers, "version", not_installed)
    params = {"stream": "made"}
    rows = benchmarks.train.tgn_rows(made_task(), params, Options())
    rows += benchmarks.train.tgat_rows(made_task(), params, Options())
    rows += benchmarks.train_models.jodie_rows(made_task(), params, Options())
    rows += benchmarks.train_models.tgn_with_pairs_rows(made_task(), params, Options())
    rows += benchmarks.train_models.graphmixer_rows(made_task(), params, Options())
    rows += benchmarks.train_models.rows_without_features(made_task(), params, Options())
    skipped = [row for row in rows if "skipped" in row.params]
    assert [row.params["library"] for row in skipped] == [
        *("torch_geometric", "tgm-lib", "tglite"),
        *("tgm-lib", "tglite"),
        *(4 * ["tgm-lib"]),
    ]
    ways_in = {row.params["library"]: row.params["skipped"] for row in skipped}
    assert ways_in == {
        "torch_geometric": "not installed: pip install 'tgflow-learn[bench]'",
        "tgm-lib": "not installed: pip install 'tgflow-learn[bench]'",
        "tglite": "not installed: build it from its sdist, see tests/benchmarks/peers/tglite.py",
    }
    assert all(math.isnan(row.value) and row.ratio is None for row in skipped)
    assert "TGN training, times the faster peer" not in {row.name for row in rows}
    targets = {row.name: row.target for row in rows}
    assert targets["JODIE training, times TGN"] == 2
    assert targets["TGN+pairs training, times TGN"] == pytest.approx(10 / 11)
    measured = [row for row in rows if "skipped" not in row.params]
    assert all(math.isfinite(row.value) and row.unit is not None for row in measured)
    assert {row.params.get("library", "tgflow") for row in measured} == {"tgflow"}


def test_models_are_measured_without_their_peers():
    rows = train.train(Options(quick=True, events=2_000))
    assert [row.name for row in rows[:2]] == ["TGN training", "TGN training step, share in torch"]
    assert rows[-1].name == "TGAT training"
    assert all(math.isfinite(row.value) for row in rows)
    assert "library" not in rows[0].params


def test_the_task_numbers_destinations_after_sources():
    task = train.task_of(setup.wikipedia()[:500])
    assert len(task.events) == 500
    assert int(task.events.src.max()) < int(task.events.dst.min())
    assert task.train_stop == 425
    assert task.events.x_dim == train.X_DIM


def test_training_on_a_device_is_measured_for_each_batch_size(monkeypatch):
    monkeypatch.setattr(train, "DEVICE_BATCHES", (8,))
    monkeypatch.setattr(train_device, "DEVICE_BATCHES", (8,))
    monkeypatch.setattr(train, "DEVICE_TARGETS", {"TGN": (1.0,), "TGAT": (3.0,)})
    monkeypatch.setattr(train_device, "BESIDE_BATCH", 8)
    monkeypatch.setattr(train_device, "APPENDED", 50)
    monkeypatch.setattr(train_device, "APPENDS_A_SECOND", 5)
    given = made_task(120), {}, EmulatedDevice(), Options(quick=True)
    rows = [*train.device_rows(*given), *train_device.ahead_rows(*given)]
    beside = train_device.beside_row(*given)
    assert [(row.name, row.params["batch"], row.target) for row in rows] == [
        ("TGN training on the device", 8, 1.0),
        ("TGAT training on the device", 8, 3.0),
        *(2 * [("epoch with look-ahead", 8, 2.0)]),
    ]
    assert all(row.value > 0 for row in rows)
    assert beside.params["appended/s"] > 0


def test_batches_of_4000_of_the_standard_stream_are_enough_to_be_timed():
    num_batches = int(train.TRAIN_SHARE * len(setup.wikipedia())) // max(train.DEVICE_BATCHES)
    assert num_batches > 2 * train.DEVICE_WARM_UP


def test_a_pass_begins_where_training_began():
    own = own_tgn(made_task())
    first = [float(loss) for loss in own.steps(5)]
    own = own_tgn(made_task())
    own.learner.optimizer.param_groups[0]["lr"] = 0.0
    assert float(next(own.steps(10))) == first[0]
    list(own.steps(10))
    own.rewind()
    assert float(next(own.steps(10))) == first[0]


def test_appends_beside_training_raise_what_they_met():
    graph = graph_on("cpu", 6)
    graph.append(made_task().events)
    with train_device.appending(graph, made_task().events) as appended:
        while not appended.num_events:
            time.sleep(0.001)
    assert graph.num_events == 120 + appended.num_events
    with (
        pytest.raises(ValueError, match="x"),
        train_device.appending(graph, replace(made_task().events, x=None)),
    ):
        pass


def test_learning_a_stream_on_a_device_is_measured():
    row = train.live_row(made_task(), {}, EmulatedDevice(), Options(quick=True))
    assert (row.params["negatives"], row.params["replay"], row.target) == (20, 0.5, 0.2e6)
    assert row.value > 0
