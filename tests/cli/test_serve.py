"""`tgflow run --serve` and `tgflow serve`: answers over HTTP during learning and after it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tgflow as tg
from helpers.http_client import Client
from helpers.live_runs import SMALL, same_run
from helpers.processes import environment
from tgflow.runtime import runner

pytest.importorskip("fastapi", reason="fastapi is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")

TOKEN = "0123456789abcdef"
PAIR = {"src": [3, 5], "dst": [4, 6]}


def url_of(text):
    """Return the address printed by a command."""
    found = re.search(r"answers at (http://\S+?)(,|\"|$)", text, re.MULTILINE)
    return found and found[1]


def test_served_run_matches_its_checkpoint_and_learns_the_same(tgflow, events_csv, monkeypatch):
    flags, record, answers = ("-s", events_csv, *SMALL), runner.Runner._record, []
    assert tgflow("run", *flags, "-o", "alone").code == 0

    def recording(self, step):
        record(self, step)
        if step.stop == 200:
            client = Client(url_of(Path("out/run.log").read_text()))
            answers.append(client.post("/score", PAIR))
            client.close()

    with monkeypatch.context() as patched:
        patched.setattr(runner.Runner, "_record", recording)
        ran = tgflow("run", *flags, "-o", "out", "--serve", "0")
    assert ran.code == 0, ran.err
    assert "/docs" in ran.err
    same_run(Path("out"), Path("alone"))
    [(status, answer)] = answers
    assert (status, answer["position"]) == (200, 200)
    assert tgflow("run", *flags, "-o", "part", "--limit", 200).code == 0
    asked = json.dumps(tg.open_run("part").score(*PAIR.values()).to_arrow().to_pylist())
    assert json.dumps(answer["scores"]) == asked


def start(*words, **variables):
    command = [sys.executable, "-m", "tgflow", *(str(word) for word in words)]
    settings = environment() | {"OMP_NUM_THREADS": "1"} | variables
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=settings)


def until_served(process):
    for line in process.stderr:
        if url_of(line):
            return url_of(line)
    raise AssertionError(f"it ended with {process.wait()}")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_finished_or_running_run_is_served_until_a_signal(tgflow, events_csv, number):
    assert tgflow("run", "-s", events_csv, *SMALL, "-o", "out").code == 0
    goes_on = number == signal.SIGINT
    if goes_on:
        health = json.loads(Path("out/health.json").read_text())
        alive = health | {"state": "running", "updated": time.time() + 20, "pid": os.getpid()}
        Path("out/health.json").write_text(json.dumps(alive))
    before = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")}
    process = start("serve", "out", "--serve", 0, TGFLOW_SERVE_TOKEN=TOKEN)
    try:
        url = until_served(process)
        client = Client(url, TOKEN)
        status, answer = client.post("/score", PAIR)
        assert (status, answer["position"]) == (200, 400)
        run = tg.open_run("out")
        assert answer["scores"] == run.score(*PAIR.values()).to_arrow().to_pylist()
        assert Client(url).post("/score", PAIR)[0] == 401
        assert client.get("/healthz")[1] == {"state": "serving", "position": 400}
        assert "tgflow_events_learned_total 400.0" in client.get("/metrics")[1]
        if goes_on:
            said = process.stderr.readline() + process.stderr.readline()
            assert "another process writes to out: answers remain as of event 400" in said
        process.send_signal(number)
        assert process.wait(30) == 0
    finally:
        process.kill()
    assert {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")} == before
