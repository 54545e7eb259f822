"""Ranks on devices: what they send from where, and steps that wait for no device."""

import threading
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers.devices import needs_apart, place_of
from helpers.effort import cases
from helpers.emulator import tensors
from helpers.made_streams import made_events, pieces, small_tgat, small_tgn
from helpers.ranks import in_threads
from helpers.worlds import in_world
from tgflow import ContinualConfig, ContinualTrainer, TemporalGraph
from tgflow.base.peers import PeerLost, Peers
from tgflow.cuda.device import device_of as device_at
from tgflow.ranks import group
from tgflow.ranks.control import Order
from tgflow.ranks.group import Ranks
from tgflow.ranks.parcel import exchange_parcels, specs_of
from tgflow.train import TrainingDiverged, captured


def device_of(kind):
    return tensors.emulated_device() if kind == "emulated" else torch.device(kind, 0)


def send_all(peers, kind):
    """Run every exchange with tensors on the device, which all ranks share."""
    device, world = device_of(kind), peers.world
    rows = torch.arange(6.0).reshape(2, 3)
    sent = {"rows": (rows + peers.rank).to(device), "flag": torch.ones(3, device=device).bool()}
    found = exchange_parcels(peers, "step", 3, [sent] * world, [specs_of(sent)] * world)
    for rank, each in enumerate(found):
        assert each["rows"].device == device
        assert torch.equal(each["rows"].cpu(), rows + rank)
        assert each["flag"].cpu().all()

    sizes = [rank + 1 for rank in range(world)]
    mine = torch.full((sizes[peers.rank],), peers.rank, device=device)
    gathered = peers.gather(mine, sizes, kind="rank")
    assert gathered.device == device
    expected = [rank for rank, size in enumerate(sizes) for _ in range(size)]
    assert gathered.cpu().tolist() == expected

    tensor = torch.full((2, 2), peers.rank + 5, device=device)
    peers.broadcast(tensor, kind="feed", group="feed")
    assert tensor.cpu().tolist() == [[5, 5], [5, 5]]


@pytest.mark.slow
@pytest.mark.skipif(not tensors.IS_THERE, reason="this PyTorch emulates no device")
def test_ranks_exchange_tensors_on_an_emulated_device():
    in_world(2, send_all, "emulated")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_two_ranks_share_one_gpu_over_gloo():
    in_world(2, send_all, "cuda", start="spawn")


def add(peers, number):
    """A rank's number and a given one."""
    return peers.rank + number


@pytest.mark.slow
def test_spawned_ranks_join_one_world():
    assert in_world(2, add, 5, start="spawn") == [5, 6]


class Sent:
    """Collectives of a world of two ranks that send the same, and their devices and groups."""

    def __init__(self, monkeypatch):
        self.found = []
        monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: None)
        monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0, 1])
        monkeypatch.setattr(dist, "new_group", lambda ranks, *, backend, **options: backend)
        monkeypatch.setattr(dist, "all_to_all_single", self.all_to_all)

    def all_to_all(self, arrived, here, received, sent, group):
        self.found.append((here.device.type, group))
        arrived.copy_(here)


@needs_apart[0]
def test_only_tensors_on_a_device_are_sent_from_it(monkeypatch):
    sent = Sent(monkeypatch)
    peers = Ranks(dist.HashStore(), 0, 2, timeout=9, nccl=True, group=object())
    device = tensors.emulated_device()
    mixed = {"order": torch.tensor([4]), "gradient": torch.arange(6.0).to(device)}
    with tensors.watching() as watch:
        found = exchange_parcels(peers, "step", 3, [mixed] * 2, [specs_of(mixed)] * 2)
    assert [each["order"].tolist() for each in found] == [[4], [4]]
    assert all(torch.equal(each["gradient"].cpu(), torch.arange(6.0)) for each in found)
    by_both = "cpu:gloo,cuda:nccl"
    assert sent.found == [("cpu", by_both), (tensors.TYPE, by_both)]
    assert watch.waits == []


class StubGroup:
    """A process group of a world whose other rank is lost."""

    def __init__(self, name, done):
        self.name, self.abort = name, partial(done.append, f"abort {name}")


@pytest.mark.parametrize("nccl", [False, True])
def test_transfers_of_devices_are_aborted_once_before_a_lost_rank_is_reported(nccl, monkeypatch):
    done = []

    def lose(tensor, group, **options):
        done.append(group.name)
        raise RuntimeError("Connection closed by peer")

    def opened(ranks, *, backend, **options):
        return StubGroup(backend, done)

    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: None)
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=StubGroup("world", done)))
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0, 1])
    monkeypatch.setattr(dist, "new_group", opened)
    monkeypatch.setattr(dist, "broadcast", lose)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: done.append("destroy"))
    monkeypatch.setattr(group, "_abort_process_group", lambda: done.append("abort all"))
    monkeypatch.setattr(Ranks, "_why", lambda self, first: done.append("ask why") or first)
    peers = Ranks(dist.HashStore(), 0, 2, timeout=9, nccl=nccl)
    for _ in range(2):
        with pytest.raises(PeerLost, match="Connection closed"):
            peers.broadcast(torch.ones(1), kind="feed", group="feed")
    peers.close()
    aborts = (["abort world"], ["abort all"]) if nccl else ([], ["destroy"])
    assert done == ["gloo", *aborts[0], "ask why", *aborts[1]]


