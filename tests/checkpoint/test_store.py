"""Checkpoints round-trip; the newest valid one is found, and only what is needed is kept."""

import dataclasses
import errno
import itertools
import json
import os
import shutil
import threading
import weakref
from collections import Counter

import numpy as np
import pytest
import torch

from helpers.devices import apart, cuda, place_of
from helpers.forged import sign_manifest
from tgflow import checkpoint as ckpt
from tgflow.checkpoint import (
    Checkpoint,
    CheckpointDamaged,
    CheckpointDurabilityUnknown,
    CheckpointNotCommitted,
    CheckpointStore,
    CheckpointVersion,
    CheckpointWriter,
    NoValidCheckpoint,
    UntrustedCheckpoint,
)
from tgflow.checkpoint import store as store_module
from tgflow.checkpoint import tensors as encoding
from tgflow.checkpoint.durable.errors import DiskFull, Fenced
from tgflow.checkpoint.durable.fs import RealFs
from tgflow.checkpoint.durable.lock import RunLock

PIECE = 4


def at(step, *, meta=None):
    """Return the checkpoint of a run in which every fourth step seals a section of events."""
    events = torch.arange(step)
    pieces = step // PIECE
    return Checkpoint(
        {"model": {"w": torch.full((3,), float(step))}, "events": {"t": events[pieces * PIECE :]}},
        {"step": step, **(meta or {})},
        {
            f"events-{i:04d}": lambda i=i: {"t": events[i * PIECE : (i + 1) * PIECE].clone()}
            for i in range(pieces)
        },
    )


def check(step, found):
    assert found[0] == step
    sections, pieces = found[1].sections, step // PIECE
    assert found[1].meta["step"] == step
    assert sections["model"]["w"].tolist() == [step] * 3
    t = torch.cat(
        [
            *(found[1].sealed[f"events-{i:04d}"]()["t"] for i in range(pieces)),
            sections["events"]["t"],
        ]
    )
    assert t.tolist() == list(range(step))


def names(directory):
    return sorted(os.listdir(directory))


def inode(path, name):
    return (path / f"{name}.safetensors").stat().st_ino


def test_newest_checkpoint_is_loaded(tmp_path):
    store = CheckpointStore(tmp_path / "a" / "checkpoints")
    assert store.newest() is None
    assert store.oldest_kept() is None
    for step in (3, 5, 9):
        path = store.save(step, at(step))
        assert path.name == f"ckpt-{step:012d}"
        check(step, store.newest())
        check(step, CheckpointStore(store.directory).newest())
    assert store.oldest_kept()["step"] == 3
    assert store.size_of(path) == sum(file.stat().st_size for file in path.glob("*.safetensors"))


def test_sealed_sections_are_hard_linked_and_not_rewritten(tmp_path):
    store = CheckpointStore(tmp_path)
    first = store.save(9, at(9))
    again = at(13)

    def never():
        raise AssertionError

    again.sealed.update({"events-0000": never, "events-0001": never})
    second = store.save(13, again)
    assert inode(first, "events-0000") == inode(second, "events-0000")
    check(13, store.newest())
    other = CheckpointStore(tmp_path)  # a new process does not trust existing files
    third = other.save(14, at(14))
    assert inode(second, "events-0000") != inode(third, "events-0000")
    other = CheckpointStore(tmp_path)
    other.newest()
    assert inode(third, "events-0000") == inode(other.save(15, at(15)), "events-0000")


def test_sealed_files_are_written_once_and_go_with_the_last_checkpoint_that_has_them(tmp_path):
    fs, written = RealFs(), []
    create = fs.create
    fs.create = lambda path: (written.append(path.name), create(path))[1]
    store = CheckpointStore(tmp_path, keep=3, fs=fs)
    for step in range(4, 30):
        made = at(step)
        sealed = {k: v for k, v in made.sealed.items() if int(k[-4:]) >= (step - 12) // PIECE}
        store.save(step, dataclasses.replace(made, sealed=sealed))
        assert [entry.step for entry in store.entries()] == [*range(max(4, step - 2), step + 1)]
        assert len({file.name for file in tmp_path.rglob("events-*")}) <= 5
    assert max(Counter(name for name in written if name.startswith("events-")).values()) == 1


def test_saving_a_step_again_replaces_only_changed_files(tmp_path):
    store = CheckpointStore(tmp_path)
    path = store.save(9, at(9))
    inodes = path.stat().st_ino
    assert store.save(9, at(9)) == path
    assert path.stat().st_ino == inodes
    assert CheckpointStore(tmp_path).save(9, at(9)) == path
    changed = store.save(9, at(9, meta={"seed": 8}))
    assert names(tmp_path) == [changed.name] == ["ckpt-000000000009-1"]
    assert store.newest()[1].meta["seed"] == 8
    (changed / "model.safetensors").write_bytes(b"")
    again = store.save(9, at(9, meta={"seed": 8}))
    assert names(tmp_path) == [again.name, f"corrupt-{changed.name}"]
    check(9, store.newest())


def damages(path):
    """Yield every kind of damage to a checkpoint: its name, and a function that applies it."""
    for file in sorted(path.iterdir()):
        data = file.read_bytes()
        places = {0, 5, 9, 40, len(data) // 2, len(data) - 1}
        for place in sorted(place for place in places if place < len(data)):
            flipped = data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :]
            yield f"{file.name} byte {place}", file, flipped
        yield f"{file.name} cut", file, data[:-1]
        yield f"{file.name} longer", file, data + b" "
        yield f"{file.name} empty", file, b""
        yield f"{file.name} missing", file, None


def test_every_kind_of_damaged_checkpoint_is_set_aside(tmp_path):
    store = CheckpointStore(tmp_path / "sound")
    store.save(5, at(5))
    for name, file, data in damages(CheckpointStore(tmp_path / "sound").save(9, at(9))):
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "sound", copy)
        target = copy / file.relative_to(store.directory)
        target.unlink() if data is None else target.write_bytes(data)
        found = CheckpointStore(copy)
        check(5, found.newest())
        assert names(copy) == ["ckpt-000000000005", "corrupt-ckpt-000000000009"], name
        assert "ckpt-000000000009 was set aside" in found.problems[0]
        assert str(file.name) in found.problems[0]
        shutil.rmtree(copy)


