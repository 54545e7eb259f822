"""The image's Dockerfile and the compose file of examples/compose work without a container."""

import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from helpers.kafka_io import publish
from helpers.processes import free_port

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "compose"
DOCKERFILE = FOLDER / "Dockerfile"


@pytest.fixture(scope="module")
def services():
    """Return the services, read by the compose specification's own types."""
    compose_spec = pytest.importorskip("compose_spec")
    options = compose_spec.PyOptions()
    options.apply_merge = True
    return options.from_yaml((FOLDER / "compose.yaml").read_text()).to_spec().services


def test_compose_file_is_valid_and_refers_to_existing_files_and_services(services):
    for name, service in services.items():
        assert set(getattr(service, "depends_on", None) or ()) <= services.keys(), name
        for volume in service.volumes or ():
            source = str(volume).split(":")[0]
            assert not source.startswith(".") or (FOLDER / source).exists(), (name, volume)
    build = services["run"].build
    assert (FOLDER / build.context / build.dockerfile).resolve() == DOCKERFILE


def test_prometheus_reads_the_port_of_the_run(services):
    (port,) = re.findall(r"--metrics-port (\d+)", services["run"].command)
    assert f'targets: ["run:{port}"]' in (FOLDER / "prometheus.yml").read_text()
    dashboards = (FOLDER / "grafana" / "dashboards.yml").read_text()
    (folder,) = re.findall(r"path: (\S+)", dashboards)
    assert f"../grafana/tgflow.json:{folder}/tgflow.json:ro" in map(
        str, services["grafana"].volumes
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_commands_of_the_compose_file_work_with_a_broker(services, tmp_path):
    pytest.importorskip("confluent_kafka")
    from tgflow.testing.broker import MockBroker

    serve, metrics = free_port(), free_port()
    (token,) = re.findall(r"TGFLOW_SERVE_TOKEN:-([^}]+)", (FOLDER / "compose.yaml").read_text())
    with MockBroker() as broker:
        broker.create("messages", 1)

        def start(name):
            command = services[name].command
            for there, here in {
                "kafka:9092": broker.servers[0],
                "0.0.0.0": "127.0.0.1",
                "8000": str(serve),
                "9400": str(metrics),
            }.items():
                command = command.replace(there, here)
            words = [*shlex.split(command), "--kafka-option", "api_version=[2,3]"]
            environment = {**os.environ, "TGFLOW_SERVE_TOKEN": token, "NO_COLOR": "1"}
            python = [sys.executable, "-m", "tgflow"]
            return subprocess.Popen([*python, *words], cwd=tmp_path, env=environment)

        data = gzip.decompress((ROOT / "examples/data/collegemsg.csv.gz").read_bytes())
        publish(broker, "messages", data.splitlines()[1:601], timestamp=None)
        run = start("run")
        try:
            text = ""
            while "tgflow_run_info{" not in text:
                text = read(f"http://127.0.0.1:{metrics}/metrics", token, run)
            assert "/score" in read(f"http://127.0.0.1:{serve}/openapi.json", token, run)
        finally:
            run.terminate()
            assert run.wait(60) == 0
    assert (tmp_path / "runs" / "messages" / "report.html").exists()


def read(url, token, run):
    """Return what an address of the running process answers, once it does."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    while run.poll() is None:
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.read().decode()
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the run ended with {run.returncode}")


def test_dockerfile_copies_what_the_context_has():
    """Building the wheel and installing it without a compiler is tested by test_wheel.py."""
    text = DOCKERFILE.read_text()
    [source] = re.findall(r"^COPY (?!--from)(?!\. )(\S+) \.", text, re.MULTILINE)
    kept = re.findall(r"^!(.+)", Path(f"{DOCKERFILE}.dockerignore").read_text(), re.MULTILINE)
    assert source in kept
    assert all((ROOT / path).exists() for path in kept)
    assert {"csrc", "models", "pyproject.toml", "streams", "tgflow"} <= {*kept}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_dockerfile_makes_a_working_image():
    if not shutil.which("docker") or subprocess.run(["docker", "info"], check=False).returncode:
        pytest.skip("docker is not installed, or its daemon does not answer")
    build = ["docker", "build", "--quiet", "--file", DOCKERFILE, ROOT]
    image = subprocess.run(build, check=True, capture_output=True, text=True).stdout.strip()
    words = ["docker", "run", "--rm", "--network", "none", image]
    shown = subprocess.run(words, check=True, capture_output=True, text=True)
    assert "Usage: tgflow" in shown.stdout
