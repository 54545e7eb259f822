"""Failures during a run: exit code, message, and the checkpoint that is kept."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import faults
from helpers.live_runs import SMALL, act_at, same_run, write_events
from tgflow.checkpoint import CheckpointStore, CheckpointWriter, load
from tgflow.checkpoint.durable.errors import DiskFull
from tgflow.cli import main
from tgflow.run import monitoring as watch
from tgflow.streams.errors import SourceCorrupt, SourceExpired, SourceUnavailable
from tgflow.streams.files.reader import FileSource
from tgflow.train.finite import TrainingDiverged
from tgflow.train.step import TrainStep

STEP = ("--checkpoint-batches", 1)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with events and the undisturbed run."""
    folder = tmp_path_factory.mktemp("made")
    write_events(folder / "made.csv")
    run = ["run", "-s", folder / "made.csv", "-o", folder / "whole", *SMALL]
    assert main([str(arg) for arg in run]) == 0
    return folder


def health():
    return json.loads(Path("out/health.json").read_text())


# The stream


@pytest.mark.parametrize(
    ("kind", "code"), [(SourceUnavailable, 75), (SourceExpired, 66), (SourceCorrupt, 76)]
)
def test_failing_source_keeps_everything_learned(run, monkeypatch, kind, code):
    poll, polls = FileSource.poll, []

    def failing(self, wanted, timeout):
        polls.append(time.monotonic())
        if len(polls) > 3 and polls[-1] - polls[0] > 0.5:
            raise kind("made.csv", "gone", "it is gone")
        return poll(self, wanted, timeout) if len(polls) < 3 else []

    monkeypatch.setattr(FileSource, "poll", failing)
    monkeypatch.setattr(FileSource, "ended", lambda self: set())
    ran = run()
    assert (ran.code, ran.err.splitlines()[-1]) == (code, "tgflow: made.csv: it is gone")
    assert health()["state"] == "failed"
    assert health()["position"] == health()["checkpoint"]["position"] > 300


@pytest.mark.parametrize("num_bad", [510, 490])
def test_too_many_bad_rows_end_a_run_with_a_checkpoint(tgflow, tmp_path, num_bad):
    rows, size = ["src,dst,t"], 10_000
    for i in range(size):
        is_bad = (i + 1) * num_bad // size != i * num_bad // size
        rows.append(f"{i % 50},{50 + i % 40},{'x' if is_bad else i}")
    (tmp_path / "bad.csv").write_text("\n".join(rows) + "\n")
    flags = ("-s", "bad.csv", "--dim", 8, "--neighbors", 2, "--batch-size", 2500, "--threads", 1)
    ran = tgflow("run", *flags, "-o", "out")
    if num_bad < 500:
        assert ran.code == 0
        assert "10,000 rows read: 9,510 accepted, 490 malformed" in ran.out
        assert "time_type" in ran.out
        return
    assert ran.code == 65
    assert "are bad, more than --max-bad-ratio 0.05" in ran.err
    assert list(Path("out/checkpoints").glob("ckpt-*"))
    assert tgflow("run", *flags, "-o", "out", "--resume").code == 65
    ran = tgflow("run", "-o", "out", "--resume", "--max-bad-ratio", 0.1, "--json")
    assert ran.json["rows"]["malformed"] == num_bad
    assert len(Path("out/dead-letters/000000.jsonl").read_text().splitlines()) == num_bad


HOSTILE = "\x1b[2J\x1b]0;owned\x07<script>alert(1)</script>[red]"