def test_only_damaged_checkpoints_are_refused_repeatedly(tmp_path):
    store = CheckpointStore(tmp_path)
    for step in (5, 9):
        (store.save(step, at(step)) / "model.safetensors").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(NoValidCheckpoint, match="no valid checkpoint, only corrupt-ckpt"):
            CheckpointStore(tmp_path).newest()


class Failing(RealFs):
    """Fails the `when`-th call of an operation, counted from 1."""

    def __init__(self, name, when=1, code=errno.EIO):
        inner, calls = getattr(self, name), itertools.count(1)

        def call(*args):
            if next(calls) == when:
                raise OSError(code, os.strerror(code))
            return inner(*args)

        setattr(self, name, call)


@pytest.mark.parametrize(
    ("code", "error"),
    [(errno.EIO, CheckpointNotCommitted), (errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull)],
)
@pytest.mark.parametrize("name", ["make_directory", "create", "rename", "sync_directory"])
def test_uncommitted_checkpoint_changes_nothing(tmp_path, name, code, error):
    CheckpointStore(tmp_path).save(5, at(5))
    store = CheckpointStore(tmp_path, fs=Failing(name, code=code))
    with pytest.raises(error):
        store.save(9, at(9))
    assert names(tmp_path) == ["ckpt-000000000005"]
    store.save(10, at(10))
    check(10, CheckpointStore(tmp_path).newest())


def test_older_checkpoints_are_kept_until_the_new_one_is_durable(tmp_path):
    first = CheckpointStore(tmp_path)
    for step in (3, 4):
        first.save(step, at(step))
    store = CheckpointStore(tmp_path, keep=1, fs=Failing("sync_directory", 2))
    store.newest()
    with pytest.raises(CheckpointDurabilityUnknown, match="may not survive a crash"):
        store.save(5, at(5))
    assert [entry.step for entry in store.entries()] == [3, 4, 5]
    store.save(6, at(6))
    assert [entry.step for entry in store.entries()] == [6]


def test_outside_files_are_durable_before_a_checkpoint_is_complete(tmp_path):
    checkpoint = at(2)

    def fail():
        [unfinished] = tmp_path.glob(".tmp-*")
        assert not (unfinished / "manifest.json").exists()
        raise OSError(errno.EIO, "no")

    checkpoint.outside.append(fail)
    with pytest.raises(CheckpointNotCommitted):
        CheckpointStore(tmp_path).save(2, checkpoint)
    assert names(tmp_path) == []


def test_checkpoint_writer_saves_during_training(tmp_path):
    go = threading.Event()
    store = CheckpointStore(tmp_path)
    writer = CheckpointWriter(store)
    slow = at(5)
    slow.sealed["events-0009"] = lambda: (go.wait(20), {"x": torch.ones(1)})[1]
    assert writer.submit(5, slow)
    assert writer.busy
    assert not writer.submit(6, at(6))
    go.set()
    assert writer.wait().last_step == 5
    assert writer.submit(7, at(7))
    stats = writer.wait()
    assert (stats.last_step, stats.saved, stats.failures) == (7, 2, 0)
    assert [entry.step for entry in store.entries()] == [5, 7]
    assert stats.num_bytes > 0
    assert stats.last_path == store.entries()[-1].path


def test_copies_end_with_a_save_before_free_memory_is_released(tmp_path, monkeypatch):
    go, released = threading.Event(), []
    monkeypatch.setattr(store_module, "release_free", lambda: released.append(copy() is None))

    def take():
        go.wait(20)
        return {"x": torch.ones(1)}

    writer, checkpoint, copy = CheckpointWriter(CheckpointStore(tmp_path)), at(5), weakref.ref(take)
    checkpoint.later["memory"] = take
    assert writer.submit(5, checkpoint)
    del checkpoint, take
    go.set()
    writer.wait()
    assert released == [True]


