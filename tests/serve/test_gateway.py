"""The HTTP process is light, may be killed, and ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from helpers.http_client import Client
from helpers.processes import children_of, environment, is_there
from helpers.served import made_predictor, served

pytest.importorskip("fastapi", reason="fastapi is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")

PAIR = {"src": ["n0"], "dst": ["n6"]}
KILLED = "the HTTP process has ended with signal 9: restarting it"


@pytest.fixture(scope="module")
def predictor():
    return made_predictor()


def asked(server, path="/score"):
    client = Client(server.endpoint.url)
    try:
        return client.get(path) if path == "/healthz" else client.post(path, PAIR)
    finally:
        client.close()


def gateways(parent=None):
    """Return the process ids of the gateways started by a process."""
    children = children_of(parent or os.getpid(), "cmdline")
    return [pid for pid, words in children.items() if b"tgflow.serve.gateway" in words]


def once_it_serves(server, number):
    """Send a signal to a gateway after its first response."""
    assert asked(server)[0] == 200
    [pid] = gateways()
    os.kill(pid, number)


def until_warned(server):
    while not server.faults:
        time.sleep(0.01)


def test_gateway_imports_neither_torch_nor_arrow():
    loaded = "import sys, tgflow.serve.gateway; print({'torch', 'pyarrow'} & set(sys.modules))"
    command = [sys.executable, "-c", loaded]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    assert ran.stdout.strip() == "set()"


def test_killed_gateway_is_restarted_and_requests_are_answered(predictor):
    with served(predictor) as server:
        once_it_serves(server, signal.SIGKILL)
        until_warned(server)
        assert server.faults == [KILLED]
        assert asked(server)[0] == 200
        assert server.is_alive
    assert not gateways()


def test_gateway_that_cannot_start_is_reported(predictor, monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    with served(predictor) as server:
        while server.is_alive:
            time.sleep(0.01)
        assert server.faults == [
            "the HTTP process has ended with exit status 1: the server has stopped"
        ]
        with pytest.raises(ConnectionRefusedError):
            asked(server)


@pytest.mark.slow
def test_gateway_ends_with_the_model_process(tmp_path):
    program = (
        "import time\n"
        "from helpers.served import made_predictor, served\n"
        "with served(made_predictor()) as server:\n"
        "    print(server.endpoint.url, flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as owner:
        url = owner.stdout.readline().strip()
        client = Client(url)
        assert client.post("/score", PAIR)[0] == 200
        [pid] = gateways(owner.pid)
        owner.kill()
        owner.wait()
        until_ended(pid)
    client.close()


def until_ended(pid):
    for _ in range(1_000):
        if not is_there(pid):
            return
        time.sleep(0.01)
    raise AssertionError("it stays behind")
