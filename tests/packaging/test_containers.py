"""The image's Dockerfile and the compose file of examples/compose work without a container."""

import gzip
import json
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


class Stage:
    """A stage of a Dockerfile as a folder, with a virtual environment as its Python."""

    def __init__(self, folder, arguments):
        self.root, self.work, self.entry = folder, folder, []
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        hidden = {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"}
        self.env = {k: v for k, v in os.environ.items() if k not in hidden} | arguments
        self.env["PATH"] = f"{folder}/venv/bin:/usr/bin:/bin"

    def inside(self, path):
        """Return the place of a path of the image."""
        return self.root / path[1:] if path.startswith("/") else self.work / path

    def run(self, command):
        """Run a command; returns what it printed."""
        options = {"cwd": self.work, "env": self.env, "text": True}
        done = subprocess.run(command, **options, capture_output=True, check=False)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout


def copy(source, target):
    """Copy a file or folder to a file, or into a folder."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def built(folder, arguments):
    """Carry out the Dockerfile in `folder`; returns its last stage."""
    context = folder / "context"
    for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines():
        if line.startswith("!"):
            copy(ROOT / line[1:], context / line[1:])
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    given, stages, stage = {}, {}, None
    for line in text.replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            name = rest.partition(" AS ")[2] or "last"
            stage = stages[name] = Stage(folder / name, {})
        elif word == "ARG":
            name, _, default = rest.partition("=")
            (given if stage is None else stage.env)[name] = arguments.get(name, default)
        elif word == "ENV":
            name, _, value = rest.partition("=")
            stage.env[name] = str(stage.inside(value))
        elif word == "WORKDIR":
            stage.work = stage.inside(rest)
            stage.work.mkdir(parents=True)
        elif word == "COPY":
            *options, source, target = rest.split()
            start = context
            if options:
                start = stages[options[0].removeprefix("--from=")].root
            place = stage.inside(target)
            if source == ".":
                shutil.copytree(start, place, dirs_exist_ok=True)
            else:
                path = start / source.lstrip("/")
                copy(path, place / path.name if target == "." else place)
        elif word == "RUN":
            stage.run(["sh", "-c", rest])
        elif word in ("ENTRYPOINT", "CMD"):
            stage.entry += json.loads(rest)
        else:
            assert word in ("USER", "VOLUME", ""), line
    return stages["last"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_dockerfile_makes_a_working_image(tmp_path):
    image = built(tmp_path, {})
    assert "Usage: tgflow" in image.run(image.entry)
    data = ROOT / "examples" / "data" / "collegemsg.csv.gz"
    words = ["run", str(data), "--limit", "400", "--out", "runs/one"]
    image.run([*image.entry[:1], *words])
    assert (image.work / "runs" / "one" / "report.html").exists()
