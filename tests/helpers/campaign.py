"""Command line runs in separate processes, killed at random and resumed."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from helpers.live_runs import same_run
from helpers.processes import WarmProcess, children_of, environment, is_there

KILLS = int(os.environ.get("TGFLOW_KILLS", "4"))
SEED = int(os.environ.get("TGFLOW_SEED", "1"))
BATCH = 40
SMALL = ["--dim", "8", "--neighbors", "3", "--batch-size", str(BATCH), "--threads", "1"]
KEPT = ["--checkpoint-batches", "3"]
HORIZON = ["--horizon-events", "96"]
LATE = ["--allowed-lateness", "30", "--late", "dead_letter", "--max-time-jump", "100000"]
FROM_TOPIC = [
    *("--allowed-lateness", "30", "--max-time-jump", "100000"),
    *("--kafka-option", "api_version=[2,3]", "--kafka-option", "fetch_max_wait_ms=50"),
]
FROM_KAFKA = [*FROM_TOPIC, "--until-end"]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


@dataclass
class Campaign:
    """A run that is restarted repeatedly; `flags` lack --out and --resume."""

    out: Path
    flags: list[str]
    seed: int = 0
    command: str = "run"
    faults: str = ""
    """Fault spec of the process, for `helpers.faults.arm`."""
    kills: int = 0
    at: list[int] = field(default_factory=list)
    """Micro-batches recorded before each kill."""

    def __post_init__(self):
        if HORIZON[0] in self.flags:
            self.faults = "pieces"
        self.random = random.Random(self.seed)

    def start(self):
        """Start or resume."""
        program = ["helpers.faults", self.faults] if self.faults else ["tgflow"]
        command = [*program, self.command, *self.flags, "--out", str(self.out), "--resume"]
        return WarmProcess(command, ENVIRONMENT)

    def batches(self):
        """Return the number of recorded micro-batches."""
        try:
            return (self.out / "metrics.jsonl").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def kill_once(self, most_batches=8, timeout=120.0):
        """Resume, and kill within the next micro-batches; False if it finishes before."""
        child = self.start()
        deadline = time.monotonic() + timeout
        if self.random.random() < 0.2:  # while it starts, or recovers
            deadline = time.monotonic() + self.random.uniform(0.0, 3.0)
        goal = self._recovered(child, deadline) + self.random.randint(1, most_batches)
        while child.poll() is None and time.monotonic() < deadline and self.batches() < goal:
            time.sleep(0.002)
        time.sleep(self.random.uniform(0, 0.05))
        child.send_signal(signal.SIGKILL)
        out, _ = child.communicate()
        if child.returncode != -signal.SIGKILL:
            assert child.returncode == 0, out
            return False
        self.kills += 1
        self.at.append(self.batches())
        return True

    def _recovered(self, child, deadline):
        """Wait until records are truncated to the checkpoint; returns their number."""
        starts = self._starts()
        while child.poll() is None and time.monotonic() < deadline and self._starts() == starts:
            time.sleep(0.002)
        return self.batches()

    def _starts(self):
        try:
            return (self.out / "run.log").read_text().count('"event": "start"')
        except FileNotFoundError:
            return 0

    def finish(self, timeout=300.0):
        """Resume until the end."""
        child = self.start()
        out, _ = child.communicate(timeout=timeout)
        assert child.returncode == 0, out

    def letters(self):
        """Return the dead letters, sorted, since the polling order of partitions is random."""
        files = sorted((self.out / "dead-letters").glob("*.jsonl"))
        return sorted(line for file in files for line in file.read_text().splitlines())

    def rows(self):
        """Return the counts of rows by outcome."""
        return json.loads((self.out / "metrics.json").read_text())["rows"]


def rows(size):
    """Return rows of a stream, mostly valid events."""
    rng = random.Random(3)
    out = []
    for i in range(size):
        src = rng.randrange(30)
        t = 1_600_000_000 + 10 * i - rng.choice([0, 0, 0, 35])
        dst = 30 + (src * 7 + (rng.random() < 0.2)) % 20
        row = {"src": src, "dst": dst, "t": t}
        if rng.random() < 0.01:
            row["t"] = rng.choice(["soon", None, 1.5, 7])
        out.append(row)
    return out


def write_rows(path, size, days=1):
    """Write such rows to a file, with two features, on so many days."""
    lines = [
        f"{row['src']},{row['dst']},{_later(row['t'], i * days // size)},{i % 97},{i % 31}"
        for i, row in enumerate(rows(size))
    ]
    path.write_text("src,dst,t,f0,f1\n" + "\n".join(lines) + "\n")
    return path


def labels_of(events, delay=400):
    """Return labels of most events by time, which come some ticks later, some of them twice."""
    rng, out = random.Random(4), list[tuple[int, dict[str, Any]]]()
    for i, event in enumerate(events):
        if isinstance(event["t"], int) and rng.random() < 0.8:
            label = {**event, "is_odd": int(i % 3 == 0), "label_time": event["t"] + delay}
            label["label_time"] = at = label["label_time"] + 10 * rng.randrange(20)
            out.append((at, label))
            if rng.random() < 0.2:
                again = {"is_odd": rng.randrange(2), "label_time": at + 500}
                out.append((at + 500, {**label, **again}))
            if rng.random() < 0.05:
                odd = rng.choice([{"src": 99}, {"label_time": "soon"}])
                out.append((at, {**label, **odd}))
    return [label for _, label in sorted(out, key=lambda each: each[0])]


def write_labels(path, size):
    """Write labels of the events of `write_rows` to a file."""
    names = ("src", "dst", "t", "is_odd", "label_time")
    lines = [",".join(str(row[name]) for name in names) for row in labels_of(rows(size))]
    path.write_text("\n".join([",".join(names), *lines]) + "\n")
    return path


def _later(t, days):
    return t + 86_400 * days if type(t) is int and t > 7 else t


def publish(broker, topic, events, partitions, pause=lambda: None):
    """Send rows as JSON, each source node to its own partition, with a pause after each."""
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=broker.servers, api_version=broker.api_version, linger_ms=20
    )
    for event in events:
        producer.send(topic, json.dumps(event).encode(), partition=event["src"] % partitions)
        pause()
    producer.flush(timeout=30)
    producer.close(timeout=5)


@contextmanager
def publishing(broker, topic, events):
    """Send rows with random pauses while entered, to the first two of four partitions."""
    ended, rng = threading.Event(), random.Random(SEED)
    unequal = ({**event, "src": 4 * event["src"] + (i % 50 == 0)} for i, event in enumerate(events))
    sent = itertools.takewhile(lambda _: not ended.is_set(), unequal)

    def pause():
        ended.wait(rng.choice([0.0, 0.0, 0.0, 0.01, 0.02, 0.3]))

    thread = threading.Thread(target=publish, args=(broker, topic, sent, 4, pause))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def mock_broker():
    """Return a broker; skips the test if none can be started."""
    broker_module = pytest.importorskip("tgflow.testing.broker")
    pytest.importorskip("confluent_kafka", reason="confluent-kafka, the mock broker, is missing")
    with broker_module.MockBroker() as broker:
        yield broker


@contextmanager
def topic_of_rows(size):
    """Return the flags of a run over a topic of such rows, in three partitions."""
    with mock_broker() as broker:
        broker.create("edges", 3)
        publish(broker, "edges", rows(size), 3)
        yield ["-s", broker.url("edges"), *FROM_KAFKA]


def undisturbed(tmp_path, flags, command="run"):
    """Return a run without kills."""
    campaign = Campaign(tmp_path / "undisturbed", flags, command=command)
    campaign.finish()
    return campaign


def undisturbed_with_bad_rows(tmp_path, flags):
    """Return an undisturbed run, after asserting that it refused rows of both kinds."""
    reference = undisturbed(tmp_path, flags)
    assert reference.rows()["malformed"]
    assert reference.rows()["late"]
    return reference


def compare(left, right):
    """Assert that two runs have equal results and equal refused rows."""
    same_run(left.out, right.out)
    assert left.letters() == right.letters()
    assert left.rows() == right.rows()
    assert not list(right.out.glob("checkpoints/corrupt-*")), "every checkpoint was usable"


def rank_pids(parent):
    """Return the rank processes of a launcher, by rank."""
    found = {}
    for pid, variables in children_of(parent, "environ").items():
        of_rank = [name for name in variables.split(b"\0") if name.startswith(b"RANK=")]
        if of_rank:
            found[int(of_rank[0].removeprefix(b"RANK="))] = pid
    return found


@dataclass
class RankCampaign(Campaign):
    """A multi-rank run whose ranks restart automatically after any kills."""

    world: int = 3
    """Number of ranks at the start."""

    def start(self):
        """Start or resume."""
        command = [sys.executable, "-m", "tgflow", self.command, *self.flags]
        command += ["--out", str(self.out), "--resume"]
        command += ["--nproc", str(self.world), "--max-restarts", "1000"]
        with self.said.open("a") as said:
            return subprocess.Popen(
                command, stdout=said, stderr=said, text=True, env=environment() | ENVIRONMENT
            )

    @property
    def said(self):
        """Output printed so far."""
        return self.out.with_suffix(".said")

    def kill_ranks(self, kills):
        """Resume, kill so many ranks, each of which ends the others, and then all of them."""
        child = self.start()
        wanted = self.kills + kills
        while self.kills < wanted and self._kill_a_rank(child):
            pass
        ranks = rank_pids(child.pid)
        child.kill()
        for pid in ranks.values():
            os.kill(pid, signal.SIGKILL)
        child.wait()
        while any(is_there(pid) for pid in ranks.values()):
            time.sleep(0.01)

    def _kill_a_rank(self, child, timeout=240.0):
        """Kill a rank within the next micro-batches; False if the run finishes before."""
        deadline = time.monotonic() + timeout
        if self.random.random() < 0.2:  # while they start, or recover
            deadline = time.monotonic() + self.random.uniform(0.0, 6.0)
        goal = self._recovered(child, deadline) + self.random.randint(1, 8)
        while child.poll() is None and time.monotonic() < deadline and self.batches() < goal:
            time.sleep(0.002)
        time.sleep(self.random.uniform(0, 0.05))
        if child.poll() is not None:
            assert child.returncode == 0, self.said.read_text()
            return False
        ranks = rank_pids(child.pid)
        if ranks:  # else they are about to be started
            os.kill(ranks[self.random.choice(sorted(ranks))], signal.SIGKILL)
            self.kills += 1
            self.at.append(self.batches())
        return True

    def finish(self, timeout=600.0):
        """Resume until the end."""
        assert self.start().wait(timeout) == 0, self.said.read_text()
