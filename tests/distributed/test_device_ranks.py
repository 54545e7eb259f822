"""Device tensors are sent from and received on the device; gloo stages them on the host."""

from __future__ import annotations

import pytest
import torch

from helpers.emulator import tensors
from helpers.worlds import in_world
from tgflow.distributed.parcel import exchange_parcels, specs_of


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
