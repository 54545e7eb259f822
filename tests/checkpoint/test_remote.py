"""Checkpoints at a URL: whole after a kill, fenced, cleaned, and fetched from an S3 server."""

from __future__ import annotations

import json
import random
import shutil

import pytest
import torch

from helpers.effort import slow
from helpers.s3 import BUCKET, s3_server
from tgflow.checkpoint import Checkpoint, CheckpointDamaged, CheckpointStore, UntrustedCheckpoint
from tgflow.checkpoint import remote as remotes
from tgflow.checkpoint.durable.errors import Locked
from tgflow.checkpoint.remote import RemoteStore, StoreUnavailable

SETTINGS = "config.toml"
OTHERS = (SETTINGS, "log")


class Killed(BaseException):
    """Ends a writer between two requests."""


class Run:
    """A run directory with checkpoints, and its store."""

    def __init__(self, path, url, **options):
        self.path, self.url, self.options = path, url, options
        (path / "log").mkdir(parents=True, exist_ok=True)
        (path / SETTINGS).touch()
        self.store = CheckpointStore(path / "checkpoints", keep=2)
        self.remote = self.opened()

    def opened(self):
        remote = RemoteStore(self.url, **({"keep": 2, "lease": 0.5, "timeout": 5} | self.options))
        remote.acquire(self.path)
        return remote

    def save(self, step):
        """Save a checkpoint: a section that changes, and pieces of a log that do not."""
        checkpoint = Checkpoint({"model": {"x": torch.full((100,), float(step))}})
        for i in range(step):
            checkpoint.sealed[f"piece-{i}"] = lambda i=i: {"x": torch.full((1000,), float(i))}
        path = self.store.save(step, checkpoint)
        (self.path / "log" / "0000000000.log").write_bytes(b"event " * step)
        return self.remote.save(self.path, path, OTHERS)


def fetched(url, path):
    """Return the value in the newest whole checkpoint of the store, None without one."""
    path.mkdir(exist_ok=True)
    remote = RemoteStore(url, lease=0.2, timeout=5)
    try:
        remote.acquire(path)
        if remote.fetch(path, SETTINGS) is None:
            return None
    finally:
        remote.release()
    step, checkpoint = CheckpointStore(path / "checkpoints").newest()
    assert (path / "log" / "0000000000.log").read_bytes() == b"event " * step
    for i in range(step):
        assert checkpoint.get(f"piece-{i}")["x"][0] == i
    assert checkpoint.get("model")["x"][0] == step
    return step


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path / "run", f"file://{tmp_path}/store")
    yield made
    made.remote.release()


@pytest.fixture(scope="module")
def s3():
    with pytest.MonkeyPatch.context() as patch, s3_server(patch) as server:
        yield server


@pytest.fixture
def s3_run(tmp_path, s3):
    s3.faults.clear()
    made = Run(tmp_path / "run", s3.url(tmp_path.name), lease=60)
    yield made
    s3.faults.clear()
    made.remote.release()


def test_fetch_restores_the_newest_checkpoint_and_the_files_beside_it(run, tmp_path):
    for step in (1, 2, 3):
        run.save(step)
    run.remote.release()
    assert fetched(run.url, tmp_path / "other") == 3


def test_pieces_are_sent_once(run):
    run.save(3)
    first = run.remote.save(run.path, run.store.entries()[-1].path, OTHERS)
    assert first.num_bytes == 0
    fourth = run.save(4)
    assert 3 * fourth.num_bytes < fourth.total_bytes  # one piece of four, and the model


def test_only_kept_checkpoints_stay(run, tmp_path):
    for step in range(1, 7):
        run.save(step)
    root = json.loads((tmp_path / "store" / "run.json").read_text())
    assert [each["step"] for each in root["snapshots"]] == [5, 6]
    names = {path.name for path in (tmp_path / "store" / "manifests").iterdir()}
    assert len(names) == 3  # those of the run.json before it too
    listed = {path.name for path in (tmp_path / "store" / "pieces").glob("*/*")}
    needed = set()
    for path in (tmp_path / "store" / "manifests").iterdir():
        for pieces in json.loads(path.read_text()).values():
            needed |= {piece[2] for piece in pieces}
    assert listed == needed


@pytest.mark.parametrize("seed", [0, *map(slow, range(1, 5))])
def test_kill_between_two_requests_leaves_the_newest_whole_checkpoint(tmp_path, monkeypatch, seed):
    draw, done, killed, url = random.Random(seed), 0, 0, f"file://{tmp_path}/store"
    real, left = RemoteStore._put, [0]

    def put(self, key, chunks):
        if key != "lease.json":
            left[0] -= 1
            if left[0] < 0:
                raise Killed
        real(self, key, chunks)

    monkeypatch.setattr(RemoteStore, "_put", put)
    run = Run(tmp_path / "run", url)
    for step in range(1, 9):
        left[0] = draw.choice([draw.randrange(step + 6), 1000])
        try:
            run.save(step)
            done = step
        except Killed:
            killed += 1
        run.remote.stop()  # the lease stays, as after a kill
        run.remote._renewing.join()
        assert (fetched(url, tmp_path / f"other-{step}") or 0) == done
        run.remote = run.opened()
    run.remote.release()
    assert done
    assert killed


