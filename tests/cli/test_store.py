"""`tgflow run --store`: resume on another machine, refusals and exit codes."""

from __future__ import annotations

import json
import shutil

import pytest

from helpers.campaign import SMALL, write_rows
from tgflow.checkpoint.remote import RemoteStore
from tgflow.cli.errors import LOCKED, UNAVAILABLE, USAGE


@pytest.fixture
def ran(tgflow):
    """Run `tgflow ARGS` and check its exit code."""

    def run(*args, code=0):
        done = tgflow(*args)
        assert done.code == code, done.err
        return done

    return run


@pytest.fixture
def flags(tmp_path):
    rows = write_rows(tmp_path / "rows.csv", 400)
    order = ["--late", "dead_letter", "--allowed-lateness", "30", "--max-time-jump", "100000"]
    return ["run", "-s", str(rows), *SMALL, *order, "--checkpoint-batches", "2", "--json"]


@pytest.fixture
def store(tmp_path):
    return ["--store", f"file://{tmp_path}/store", "--set", "store.lease=300ms"]


def test_run_moves_to_another_directory_with_the_same_bits(ran, flags, store, tmp_path):
    whole = json.loads(ran(*flags, "--out", str(tmp_path / "whole")).out)
    ran(*flags, *store, "--out", str(tmp_path / "first"), "--limit", "160")
    shutil.rmtree(tmp_path / "first")
    resumed = ["run", "--resume", "--json", *store, "--limit", "100000"]
    second = json.loads(ran(*resumed, "--out", str(tmp_path / "second")).out)
    assert second["state_sha256"] == whole["state_sha256"]
    assert second["num_events"] == whole["num_events"]
    assert second["store"]["uploads"] >= 1
    log = (tmp_path / "second" / "run.log").read_text()
    assert "resumes at event 160" in log
    assert f"is in file://{tmp_path}/store" in log


def test_store_of_another_run_is_refused(ran, flags, store, tmp_path):
    ran(*flags, *store, "--out", str(tmp_path / "first"))
    refused = ran(*flags, *store, "--out", str(tmp_path / "second"), code=USAGE)
    assert "holds another run" in refused.err


def test_directory_behind_its_store_is_refused(ran, flags, store, tmp_path):
    ran(*flags, *store, "--out", str(tmp_path / "first"), "--limit", "160")
    shutil.copytree(tmp_path / "first", tmp_path / "old")
    resumed = ["run", "--resume", *store, "--limit", "100000"]
    ran(*resumed, "--out", str(tmp_path / "first"))
    refused = ran(*resumed, "--out", str(tmp_path / "old"), code=USAGE)
    assert "is ahead, with ckpt-" in refused.err


def test_second_writer_is_refused(ran, flags, store, tmp_path):
    (tmp_path / "other").mkdir()
    held = RemoteStore(store[1], lease=0.3)
    held.acquire(tmp_path / "other")
    try:
        refused = ran(*flags, *store, "--out", str(tmp_path / "first"), code=LOCKED)
    finally:
        held.release()
    assert "is written by process" in refused.err


def test_lasting_failure_of_the_store_ends_the_run(ran, flags, store, tmp_path, monkeypatch):
    real = RemoteStore._put

    def put(self, key, chunks):
        if key.startswith("pieces/"):
            raise OSError("the cable is cut")
        real(self, key, chunks)

    monkeypatch.setattr(RemoteStore, "_put", put)
    out = ["--out", str(tmp_path / "first")]
    failed = ran(*flags, *store, *out, "--set", "store.timeout=300ms", code=UNAVAILABLE)
    assert "the cable is cut; once the store is there again, resume the run" in failed.err
    monkeypatch.setattr(RemoteStore, "_put", real)
    ran("run", "--resume", *store, *out)
    assert json.loads((tmp_path / "store" / "run.json").read_text())["snapshots"]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--store", "s3://key:secret@bucket/run"], "must not hold credentials"),
        (["--store", "what://bucket/run"], "cannot be opened"),
        (["--store", "file:///s", "--edge-table", "disk", "--edge-path", "x"], "--edge-path"),
    ],
)
def test_unusable_store_is_refused(ran, flags, tmp_path, more, text):
    refused = ran(*flags, *more, "--out", str(tmp_path / "run"), code=USAGE)
    assert text in refused.err