def test_contents_of_bad_rows_are_escaped_everywhere(tgflow, tmp_path):
    rows = [f"{i % 9},{9 + i % 7},{i}" for i in range(200)]
    rows[150] = f'"{HOSTILE}",5,150'  # behind the rows that decide the kind of ids
    rows[60] = f"1,2,{HOSTILE}"
    (tmp_path / "hostile.csv").write_text("src,dst,t\n" + "\n".join(rows) + "\n")
    ran = tgflow("run", "-s", "hostile.csv", "-o", "out", "--late", "drop", *SMALL)
    assert ran.code == 0
    told = tgflow("info", "out")
    written = [path.read_text() for path in Path("out").glob("*.*") if path.is_file()]
    for text in (ran.out, ran.err, told.out, tgflow("info", "out", "--json").out, *written):
        assert "\x1b" not in text
        assert "\x07" not in text
    assert "200 rows read: 198 accepted, 2 malformed" in told.out
    report = Path("out/report.html").read_text()
    assert "<script>alert" not in report
    assert "rejected: " in report


# The disk


@pytest.mark.parametrize(
    "fault", ["checkpoint.before_file:1:enospc", "checkpoint.before_file:1:eio",
              "log.before_append:1:enospc"]
)  # fmt: skip
def test_one_failed_write_does_not_stop_the_training(run, made, fault):
    faults.arm(fault)
    assert run(*STEP).code == 0
    same_run(made / "whole", Path("out"))


def fill_disk(monkeypatch, after):
    """Let no checkpoint after the first few be written; return the steps of all."""
    save, calls = CheckpointStore.save, []

    def full(self, step, checkpoint):
        calls.append(step)
        if len(calls) > after:
            raise DiskFull("no room for a checkpoint", self.directory)
        return save(self, step, checkpoint)

    monkeypatch.setattr(CheckpointStore, "save", full)
    return calls


def test_offline_training_continues_after_failed_checkpoints(tgflow, made, monkeypatch):
    calls, flags = fill_disk(monkeypatch, 1), ("--epochs", 4, "--checkpoint-every", 1e-9, *SMALL)
    ran = tgflow("train", "-s", made / "made.csv", "-o", "out", *flags)
    assert (ran.code, len(calls), ran.err.count("training continues")) == (0, 5, 4)
    assert "RuntimeWarning" not in ran.err


def test_three_failed_checkpoints_in_a_row_stop_the_training(run, monkeypatch):
    calls = fill_disk(monkeypatch, 1)

    def wait(writer):
        """Finish each checkpoint before the next micro-batch, on any disk."""
        if writer._thread is not None:
            writer._thread.join()
        return False

    monkeypatch.setattr(CheckpointWriter, "busy", property(wait))
    ran = run(*STEP, "--no-log")
    assert ran.code == 74
    assert "no room for a checkpoint" in ran.err
    assert len(calls) == 4
    assert "training continues" in Path("out/run.log").read_text()
    assert [p.name for p in Path("out/checkpoints").iterdir()] == [f"ckpt-{calls[0]:012d}"]


# The model, the memory


def test_non_finite_loss_ends_a_run(run, monkeypatch):
    learn = TrainStep.learn

    def diverging(self, batch, **settings):
        if batch.index == 5:
            raise TrainingDiverged("events [250, 300): the loss is nan; lower it", (250, 300))
        return learn(self, batch, **settings)

    monkeypatch.setattr(TrainStep, "learn", diverging)
    ran = run("--checkpoint-batches", 2)
    assert ran.code == 70
    assert "events [250, 300): the loss is nan" in ran.err
    assert "a fault in tgflow" not in ran.err
    assert "events [250, 300)" in health()["reason"]
    newest = max(Path("out/checkpoints").glob("ckpt-*"))
    assert load(newest).meta["position"] in (100, 150, 200, 250)  # depends on the disk's speed
    assert all(x.isfinite().all() for x in load(newest).sections["model"].values())


