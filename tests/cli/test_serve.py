"""`tgflow run --serve` and `tgflow serve`: answers over HTTP during learning and after it."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

import tgflow as tg
from helpers.effort import tries
from helpers.live_runs import SMALL, START, same_run, write_events
from helpers.processes import children_of, environment, is_there
from helpers.served import Asker, Client, Repeated
from tgflow.run import runner
from tgflow.run.serving import NICE

pytest.importorskip("uvicorn", reason="uvicorn is not installed")

TOKEN = "0123456789abcdef"
KILLS = int(os.environ.get("TGFLOW_KILLS", tries(100, 3)))
PAIR = {"src": [3, 5], "dst": [4, 6]}
NODES = 20


def url_of(text):
    """Return the address printed by a command."""
    found = re.search(r"answers at (http://\S+?)(,|\"|$)", text, re.MULTILINE)
    return found and found[1]


def start(*words, prefix=(), **variables):
    command = [*prefix, sys.executable, "-m", "tgflow", *(str(word) for word in words)]
    settings = environment() | {"OMP_NUM_THREADS": "1"} | variables
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=settings)


def until_served(process):
    for line in process.stderr:
        if url_of(line):
            return url_of(line)
    raise AssertionError(f"it ended with {process.wait()}")


def replicas_of(process):
    """Return the process ids of the replicas that a process has started."""
    children = children_of(process.pid, "cmdline")
    return [pid for pid, words in children.items() if b"tgflow.run.replica" in words]


def until(condition, what, seconds=120, process=None):
    """Wait for a condition; polls, as it is about other processes."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if process is not None and (process.poll() is not None or time.monotonic() > end):
            code = process.poll()
            process.kill()
            raise AssertionError((what, code, process.communicate()[1][-3000:]))
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return found


