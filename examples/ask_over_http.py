"""Ask a run over HTTP while it learns.

    python examples/ask_over_http.py [--limit EVENTS]

Shows: `tgflow run --serve 0` in a process of its own, as a service would have it, and a client that
asks whom people will write to. A replica of the run answers, and learning does not wait for it; the
run ends with the bits of one that nobody asked. Protocol: prequential, as in quickstart.py. Expect:
AP 0.97 over the default of 10,000 events, in about 20 seconds on 2 cores, and an answer every half
second meanwhile. Needs the extra `serve`.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import tgflow as tg

DATA = Path(__file__).parent / "data" / "collegemsg.csv.gz"


def served_at(run: subprocess.Popen) -> str:
    """Return the address that a run says."""
    for line in run.stderr:
        if found := re.search(r"answers at (http://[^\s,]+)", line):
            threading.Thread(target=run.stderr.read, daemon=True).start()  # what else it says
            return found[1]
    raise SystemExit("the run has ended: is the extra `serve` installed?")


def ask_until_it_ends(url: str) -> None:
    """Say now and then whom two people may write to next, and what the model says of a pair."""
    client = tg.serve.Client(url, timeout=120)  # the replica starts with the first question
    while True:
        try:
            best = client.top_k([9, 32], k=3)
            pair = client.score([9], [10])["scores"][0]
            health = client.health()
        except OSError:
            return
        named = {n: [s["dst"] for s in best["scores"] if s["src"] == n] for n in (9, 32)}
        said = f"{best['position']:>6} events: may write to {named}"
        if pair["probability"] is not None:
            said += f"; 9 to 10: probability {pair['probability']:.3f}"
        print(said)
        if health["state"] == "ended" and not health["behind"]:
            return
        time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=int, default=10_000)
    limit = parser.parse_args().limit

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        flags = ["-s", DATA, "--limit", limit, "--out", out, "--serve", 0]
        flags += ["--set", "serve.stay=true"]
        command = [sys.executable, "-m", "tgflow", "run", *map(str, flags)]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as run:
            ask_until_it_ends(served_at(run))
            run.terminate()
        metrics = json.loads((out / "metrics.json").read_text())
        print(f"AP {metrics['prequential.ap']:.4f} over {metrics['num_events']} events")


if __name__ == "__main__":
    main()