CONFIG = ContinualConfig(
    batch_size=4, learning_rate=1e-2, mrr_negatives=3, slices=2, replay_ratio=0.5
)


_seeding = threading.Lock()
"""The seed of new models is that of the process."""


def trainer_on_device(peers, make=small_tgn, config=CONFIG):
    with _seeding:
        model = make().to(tensors.emulated_device())
    return ContinualTrainer(model, TemporalGraph("undirected", 2), config, peers=peers)


def learned_by(world, make):
    """Records, state and number of replays of each rank, in threads."""
    replays = []

    def learn(peers):
        with torch.autograd.set_multithreading_enabled(False):
            trainer = trainer_on_device(peers, make)
            records = [
                (record.stop, record.loss, record.metrics)
                for record in trainer.steps(pieces(made_events(60), 16))
            ]
            memory = {} if trainer.model.state is None else trainer.model.state.state_dict()
            state = [x.detach().cpu() for x in (*trainer.model.parameters(), *memory.values())]
            replays.append(trainer._learner._calls._graphs)
            return records, state

    place_of("apart")
    found = [learn(Peers())] if world == 1 else in_threads(world, learn)
    return found, [name for graphs in replays for name, *_ in graphs]


@needs_apart[0]
@pytest.mark.parametrize("make", cases([small_tgn, small_tgat], [small_tgn]))
def test_ranks_on_devices_match_one_process_with_captured_slices(make, monkeypatch):
    [(expected, state)], _ = learned_by(1, make)
    monkeypatch.setattr(captured, "WARM_UPS", 1)
    ranks, calls = learned_by(2, make)
    assert {"predict", "learn"} <= set(calls)
    assert ranks[0][0] == expected
    for records, found in ranks:
        assert [each[:2] for each in records] == [each[:2] for each in expected]
        assert all(map(torch.equal, found, state))


@needs_apart[0]
def test_step_of_a_rank_waits_for_no_device():
    place, meeting = place_of("apart"), threading.Barrier(2)

    def learn(peers):
        with torch.autograd.set_multithreading_enabled(False):
            steps = trainer_on_device(peers).steps(pieces(made_events(100), 16))
            next(steps)
            device_at(place).synchronized = 0
            meeting.wait(20)
            with tensors.watching() as watch:
                for _ in range(4):
                    next(steps)
                meeting.wait(20)
            synchronized = device_at(place).synchronized
            meeting.wait(20)
            list(steps)
        return watch.waits, synchronized

    assert in_threads(2, learn) == [([], 0)] * 2


@needs_apart[0]
def test_non_finite_value_on_one_device_stops_all_ranks_at_one_step():
    place_of("apart")

    def spoil(peers):
        trainer = trainer_on_device(peers, config=replace(CONFIG, replay_ratio=0.0))
        plain = trainer.model.forward

        def forward(batch):
            scores = plain(batch)
            is_bad = batch.slice.number == 1 and batch.index == 3 and not trainer.model.training
            return scores._replace(positive=scores.positive * (float("nan") if is_bad else 1.0))

        trainer.model.forward = forward
        with torch.autograd.set_multithreading_enabled(False):
            steps, stops = trainer.steps(pieces(made_events(100), 16)), []
            with pytest.raises(TrainingDiverged) as found:
                stops.extend(record.stop for record in steps)
        return stops, trainer.position, "on another rank" in str(found.value)

    assert in_threads(2, spoil) == [([4, 8, 12], 12, False), ([4, 8, 12], 12, True)]


@pytest.mark.slow
@needs_apart[0]
def test_ranks_on_devices_obey_an_order_after_the_same_micro_batch():
    place_of("apart")

    def obey(peers):
        """Request a checkpoint on the last rank; return where each was due, and when asked."""
        trainer, due, asked = trainer_on_device(peers), [], None
        with torch.autograd.set_multithreading_enabled(False):
            for record in trainer.steps(pieces(made_events(100), 16)):
                if not trainer.num_pending and Order.CHECKPOINT in trainer.control.order:
                    due.append((trainer.position, record.stop))
                    trainer.control.request = Order.NONE
                elif record.stop == 8 and peers.rank == 1:
                    trainer.control.request, asked = Order.CHECKPOINT, trainer.position
        return due, asked

    (due, _), (same, asked) = in_threads(2, obey)
    assert due == same
    assert all(position == stop for position, stop in due)
    assert due[0][0] > asked > 8