def test_checkpoint_of_a_process_that_lost_the_run_is_not_resumed_from(tmp_path):
    path, directory = tmp_path / ".lock", tmp_path / "checkpoints"
    old = RunLock(path)
    before = CheckpointStore(directory, lock=old)
    before.save(3, at(3))
    path.write_text(json.dumps({"pid": 1, "host": "h1", "machine": "another", "since": "2026"}))
    new = RunLock(path, lease=0.1)
    after = CheckpointStore(directory, lock=new)
    after.save(5, at(5))
    with pytest.raises(Fenced):
        before.save(9, at(9))
    assert names(directory) == [f"ckpt-{step:012d}" for step in (3, 5)]
    CheckpointStore(directory).save(9, at(9))  # one that had passed its check
    check(5, after.newest())
    assert "was written by a process that had lost the run" in after.problems[0]
    old.release()
    new.release()


def test_empty_tensors_of_numpy_are_saved(tmp_path):
    """Their stride is 0, so that they have no view as bytes."""
    tensors = {"empty": torch.from_numpy(np.sort(np.empty(0))), "one": torch.ones(1)}
    store = CheckpointStore(tmp_path)
    store.save(1, Checkpoint({"x": tensors}))
    found = store.newest()[1].get("x")
    assert (found["empty"].shape, found["one"].tolist()) == ((0,), [1.0])


def example():
    shared = torch.arange(6.0).view(2, 3)
    return Checkpoint(
        {
            "model": {"w": shared, "tied": shared, "t": shared.T, "none": torch.empty(0, 4)},
            "events": {"src": torch.tensor([2**62, 0]), "flag": torch.tensor(True)},
            "empty": {},
        },
        {"seed": 7, "config": {"lr": 1e-4, "kinds": ["random"], "clip": None}},
    )


def test_sections_round_trip_and_are_read_on_demand(tmp_path):
    """Digests are checked on load, or only later; a copy of a loaded checkpoint is equal."""
    saved = example()
    saved.put_part("memory", 7, lambda: {"x": torch.arange(3)})
    saved.put_sealed("events-2-000000", lambda: {"x": torch.arange(2)})
    path = ckpt.save(tmp_path / "runs" / "a", saved)
    loaded = ckpt.load(path)
    assert loaded.meta == example().meta == ckpt.read_manifest(path)["meta"]
    assert loaded.sections.keys() == example().sections.keys()
    for section, tensors in example().sections.items():
        assert loaded.sections[section].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(loaded.sections[section][name], tensor)
    assert loaded.get("memory-p07")["x"].tolist() == [0, 1, 2]
    copy = ckpt.save(tmp_path / "b", loaded)
    first, second = (ckpt.read_manifest(each)["state_sha256"] for each in (path, copy))
    assert first == second
    for name in ("memory-p07", "events-2-000000"):
        ckpt.save(path, saved)
        (path / f"{name}.safetensors").write_bytes(b"no tensors")
        with pytest.raises(CheckpointDamaged, match=name):
            ckpt.load(path)
        found = ckpt.load(path, check_all=False)
        with pytest.raises(CheckpointDamaged, match=name):
            found.get(name)


@pytest.mark.parametrize(
    ("sections", "meta", "message"),
    [({"../evil": {}}, {}, "section '../evil' must match"), ({}, {"loss": float("nan")}, "JSON")],
)
def test_unsupported_values_are_refused(tmp_path, sections, meta, message):
    with pytest.raises(ValueError, match=message):
        ckpt.save(tmp_path / "c", Checkpoint(sections, meta))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"format": 3}, CheckpointVersion, "has format 3, this tgflow reads 2"),
        ({"format": True}, CheckpointVersion, "has format True"),
        ({"files": None}, UntrustedCheckpoint, "files is None, expected dict"),
    ],
)
def test_malformed_manifests_are_refused(tmp_path, change, error, message):
    path = ckpt.save(tmp_path / "c", example())
    (path / "manifest.json").write_bytes(sign_manifest(ckpt.read_manifest(path) | change))
    with pytest.raises(error, match=message):
        ckpt.load(path)


@pytest.mark.parametrize("device", ["cpu", apart, cuda])
def test_section_bytes_do_not_depend_on_the_device(device, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK_BYTES", 1 << 10)
    section = {"long": torch.randn(40, 13), "flag": torch.tensor(True), "none": torch.zeros(0, 4)}
    there = {name: x.to(place_of(device)) for name, x in section.items()}
    expected, found = encoding.encode(section), encoding.encode(there)
    assert b"".join(map(bytes, found.chunks())) == b"".join(map(bytes, expected.chunks()))
    assert found.num_bytes == sum(map(len, expected.chunks()))