def test_run_at_its_memory_limit_exits_with_71_and_resumes_with_more(run, made, monkeypatch):
    full = []

    def fill(_):
        full.append(1)
        time.sleep(0.6)

    with monkeypatch.context() as patched:
        act_at(patched, 150, fill)
        patched.setattr("tgflow.run.monitoring.anonymous_bytes", lambda: 960 if full else 100)
        patched.setattr(watch, "GRACE_SECONDS", 0.2)
        ran = run("--memory-limit", "1000")
    assert ran.code == 71
    assert "of --memory-limit" in ran.err
    assert "memory is short" in ran.err
    newest = max(Path("out/checkpoints").glob("ckpt-*"))
    assert load(newest).meta["position"] == health()["position"]
    assert run("--memory-limit", "100GiB", "--resume").code == 0
    same_run(made / "whole", Path("out"))


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "train --epochs 1",
        "compare --models recency",
        "compare --models recency --protocol dyglib/1",
    ],
)
def test_stream_without_events_is_reported(tgflow, tmp_path, command):
    Path("none.csv").write_text("src,dst,t\n")
    ran = tgflow(*command.split(), "-s", "none.csv", "-o", "out")
    assert (ran.code, ran.err.splitlines()[-1]) == (
        66,
        "tgflow: none.csv has no events: there is nothing to learn from",
    )
    if command == "run":  # the run continues once there are events
        write_events(Path("none.csv"))
        assert tgflow("run", "--resume", "-o", "out").code == 0


OWN_MODEL = """
import torch
import tgflow as tg

class Own(tg.TGAT):
    def forward(self, batch):
        {fault}
"""


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("raise ValueError('too wide')", "ValueError: too wide"),
        ("return batch.nothing", "AttributeError: 'Batch' object has no attribute 'nothing'"),
        ("return torch.zeros(3) @ torch.zeros(2)", "RuntimeError: inconsistent tensor size"),
        ("return (", "SyntaxError: '(' was never closed"),
    ],
)
def test_fault_of_an_own_model_names_its_file_and_line(tgflow, made, monkeypatch, fault, text):
    monkeypatch.delitem(sys.modules, "own", raising=False)
    Path("own.py").write_text(OWN_MODEL.format(fault=fault))
    ran = tgflow("run", "-s", made / "made.csv", "-m", "./own.py:Own", "-o", "out", "--threads", 1)
    said = ran.err.splitlines()[-1]
    assert ran.code == 70
    assert f"{Path('own.py').absolute()}, line 7: {text}" in said
    assert "a fault in tgflow" not in ran.err


def test_own_model_without_a_required_attribute_is_refused(tgflow, made, monkeypatch):
    monkeypatch.delitem(sys.modules, "bare", raising=False)
    Path("bare.py").write_text("import tgflow as tg\n\nclass Bare(tg.TemporalModel):\n    pass\n")
    ran = tgflow("run", "-s", made / "made.csv", "-m", "./bare.py:Bare", "-o", "out")
    assert ran.code == 2
    assert "bare:Bare lacks fanouts and strategy; see tgflow.TemporalModel" in ran.err


def test_missing_folder_of_scores_is_made(run):
    assert run("--scores", "new/folder/scores.csv", "--limit", 50).code == 0
    assert len(Path("new/folder/scores.csv").read_text().splitlines()) == 51


SIGNALED_IN_IMPORT = """
import os, sys

class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), int(sys.argv[2]))

sys.meta_path.insert(0, Interrupts())
from tgflow.cli import main
sys.exit(main(["run", "made.csv", "-o", "out"]))
"""


@pytest.mark.parametrize("module", ["typer", "torch"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_signal_during_imports_ends_without_a_traceback(made, module, number, code):
    command = [sys.executable, "-c", SIGNALED_IN_IMPORT, module, str(int(number))]
    ended = subprocess.run(command, cwd=made, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", "")


def test_each_line_of_stderr_is_one_write(tmp_path):
    """So that lines of ranks on one terminal do not run together, also without buffers."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # a packet a write
    command = [sys.executable, "-u", "-m", "tgflow", "run", "away.csv"]
    subprocess.run(command, cwd=tmp_path, stderr=theirs, check=False)
    theirs.close()
    packets = [*iter(lambda: ours.recv(1 << 16), b"")]
    ours.close()
    assert packets
    assert all(packet.endswith(b"\n") for packet in packets)
