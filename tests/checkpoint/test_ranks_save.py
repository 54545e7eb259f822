"""Checkpoints of ranks that are processes: as one saves them, and after one was killed."""

import os

import pytest
import torch

from helpers.savers import FEW, Savers, check, filler
from helpers.worlds import in_world, run_apart
from tgflow.checkpoint import Checkpoint, CheckpointStore, CheckpointWriter, load, read_manifest
from tgflow.checkpoint.ranks import FollowingStore, LeadingStore, Notices


def writer_of(peers, directory):
    """Return the writer of a rank of a real world."""
    notices = Notices(peers.store, peers, "checkpoint/")
    if peers.rank:
        store = FollowingStore(directory, notices)
    else:
        store = LeadingStore(CheckpointStore(directory), notices, timeout=20)
    return CheckpointWriter(store)


def save_in_a_world(peers, directory, steps):
    writer = writer_of(peers, directory)
    for step in steps:
        checkpoint = Checkpoint({}, shard=peers.shard)
        filler(step, FEW)(checkpoint)
        writer.wait()
        writer.submit(step, checkpoint)
    stats = writer.wait()
    peers.gather(torch.zeros(1), [1] * peers.world, kind="end")  # the store goes with its ranks
    return stats.saved, stats.failures


@pytest.mark.slow
def test_a_world_of_processes_saves_as_one_does(tmp_path):
    steps = (9, 14)
    assert in_world(3, save_in_a_world, tmp_path / "ranks", steps) == [(2, 0)] * 3
    Savers([tmp_path / "alone"]).save(14, filler(14, FEW))
    found = load(tmp_path / "ranks" / "ckpt-000000000014")
    check((14, found), 14, FEW)
    digests = [
        read_manifest(tmp_path / name / "ckpt-000000000014")["state_sha256"]
        for name in ("ranks", "alone")
    ]
    assert digests[0] == digests[1]


def die_before_the_manifest(peers, directory):
    """Save 9 well; end rank 0 before it writes the manifest of 14, once the others are done."""
    from helpers import faults

    save = writer_of(peers, directory)
    for step, spec in ((9, ""), (14, "checkpoint.before_manifest:1:kill")):
        if peers.rank == 0:
            faults.arm(spec)
        checkpoint = Checkpoint({}, shard=peers.shard)
        filler(step, FEW)(checkpoint)
        save.submit(step, checkpoint)
        if step == 9:
            save.wait()
    if peers.rank == 0:
        save.wait()
    else:
        Notices(peers.store, peers, "checkpoint/").find("2/1")


def test_killed_between_shares_and_manifest_leaves_the_old(tmp_path):
    outcomes = run_apart(2, die_before_the_manifest, tmp_path, joined=20)
    assert outcomes[0].code == -9
    unfinished = [name for name in sorted(os.listdir(tmp_path)) if name.startswith(".tmp-")]
    assert len(unfinished) == 1
    assert not (tmp_path / unfinished[0] / "manifest.json").exists()
    check(CheckpointStore(tmp_path).newest(), 9, FEW)
    assert sorted(os.listdir(tmp_path)) == ["ckpt-000000000009"]
