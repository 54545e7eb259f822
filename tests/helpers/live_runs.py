"""Runs of the command line in this process, and what they leave, compared."""

import json
import os
import random

import torch

from tgflow.run import runner
from tgflow.train.observe import Callback

TIMED = (
    "seconds", "per_second", "overhead", "freshness", "lag", "elapsed", "rss", "progress",
    "hit_rate", "crc32", "gpu_bytes", "gpu_peak_bytes",
)  # fmt: skip
"""Name parts of metrics that depend on the clock or the machine."""


def untimed(record):
    """Return the metrics that must be equal in two equal runs."""
    return {k: v for k, v in record.items() if not any(word in k for word in TIMED)}


def state_of(trainer):
    """Return copies of all tensors in a trainer's checkpoint, sealed ones too, on the CPU."""
    saved = trainer.checkpoint()
    sections = saved.sections | {name: make() for name, make in saved.sealed.items()}
    return {
        (part, name): x.cpu().clone()
        for part, found in sections.items()
        for name, x in found.items()
    }


def assert_same_state(left, right, *parts):
    """Assert that two trainers are bit-identical, in some or all sections."""
    found, expected = state_of(left), state_of(right)
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert torch.equal(found[name], x) or (parts and name[0] not in parts), name


class Losses(Callback):
    """The losses and the metrics of a training, step by step or epoch by epoch."""

    def __init__(self):
        self.seen = []

    def on_epoch(self, record):
        """Record an epoch."""
        self.seen.append((record.loss, record.val))

    def on_step(self, record):
        """Record a micro-batch."""
        self.seen.append((record.loss, record.metrics))


SMALL = ("--dim", 8, "--neighbors", 3, "--batch-size", 50, "--threads", 1)
"""Options that keep a run of the command line small."""
START = 1_600_000_000
"""Time of the first of `write_events`."""
SHARDED = ("--rank-graph", "sharded", "--rank-memory", "sharded")
"""Options that shard all state that can be sharded."""
MACHINE = (
    *("ranks", "threads", "machine", "interrupted", "stream", "state_sha256", "tables", "scores"),
    "serving",
    "counts_bytes",  # of a rank its own, if the graph is sharded
)


class Killed(BaseException):
    """Raised in place of SIGKILL; not caught by tgflow."""


def write_events(path, size=400, nodes=20, labeled=False):
    """Write events among a few nodes, mostly from each node to its successor.

    With `labeled` each has an `amount`, and `is_odd` tells whether that is odd.
    """
    rng = random.Random(5)
    lines = ["src,dst,t" + (",amount,is_odd" if labeled else "")]
    for i in range(size):
        src = rng.randrange(nodes)
        dst = (src + 1) % nodes if rng.random() < 0.8 else rng.randrange(nodes)
        amount = rng.randrange(100) if labeled else 0
        more = f",{amount},{amount % 2}" if labeled else ""
        lines.append(f"{src},{dst},{START + 60 * (i // 2)}{more}")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_features(path, size, nodes=20):
    """Write events among a few nodes, each with two features."""
    rng = random.Random(5)
    lines = ["src,dst,t,f0,f1"]
    for i in range(size):
        src = rng.randrange(nodes)
        lines.append(
            f"{src},{(src + 1 + i % 3) % nodes},{60 * (i // 2)},{rng.random():.3f},{i / size}"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def figures(run):
    """Return the metrics and records of a run, without timing."""
    metrics = json.loads((run / "metrics.json").read_text())
    digest = metrics["state_sha256"]
    metrics = {k: v for k, v in untimed(metrics).items() if k not in MACHINE}
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return digest, metrics, [untimed(record) for record in records]


def same_run(left, right):
    """Assert that two runs have bit-identical final states and records."""
    (digest, metrics, records), (other, other_metrics, other_records) = (
        figures(left),
        figures(right),
    )
    assert records == other_records
    assert metrics == other_metrics
    assert digest == other
    assert digest


def act_at(patch, position, act):
    """Call `act` with the runner when a run has learned `position` events, the first time."""
    record, left = runner.Runner._record, [position]

    def recording(self, step):
        record(self, step)
        if step.stop in left:
            left.clear()
            act(self)

    patch.setattr(runner.Runner, "_record", recording)


def signal_at(monkeypatch, position, number):
    """Send a signal to this process, and at once again, when it has learned `position` events."""

    def send(_):
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # as GNU timeout

    act_at(monkeypatch, position, send)