def test_interrupted_fetch_is_repeated(run, tmp_path, monkeypatch):
    run.save(3)
    run.remote.release()
    real, left = RemoteStore._get, [4]

    def get(self, key, sha256, to):
        left[0] -= 1
        if not left[0]:
            raise Killed
        real(self, key, sha256, to)

    monkeypatch.setattr(RemoteStore, "_get", get)
    with pytest.raises(Killed):
        fetched(run.url, tmp_path / "other")
    assert not (tmp_path / "other" / SETTINGS).exists()
    assert fetched(run.url, tmp_path / "other") == 3


def test_object_replaced_while_it_is_read_is_read_again(run, tmp_path, monkeypatch):
    run.save(1)
    path, whole = tmp_path / "store" / "run.json", []
    real = json.loads

    def loads(data):
        if not whole and b'"snapshots"' in data:
            whole.append(data)
            data = data[:-5]
        return real(data)

    monkeypatch.setattr(remotes.json, "loads", loads)
    assert run.remote._read_root()["snapshots"] == real(path.read_text())["snapshots"]
    monkeypatch.undo()
    path.write_text("{")
    with pytest.raises(CheckpointDamaged, match=r"run\.json is damaged"):
        run.remote._read_root()


def test_fetch_refuses_a_directory_with_files(run, tmp_path):
    run.save(1)
    run.remote.release()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(FileExistsError, match="fetches to an empty one"):
        fetched(run.url, tmp_path / "other")


def test_damaged_checkpoint_is_skipped(run, tmp_path):
    run.save(1)
    run.save(2)
    run.remote.release()
    root = json.loads((tmp_path / "store" / "run.json").read_text())
    (tmp_path / "store" / root["snapshots"][-1]["key"]).write_text("{}")
    assert fetched(run.url, tmp_path / "other") == 1
    shutil.rmtree(tmp_path / "store" / "pieces")
    with pytest.raises(CheckpointDamaged, match="has no whole checkpoint"):
        fetched(run.url, tmp_path / "another")


def test_manifest_that_names_a_file_outside_is_refused(run, tmp_path):
    run.save(1)
    files = run.remote._files[run.remote.newest.key]
    files["../outside.txt"] = files[SETTINGS]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UntrustedCheckpoint, match="names a file"):
        run.remote.fetch(tmp_path / "empty", SETTINGS)


def test_second_writer_is_refused_while_the_first_one_lives(run, tmp_path):
    run.save(1)
    with pytest.raises(Locked, match="is written by process"):
        fetched(run.url, tmp_path / "other")
    run.save(2)


def test_silent_writer_is_replaced_and_then_refused(run, tmp_path):
    run.save(1)
    run.remote.stop()  # as if it was suspended: it renews its lease no longer
    run.remote._renewing.join()
    assert fetched(run.url, tmp_path / "other") == 1
    second = Run(tmp_path / "other", run.url)
    second.save(2)
    with pytest.raises(Locked, match="which has replaced this one"):
        run.save(3)
    second.save(3)
    second.remote.release()
    assert fetched(run.url, tmp_path / "third") == 3


def test_restart_in_the_same_directory_need_not_wait(run):
    run.save(1)
    again = RemoteStore(run.url, lease=3600, timeout=5)
    again.acquire(run.path)
    again.release()


def test_lasting_failure_is_reported_after_the_timeout(run, monkeypatch):
    run.save(1)
    warned = []

    def put(self, key, chunks):
        raise OSError("the cable is cut")

    run.remote.warn, run.remote._retry_seconds = warned.append, 0.5
    monkeypatch.setattr(RemoteStore, "_put", put)
    with pytest.raises(StoreUnavailable, match="the cable is cut; once the store is there again"):
        run.save(2)
    assert any("is repeated" in text for text in warned)
    assert run.remote.newest.step == 1


def test_large_files_that_grow_are_sent_in_pieces(run, tmp_path, monkeypatch):
    monkeypatch.setattr(remotes, "PIECE_BYTES", 100)
    run.save(50)
    assert run.save(51).num_bytes < run.save(52).total_bytes
    run.remote.release()
    assert fetched(run.url, tmp_path / "other") == 52


def test_server_with_lost_responses_slow_parts_and_stale_lists(s3, s3_run, tmp_path):
    draw = random.Random(3)
    s3.faults.lists_are_stale = True
    s3.faults.loses = lambda method, path: method != "HEAD" and draw.random() < 0.02
    s3.faults.seconds = lambda method, path: 0.2 if draw.random() < 0.1 else 0.0
    for step in (1, 2, 3):
        s3_run.save(step)
    s3_run.remote.release()
    assert fetched(s3_run.url, tmp_path / "other") == 3


@pytest.mark.slow
def test_server_that_refuses_ends_with_store_unavailable(s3, s3_run, tmp_path):
    s3_run.save(1)
    s3.faults.refuses = lambda method, path: method == "PUT"
    s3_run.remote._retry_seconds = 0.1
    with pytest.raises(StoreUnavailable, match="failed for"):
        s3_run.save(2)
    s3.faults.clear()
    s3_run.remote.release()
    assert fetched(s3_run.url, tmp_path / "other") == 1
    assert s3.system().get_file_info(f"{BUCKET}/{tmp_path.name}/run.json").size > 0