@pytest.mark.slow
def test_served_run_learns_the_same_and_goes_on_after_the_stream(tgflow, tmp_path):
    flags = ("-s", write_events(tmp_path / "made.csv", 4_000), *SMALL)
    assert tgflow("run", *flags, "-o", "alone").code == 0
    process = start(
        "run", *flags, "-o", "out", "--serve", 0, "--set", "serve.stay=true", "--replicas", 2
    )
    try:
        url = until_served(process)
        client = Client(url)
        until(lambda: client.get("/healthz")[1]["state"] == "ended", "the stream does not end")
        until(lambda: client.get("/ready")[1]["behind"] == 0, "it stays behind")
        found = replicas_of(process)
        assert len(found) == 2
        own, *others = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (process.pid, *found))
        assert own == NICE
        assert others == [os.getpriority(os.PRIO_PROCESS, 0)] * 2
        until(Path("out/metrics.json").exists, "it does not write metrics")
        until(lambda: client.get("/healthz")[1]["parameters"] == 4_000, "its parameters are old")
        status, answer = client.post("/score", PAIR)
        assert (status, answer["position"], answer["parameters"]) == (200, 4_000, 4_000)
        both = re.compile(r'tgflow_replica_position\{pid="\d+"\} 4000')
        until(lambda: len(both.findall(client.get("/metrics")[1])) == 2, "one is behind")
        assert 'tgflow_replica_memory_bytes{part="memory"' in client.get("/metrics")[1]
        before = replicas_of(process)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        until(lambda: {*replicas_of(process)} - {*before}, "none is started again")
        status, answer = Client(url).post("/score", PAIR)
        assert (status, answer["position"], answer["parameters"]) == (200, 4_000, 4_000)
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
        assert process.wait() == 0
        assert "a replica has ended with signal 9: starting another" in said
        assert "Traceback" not in said
    finally:
        process.kill()
    same_run(Path("out"), Path("alone"))
    serving = json.loads(Path("out/metrics.json").read_text())["serving"]
    assert serving["frames"] in (80, 81), "one of each micro-batch, and of the last parameters"
    assert serving["lost"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("size", ["3m", "300k"])
def test_served_run_goes_on_with_the_shared_memory_of_a_container_or_is_refused(tmp_path, size):
    prefix = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size={size} x /dev/shm && exec "$@"']
    prefix.append("sh")
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system in a namespace is not permitted here")
    flags = ("-s", write_events(tmp_path / "made.csv", 20_000), *SMALL, "--dim", 64, "--serve", 0)
    flags += ("--set", "serve.stay=true", "--set", "serve.parameters_every=1ms", "--speed", 20_000)
    process = start("run", *flags, "-o", tmp_path / "out", prefix=prefix)
    if size == "300k":
        said = process.communicate(timeout=120)[1]
        assert process.returncode == 2
        assert "--set serve.ring=256MiB: the ring can have" in said
        assert "as large a /dev/shm (containers: --shm-size)" in said
        return
    try:
        client, positions, ages = Client(until_served(process)), [], []
        while not positions or positions[-1] < 20_000:
            status, answer = client.post("/score", PAIR)
            assert status == 200
            positions.append(answer["position"])
            health = client.get("/healthz")[1]
            ages.append((health["behind"], health["age"]))
            time.sleep(0.01)
        assert positions == sorted(positions), "an answer went back"
        assert len({*positions}) > 5
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
        assert process.wait() == 0
    finally:
        process.kill()
    serving = json.loads((tmp_path / "out" / "metrics.json").read_text())["serving"]
    assert serving["frames"] * serving["bytes_per_frame"] > 12 << 20
    assert serving["lost"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_finished_or_running_run_is_served_until_a_signal(tgflow, events_csv, number):
    part = number == signal.SIGINT
    size = 200 if part else 400
    assert tgflow("run", "-s", events_csv, *SMALL, "-o", "out", "--limit", size).code == 0
    before = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")}
    process = start("serve", "out", "--serve", 0, TGFLOW_SERVE_TOKEN=TOKEN)
    try:
        url = until_served(process)
        client = Client(url, TOKEN)
        status, answer = client.post("/score", PAIR)
        assert (status, answer["position"], answer["parameters"]) == (200, size, size)
        run = tg.open_run("out")
        assert answer["scores"] == run.score(*PAIR.values()).to_arrow().to_pylist()
        assert Client(url).post("/score", PAIR)[0] == 401
        if part:  # it follows the run to its next checkpoint
            flags = ("-s", events_csv, *SMALL, "-o", "out", "--resume", "--limit", 400)
            assert tgflow("run", *flags).code == 0
            until(lambda: client.get("/healthz")[1]["parameters"] == 400, "it does not follow")
            answer = client.post("/score", PAIR)[1]
            scores = tg.open_run("out").score(*PAIR.values()).to_arrow().to_pylist()
            assert answer["scores"] == scores
            before = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")}
        process.send_signal(number)
        assert process.wait(30) == 0
    finally:
        process.kill()
    assert {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")} == before


@pytest.mark.slow
@pytest.mark.timeout(600 + 30 * KILLS)
def test_answers_are_of_versions_that_existed_under_kills_of_run_and_replica(
    tgflow, tmp_path, monkeypatch
):
    """Answers have the bits of their version, and the run those of an undisturbed one."""
    stream, rng = Growing(tmp_path / "made.csv", 200 * (KILLS + 1) + 100), random.Random(7)
    flags = ("run", "-s", stream.path, *SMALL, "--checkpoint-every", 2, "--no-follow")
    flags = (*flags, "--set", "serve.parameters_every=50ms", "--max-wait", "none")
    port = free_port()
    served = (*flags, "-o", "out", "--resume", "--serve", port, "--follow")
    process = start(*served)
    asker = Asker(f"http://127.0.0.1:{port}", NODES + 2, pause=0.05)
    try:
        until_served(process)
        for _ in range(KILLS):
            pids = until(partial(replicas_of, process), "no replica is started", process=process)
            stream.grow(200)
            # often while the replica has not answered yet
            num = len(asker.answers) + rng.randrange(-20, 40)
            until(partial(has_answers, asker, num), "nothing is answered")
            who = rng.choice(("replica", "run", "both"))
            if who != "run":
                for pid in pids:
                    with suppress(ProcessLookupError):  # killed before, and only now gone
                        os.kill(pid, signal.SIGKILL)
            if who != "replica":
                process.kill()
                process.communicate()
                until(partial(are_gone, pids), "a replica stays behind")
                process = start(*served)
                until_served(process)
        stream.grow(200)
        until(lambda: is_near(asker, stream.num), "the end is not reached after the last kill")
        process.terminate()
        process.communicate()
        assert process.returncode == 0
    finally:
        process.kill()
        asker.close()
    assert tgflow(*flags, "-o", "out", "--resume").code == 0
    assert {status for status, _ in asker.refusals} <= {503}, asker.refusals[:3]
    repeated = repeat(tgflow, monkeypatch, asker.answers, *flags)
    assert repeated.left <= {0}
    assert len(repeated.positions) >= max(2, KILLS // 3)
    same_run(Path("out"), Path("alone"))


@pytest.mark.slow
def test_random_questions_have_the_bits_of_inference_while_the_run_learns(
    tgflow, tmp_path, monkeypatch
):
    size, num = tries(5_000, 1_000), tries(10_000, 400)
    stream = Growing(tmp_path / "made.csv", size, labeled=True)
    task = ("--features", "amount", "--task", "edge", "--target", "is_odd", "--max-wait", "none")
    flags = ("run", "-s", stream.path, *SMALL, *task, "--set", f"learning.replay_horizon={size}")
    port = free_port()
    process = start(*flags, "-o", "out", "--serve", port, "--follow")
    times = [START + 60 * i for i in range(0, size // 2, 50)]
    asker = Asker(f"http://127.0.0.1:{port}", NODES + 2, times, x_dim=1, threads=8)
    try:
        until_served(process)
        while stream.num < size:
            share = num * stream.num // size
            until(partial(has_answers, asker, share), "nothing is answered")
            stream.grow(100)
        until(lambda: is_near(asker, size), "the end is not reached")
    finally:
        process.kill()
        asker.close()
    assert not asker.refusals
    rows = [row for each in asker.answers if each.path == "/top-k" for row in each.answer["scores"]]
    assert {row["ranked_by"] for row in rows} == {"model", "popularity"}
    repeated = repeat(tgflow, monkeypatch, asker.answers, *flags)
    assert repeated.left <= {0}
    assert len(repeated.positions) >= size // 200
    assert set(repeated.num_equal) == {"/score", "/top-k", "/embedding", "/neighbors"}


def repeat(tgflow, monkeypatch, answers, *flags):
    """Check answers in an undisturbed run."""
    repeated = Repeated(answers)
    with monkeypatch.context() as patched:
        patched.setattr(runner.Runner, "_record", repeated.recording())
        assert tgflow(*flags, "-o", "alone").code == 0
    return repeated


class Growing:
    """A file of events that is written bit by bit."""

    def __init__(self, path, size, **options):
        head, *self._rows = write_events(path, size, **options).read_text().splitlines(True)
        path.write_text(head)
        self.path, self.num = path, 0
        self.grow(100)

    def grow(self, num):
        with self.path.open("a") as file:
            file.writelines(self._rows[self.num : self.num + num])
        self.num += num


def has_answers(asker, num):
    return len(asker.answers) >= num


def is_near(asker, position):
    """Return whether a micro-batch at most is missing: the last events wait for later ones."""
    return asker.answers and asker.answers[-1].answer["position"] >= position - 50


def are_gone(pids):
    return not any(map(is_there, pids))


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
