"""Sharded checkpoints: written by all ranks, committed by one, independent of the writers."""

import errno
import os
import signal
import threading
import time
import warnings

import pytest
import torch

from helpers.crash_states import Quick, RecordingFs, explore, of
from helpers.ranks import thread_peers
from helpers.worlds import run_apart
from tgflow.base.peers import PARTS, PeerLost
from tgflow.checkpoint import Checkpoint, CheckpointStore, CheckpointWriter, read_manifest
from tgflow.checkpoint.checkpoint import part_section
from tgflow.checkpoint.durable.fs import RealFs
from tgflow.checkpoint.sections import put_pieces
from tgflow.ranks.parcel import broadcast_json
from tgflow.ranks.saves import FollowingStore, LeadingStore

PIECE = 4
ALL = range(PARTS)
FEW = (0, 63)
"""Labels of the first and the last rank."""


def filler(step, parts=ALL):
    """Return a function that fills a checkpoint of `step` events with every kind of section."""

    def fill(writer):
        writer.note("step", step)
        writer.put("model", {"w": torch.full((3,), float(step))})
        writer.put("reorder", {"t": torch.rand(2)}, volatile=True)
        for part in parts:
            writer.put_part("memory", part, lambda part=part: {"x": torch.tensor([step, part])})
        events = torch.arange(step)
        put_pieces(writer, "events", PIECE, step, lambda a, b: {"t": events[a:b].clone()})

    return fill


