"""Checkpoints of ranks that are processes: as one saves them, and after one was killed."""

import os

from helpers.savers import FEW, check, filler
from helpers.worlds import run_apart
from tgflow.checkpoint import Checkpoint, CheckpointStore, CheckpointWriter
from tgflow.checkpoint.ranks import FollowingStore, LeadingStore, Notices


def writer_of(peers, directory):
    """Return the writer of a rank of a real world."""
    notices = Notices(peers.store, peers, "checkpoint/")
    if peers.rank:
        store = FollowingStore(directory, notices)
    else:
        store = LeadingStore(CheckpointStore(directory), notices, timeout=20)
    return CheckpointWriter(store)


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
