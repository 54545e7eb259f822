"""No file of a run and no message holds a secret; settings hold references to it."""

import json
import logging
import os
import subprocess
import sys

import pytest

from helpers.kafka_io import edges, publish
from helpers.live_runs import SMALL
from tgflow.cli import main
from tgflow.cli.errors import UNAVAILABLE, USAGE
from tgflow.serve.client import Client
from tgflow.streams.kafka.config import KafkaConfig
from tgflow.streams.kafka.publish import Topic

SECRET = "Tr0ub4dor-SECRET"
SERVED = "kafka://127.0.0.1:9/edges"
OPTION = ["--max-time-jump", "9", "--kafka-option"]


@pytest.mark.slow
def test_no_file_and_no_message_holds_a_secret(
    shared_broker, topic, tmp_path, monkeypatch, capfd, caplog
):
    caplog.set_level(logging.DEBUG, "tgflow")
    monkeypatch.setenv("PASSWORD", SECRET)
    key = tmp_path / "key.txt"
    key.write_text(SECRET + "\n")
    shared_broker.create(topic, 1)
    publish(shared_broker, topic, [*edges(120), b"{"])
    url, options = shared_broker.url(topic), []
    for option in (
        f"api_version={json.dumps(list(shared_broker.api_version))}",
        "sasl_plain_password=env:PASSWORD",
        f"ssl_password=file:{key}",
        "client_rack=007",
    ):
        options += ["--kafka-option", option]
    flags = ["--max-time-jump", "none", "--until-end", *SMALL, *options, "--scores", "s.csv"]
    monkeypatch.chdir(tmp_path)
    run = lambda *args: main([str(arg) for arg in args])  # noqa: E731
    assert run("run", "-s", url, "-o", "out", "--limit", 60, *flags) == 0
    assert run("run", "--resume", "-o", "out", "--limit", 121) == 0  # by the references alone
    assert run("info", "out", "--json") == run("info", "out") == 0
    monkeypatch.delenv("PASSWORD")
    assert run("run", "--resume", "-o", "out") == USAGE
    said = "".join(capfd.readouterr()) + caplog.text
    assert "sasl_plain_password refers to env:PASSWORD, a variable that is not set" in said
    config = (tmp_path / "out/config.toml").read_text()
    assert 'sasl_plain_password = "env:PASSWORD"' in config
    assert 'client_rack = "007"' in config
    key.unlink()
    away = ["run", "-s", SERVED, "-o", "away", "--max-time-jump", "9"]
    away += ["--set", "kafka.connect_timeout=1"]
    away += [*OPTION, "sasl_plain_password=env:PASSWORD", *OPTION, "security_protocol=SASL_SSL"]
    away += [*OPTION, "sasl_mechanism=PLAIN", *OPTION, "sasl_plain_username=me"]
    command = [sys.executable, "-m", "tgflow", *away, "--log-format", "json"]
    ended = subprocess.run(
        command, env=os.environ | {"PASSWORD": SECRET}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == UNAVAILABLE, ended.stderr
    said += ended.stdout + ended.stderr
    saved = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"report.html", "config.toml", "run.log", "s.csv"} <= {path.name for path in saved}
    assert SECRET not in said
    assert [path for path in saved if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(
    "args",
    [
        ["run", "-s", SERVED, *OPTION, f"sasl_plain_password={SECRET}"],
        ["run", "-s", SERVED, *OPTION, f"ssl_password=[{json.dumps(SECRET)}]"],
        ["run", "-s", SERVED, *OPTION, f"sasl_plain_password:{SECRET}"],
        ["run", "-s", SERVED, *OPTION, f"proxy_url=http://me:{SECRET}@host:1"],
        ["run", "-s", f"kafka://me:{SECRET}@127.0.0.1:9/edges"],
        ["run", "x.csv", "-s", f"kafka://me:{SECRET}@127.0.0.1:9/edges"],
        ["run", "-s", f"s3://key:{SECRET}/with@bucket/x.csv"],
        ["run", "-s", f"https://me:{SECRET}@host/x.csv"],
        ["run", "x.csv", "--scores", f"kafka://me:{SECRET}@host:9/scores"],
        ["run", "--config", "own.toml"],
    ],
)
def test_literal_secret_is_refused_without_its_value(args, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own.toml"
    own.write_text(f'stream.path = "{SERVED}"\nkafka.options.sasl_plain_password = "{SECRET}"\n')
    assert main(args) in (USAGE, 65)
    said = "".join(capfd.readouterr())
    assert "credentials" in said or "env:NAME" in said or "KEY=VALUE" in said
    assert SECRET not in said
    assert sorted(tmp_path.iterdir()) == [own]


def test_literal_secret_is_refused_in_python():
    options = {"sasl_plain_password": SECRET}
    for make in (
        lambda: KafkaConfig(url=SERVED, options=options),
        lambda: Topic(SERVED, options),
        lambda: Client(f"http://me:{SECRET}@127.0.0.1:8080"),
    ):
        with pytest.raises(ValueError, match=r"env:NAME|credentials") as caught:
            make()
        assert SECRET not in str(caught.value)


def test_options_get_the_types_of_the_client(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBER", "123456")
    (tmp_path / "password").write_text("1e5\r\n")
    options = {
        "sasl_plain_username": "env:NUMBER",
        "sasl_plain_password": f"file:{tmp_path}/password",
        "client_rack": 7,
        "receive_buffer_bytes": "65536",
        "retry_backoff_ms": "50",
        "ssl_check_hostname": "false",
        "api_version": "[2, 3]",
    }
    given = KafkaConfig(url=SERVED, options=options).client_options()
    assert {name: given[name] for name in options} == {
        "sasl_plain_username": "123456",
        "sasl_plain_password": "1e5",
        "client_rack": "7",
        "receive_buffer_bytes": 65536,
        "retry_backoff_ms": 50,
        "ssl_check_hostname": False,
        "api_version": (2, 3),
    }