def check(found, step, parts=ALL):
    """Raise unless a step and checkpoint match those of `filler`."""
    assert found[0] == step
    checkpoint = found[1]
    assert checkpoint.meta == {"step": step}
    assert checkpoint.get("model")["w"].tolist() == [step] * 3
    for part in parts:
        assert checkpoint.get(part_section("memory", part))["x"].tolist() == [step, part]
    pieces = [checkpoint.get(f"events-{PIECE}-{i:06d}")["t"] for i in range(step // PIECE)]
    assert torch.cat([*pieces, checkpoint.get("events")["t"]]).tolist() == list(range(step))


class Savers:
    """The writers of all ranks of a world; `store` has settings of rank 0's `CheckpointStore`."""

    def __init__(self, directories, fs=lambda rank: None, **store):
        places = [*directories]
        self.peers = thread_peers(len(places))
        self.leader = CheckpointStore(places[0], fs=fs(0), **store)
        self.stores = [
            LeadingStore(self.leader, self.peers[0]),
            *(
                FollowingStore(place, self.peers[rank], fs=fs(rank))
                for rank, place in enumerate(places)
                if rank
            ),
        ]
        self.writers = [CheckpointWriter(store) for store in self.stores]

    def submit(self, step, fill):
        """Start saving the checkpoint of `fill` on all ranks."""
        for peers, writer in zip(self.peers, self.writers, strict=True):
            checkpoint = Checkpoint({}, shard=peers.shard)
            fill(checkpoint)
            writer.wait()
            assert writer.submit(step, checkpoint)

    def save(self, step, fill):
        """Save, and return the path; None if it failed. Raises errors of the writers."""
        self.submit(step, fill)
        stats = self.wait()[0]
        return stats.last_path if stats.last_step == step else None

    def wait(self):
        """Return the results of all ranks after pending saves. Raises errors of the writers."""
        return [writer.wait() for writer in self.writers]


def savers(directory, world, **settings):
    return Savers([directory] * world, **settings)


def share(peers, step, parts=FEW):
    """Return a rank's share of the checkpoint of a step."""
    checkpoint = Checkpoint({}, shard=peers.shard)
    filler(step, parts)(checkpoint)
    return checkpoint


def names(directory):
    return sorted(os.listdir(directory))


class Failing(RealFs):
    """Raises an error at a given number of writes."""

    def __init__(self, code=errno.ENOSPC):
        self.code, self.left, self.created = code, 0, []

    def create(self, path):
        self.created.append(path.name)
        return super().create(path)

    def write(self, fd, data):
        if self.left > 0:
            raise OSError(self.code, os.strerror(self.code))
        super().write(fd, data)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_checkpoint_files_and_digest_do_not_depend_on_the_writer(tmp_path, world):
    alone = Checkpoint({})
    filler(13)(alone)
    expected = read_manifest(CheckpointStore(tmp_path / "alone").save(13, alone))
    manifest = read_manifest(savers(tmp_path / "ranks", world).save(13, filler(13)))
    assert manifest["state_sha256"] == expected["state_sha256"]
    assert manifest["files"].keys() == expected["files"].keys()
    del manifest["files"]["reorder.safetensors"], expected["files"]["reorder.safetensors"]
    assert manifest["files"] == expected["files"]
    check(CheckpointStore(tmp_path / "ranks").newest(), 13)


def test_every_rank_writes_its_shard_and_links_existing_sections(tmp_path):
    disks = [Failing() for _ in range(4)]
    ranks = savers(tmp_path, 4, fs=disks.__getitem__)
    ranks.save(17, filler(17))
    for rank, disk in enumerate(disks):
        parts = {f"memory-p{part:02d}.safetensors" for part in range(16 * rank, 16 * rank + 16)}
        others = {"model", "reorder", "events"} if rank == 0 else set()
        others = {f"{name}.safetensors" for name in others | {f"events-4-{rank:06d}"}}
        assert {*disk.created} == parts | others | ({"manifest.json"} if rank == 0 else set())
        disk.created.clear()
    check(CheckpointStore(tmp_path).newest(), 17)
    ranks.save(21, filler(21))
    assert [name for disk in disks for name in disk.created if name.startswith("events-")] == [
        "events-4-000004.safetensors"
    ]
    check(CheckpointStore(tmp_path).newest(), 21)


@pytest.mark.parametrize("when", ["create", "rename"])
def test_failure_at_rank_0_is_counted_by_all_ranks(tmp_path, when):
    class Refusing(RealFs):
        refuses = False

    def refuse(self, path, *more):
        if self.refuses:
            raise OSError(errno.EACCES, "not today")
        return getattr(RealFs, when)(self, path, *more)

    setattr(Refusing, when, refuse)
    disk = Refusing()
    ranks = savers(tmp_path, 2, fs=[disk, None].__getitem__)
    ranks.save(5, filler(5, FEW))
    disk.refuses = True
    with pytest.warns(RuntimeWarning, match="no checkpoint at step 6.*not today"):
        assert ranks.save(6, filler(6, FEW)) is None
    assert [writer.stats.failures for writer in ranks.writers] == [1, 1]
    assert names(tmp_path) == ["ckpt-000000000005"]
    disk.refuses = False
    assert ranks.save(7, filler(7, FEW)) is not None


def save_with_a_lost_rank(peers, folder):
    """Save on two ranks, of which one ends within the save."""
    checkpoint = Checkpoint({}, shard=peers.shard)
    filler(5)(checkpoint)
    if peers.rank:
        broadcast_json(peers, group="save")
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(PeerLost, match=r"rank 1 \(process \d+ on .* did not respond within 2 s"):
        LeadingStore(CheckpointStore(folder), peers).save(5, checkpoint)
    return time.monotonic() - start


def test_save_ends_when_another_rank_is_lost(tmp_path):
    leader, follower = run_apart(2, save_with_a_lost_rank, tmp_path, joined=60.0)
    assert follower.code == -signal.SIGKILL
    assert leader.result < 10, leader.error
    assert CheckpointStore(tmp_path).newest() is None


def check_after_crash(state, directory):
    """Raise unless the newest checkpoint is valid, and the last acknowledged one or newer."""
    store = CheckpointStore(directory, fs=Quick())
    found, saved = store.newest(), of(state.notes, "saved")
    assert not store.problems
    if found is None:
        assert not saved
    else:
        assert max(saved, default=0) <= found[0]
        check(found, found[0], FEW)


class Together(RecordingFs):
    """Operations of two ranks, in order."""

    def __init__(self, root, fail=lambda text: None):
        super().__init__(root, fail)
        self._turn = threading.RLock()

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name not in PATHS:
            return found

        def call(*args):
            with self._turn:
                return found(*args)

        return call


PATHS = {
    *("create", "write", "sync", "close", "make_directory", "link", "rename", "unlink"),
    *("remove_directory", "sync_directory", "note"),
}


def test_every_crash_state_of_two_writers_is_old_or_new(record_property, tmp_path):
    root = tmp_path / "checkpoints"
    root.mkdir()
    fs = Together(root, lambda text: failing and "p63" in text and refuse())
    failing = False
    ranks = savers(root, 2, fs=lambda rank: fs, keep=1)
    for step in (5, 7, 9):
        failing = step == 7  # a failed write of rank 1 keeps the existing files
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            saved = ranks.save(step, filler(step, FEW))
        assert (saved is None) == failing
        if saved:
            fs.note(f"saved {step}")
    num = explore(fs, check_after_crash, tmp_path / "copy")
    record_property("crash states of two writers", num)
    assert num > 100


def refuse():
    raise OSError(errno.EIO, os.strerror(errno.EIO))
