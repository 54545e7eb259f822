"""Learn with two processes, kill one of them with SIGKILL, and end with the bits of one process.

    python examples/kill_a_rank.py [--limit EVENTS]

Shows: `tgflow run --nproc`, which starts ranks, restarts them all where the newest checkpoint left
off, and replays the log. Protocol: prequential, batches of 200 in two slices, as one process has
them with --slices 2. Expect: two lines with the same digest of model, optimizer, memory and events,
in about a minute on 2 cores.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DATA = Path(__file__).parent / "data" / "collegemsg.csv.gz"


def start(out: Path, limit: int, *more: str) -> subprocess.Popen:
    """Start a run in the directory `out`."""
    command = [sys.executable, "-m", "tgflow", "run", "--stream", str(DATA), "--limit", str(limit)]
    command += ["--out", str(out), "--threads", "1", "--checkpoint-batches", "5", "--json", *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def digest(run: subprocess.Popen) -> str:
    """Return the digest of all that a run has learned, once it has ended."""
    said, _ = run.communicate()
    if run.returncode:
        sys.exit(f"a run ended with {run.returncode}")
    return json.loads(said)["state_sha256"]


def wait_for_checkpoint(out: Path, run: subprocess.Popen) -> None:
    """Wait until a run has saved something."""
    while run.poll() is None and not any(out.glob("checkpoints/ckpt-*")):
        time.sleep(0.05)


def find_rank(parent: int, rank: int) -> int:
    """Return the process of a rank that `parent` has started."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for child in map(int, children):
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return child
    raise LookupError(f"process {parent} has no rank {rank}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=int, default=10_000)
    limit = parser.parse_args().limit
    with tempfile.TemporaryDirectory() as name:
        one, two = Path(name) / "one", Path(name) / "two"
        undisturbed = digest(start(one, limit, "--nproc", "1", "--slices", "2"))
        print(f"one process              {undisturbed}")
        run = start(two, limit, "--nproc", "2")
        wait_for_checkpoint(two, run)
        os.kill(find_rank(run.pid, rank=1), signal.SIGKILL)
        killed = digest(run)
        print(f"two, one of them killed  {killed}")
        print(f"the same bits: {killed == undisturbed}")


if __name__ == "__main__":
    main()
