"""Soak test: `tgflow run` at full rate from a Kafka broker, killed repeatedly.

    python tests/soak.py --minutes 20 --out soak.json

Every 20 seconds the process gets a SIGKILL and resumes. Monitored are resident memory beyond the
growing graph, descriptors, threads, and the files that must not grow with the stream. At the end
the rows read must be those sent, each accounted for.
Prints a table and a verdict; exits with 1 if something grew or was lost.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from helpers.campaign import Campaign
from tgflow.testing.broker import MockBroker

PARTITIONS = 4
AHEAD = 12_000
"""Most rows queued in a partition; the mock keeps 5 MiB of each."""
SETTLED_SECONDS = 10.0
"""Seconds of training before a comparison with others."""
START_SECONDS = 240.0
FLAGS = [
    "--dim", "16", "--neighbors", "5", "--batch-size", "500", "--threads", "1",
    "--set", "learning.replay_horizon=5000", "--max-time-jump", "none", "--allowed-lateness", "50",
    "--checkpoint-every", "5", "--metrics-port", "0", "--log-format", "json",
    "--kafka-option", "api_version=[2,3]", "--kafka-option", "fetch_max_wait_ms=50",
]  # fmt: skip
EVENT_BYTES = 24
"""Bytes of the in-memory log per event."""


Sample = dict[str, float]
"""A sample of the process; `age` is in seconds since training began."""
WATCHED = ("rss", "descriptors", "threads", "log_bytes", "checkpoints", "unfinished")


class Publisher(threading.Thread):
    """Sends rows as fast as they are learned, a few thousand ahead; one in 500 is bad."""

    def __init__(self, broker: MockBroker, topic: str) -> None:
        super().__init__(daemon=True)
        from kafka import KafkaProducer

        self._producer = KafkaProducer(
            bootstrap_servers=broker.servers, api_version=broker.api_version, linger_ms=20
        )
        self._topic, self._random = topic, random.Random(7)
        self.sent = self.taken = 0
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.is_set():
            if self.sent - self.taken > PARTITIONS * AHEAD:
                time.sleep(0.02)
                continue
            for _ in range(500):
                self._send()
            self._producer.flush(timeout=30)

    def _send(self) -> None:
        number, draw = self.sent, self._random
        src = draw.randrange(2000)
        t = 1_600_000_000 + number // 4 - draw.choice([0, 0, 0, 20])
        row = {"src": src, "dst": 2000 + (src * 7 + draw.randrange(3)) % 500, "t": t}
        if draw.random() < 0.002:
            row["t"] = "soon"
        value = json.dumps(row).encode()
        self._producer.send(self._topic, value, partition=number % PARTITIONS)
        self.sent += 1


def main() -> int:
    """Run the soak test; return 0 if nothing grew and nothing was lost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--kill-every", type=float, default=20.0, help="seconds")
    parser.add_argument("--out", type=Path, help="write all samples as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, MockBroker() as broker:
        broker.create("edges", PARTITIONS)
        publisher = Publisher(broker, "edges")
        campaign = Campaign(Path(folder) / "run", ["-s", broker.url("edges"), *FLAGS])
        publisher.start()
        samples = soak(campaign, publisher, 60 * args.minutes, args.kill_every)
        rows = drain(campaign, publisher)
    found = verdict(samples, rows, publisher.sent, campaign.kills)
    if args.out:
        plain = {**found, "rows": rows, "samples": samples}
        args.out.write_text(json.dumps(plain, indent=1) + "\n")
    return 0 if found["passed"] else 1


def soak(
    campaign: Campaign, publisher: Publisher, seconds: float, kill_every: float
) -> list[Sample]:
    """Run for `seconds` with periodic kills; return the samples."""
    begin = time.monotonic()
    samples: list[Sample] = []
    while time.monotonic() - begin < seconds:
        child, start = campaign.start(), time.monotonic()
        threading.Thread(target=child.stdout.read, daemon=True).start()  # type: ignore[union-attr]
        life, learns_at = kill_every * campaign.random.uniform(0.8, 1.2), math.inf
        while time.monotonic() - learns_at < life:
            time.sleep(0.5)
            if child.poll() is not None:
                raise SystemExit(f"it ended by itself, with code {child.returncode}")
            if time.monotonic() - start > START_SECONDS and not math.isfinite(learns_at):
                raise SystemExit(f"it did not learn within {START_SECONDS} s")
            sample = look(campaign, child.pid, begin, min(learns_at, time.monotonic()))
            if sample is not None:
                learns_at = min(learns_at, time.monotonic())
                publisher.taken = rows_read(campaign, publisher.taken)
                samples.append(sample)
        child.send_signal(signal.SIGKILL)
        child.wait()
        campaign.kills += 1
    return samples


def look(campaign: Campaign, pid: int, begin: float, start: float) -> Sample | None:
    """Return a sample of the process; None before training starts."""
    page = metrics(campaign)
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return None
    if page is None:
        return None
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    grown = page["tgflow_store_bytes"] + EVENT_BYTES * page["tgflow_events_released_total"]
    checkpoints = campaign.out / "checkpoints"
    now = time.monotonic()
    return {
        "second": now - begin,
        "age": now - start,
        "events": page["tgflow_events_learned_total"],
        "rss": 1024 * int(fields["VmRSS"].split()[0]) - grown,
        "descriptors": descriptors,
        "threads": int(fields["Threads"]),
        "log_bytes": page.get("tgflow_log_bytes", 0.0),
        "checkpoints": len(list(checkpoints.glob("ckpt-*"))),
        "unfinished": len(list(checkpoints.glob(".tmp-*"))),
    }


def metrics(campaign: Campaign) -> dict[str, float] | None:
    """Return the sums of all metrics over their labels; None before training starts."""
    try:
        lines = (campaign.out / "run.log").read_text().splitlines()
        entries = [entry for line in lines if "port" in (entry := json.loads(line))]
        url = f"http://127.0.0.1:{entries[-1]['port']}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            page = answer.read().decode()
    except (OSError, ValueError, IndexError):
        return None
    sums: dict[str, float] = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name = name.split("{")[0]
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums if sums.get("tgflow_events_learned_total") else None


def rows_read(campaign: Campaign, before: int) -> int:
    """Return the numbers of rows read and logged by the run."""
    page = metrics(campaign)
    return before if page is None else max(before, int(page.get("tgflow_events_read_total", 0)))


def drain(campaign: Campaign, publisher: Publisher) -> dict[str, int]:
    """Wait until all sent rows are read, end it by SIGTERM, and return the row counts."""
    publisher.ended.set()
    publisher.join()
    child = campaign.start()
    threading.Thread(target=child.stdout.read, daemon=True).start()  # type: ignore[union-attr]
    deadline = time.monotonic() + START_SECONDS
    while rows_read(campaign, 0) < publisher.sent and time.monotonic() < deadline:
        time.sleep(0.5)
    time.sleep(1.0)
    child.send_signal(signal.SIGTERM)
    try:
        code = child.wait(timeout=60)
    except subprocess.TimeoutExpired:
        raise SystemExit("it did not end within a minute of SIGTERM") from None
    if code:
        raise SystemExit(f"it ended with code {code} after SIGTERM")
    counts = json.loads((campaign.out / "stream.json").read_text())["counts"]
    return {name: value for name, value in counts.items() if isinstance(value, int)}


def verdict(samples: list[Sample], rows: dict[str, int], sent: int, kills: int) -> dict[str, Any]:
    """Compare the first third of the time with the last, and print the comparison."""
    settled = [sample for sample in samples if sample["age"] > SETTLED_SECONDS]
    third = max(1, len(settled) // 3)
    early, late = (
        {name: statistics.median(sample[name] for sample in part) for name in WATCHED}
        for part in (settled[:third], settled[-third:])
    )
    parts = sum(rows[name] for name in ("accepted", "late", "malformed", "duplicate", "buffered"))
    checks = {
        "memory is flat": late["rss"] < 1.15 * early["rss"] + 8e6,
        "descriptors are flat": late["descriptors"] <= early["descriptors"] + 2,
        "threads are flat": late["threads"] <= early["threads"] + 1,
        "the log is bounded": max(s["log_bytes"] for s in samples) < 2 * (256 << 20),
        "checkpoints are bounded": max(s["checkpoints"] for s in samples) <= 6,
        "nothing unfinished is left": late["unfinished"] <= 1,
        "every row sent was read": rows["read"] == sent,
        "every row is accounted for": rows["read"] == parts,
    }
    events, seconds = int(max(s["events"] for s in samples)), round(samples[-1]["second"])
    print(f"{kills} kills in {seconds} s, {events:,} events, rows {rows}")
    print(f"{'':24}{'first third':>16}{'last third':>16}")
    for name in WATCHED:
        print(f"{name:24}{early[name]:>16,.0f}{late[name]:>16,.0f}")
    for name, passed in checks.items():
        print(f"  {'ok    ' if passed else 'FAILED'}  {name}")
    shown = {"kills": kills, "seconds": seconds, "events": events, "early": early, "late": late}
    return {**shown, "checks": checks, "passed": all(checks.values())}


if __name__ == "__main__":
    raise SystemExit(main())
