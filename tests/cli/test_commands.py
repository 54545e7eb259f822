"""The smaller commands, the help, and completion by the shell."""

import re
import subprocess
import sys

import pytest

from helpers.live_runs import SMALL
from tgflow.base import _native
from tgflow.cli.errors import EXIT_CODES

COMMANDS = ("run", "train", "info")


def plain(text):
    """Return help without frames and line breaks."""
    return re.sub(r"[\s│╭╮╰╯─]+", " ", re.sub(r"\x1b\[[0-9;]*m", "", text))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_contains_examples(tgflow, command):
    ran = tgflow(command, "--help")
    assert ran.code == 0
    assert f"tgflow {command}" in ran.out.split("Examples")[1]


@pytest.mark.parametrize(("command", "most"), [("run", 15), ("train", 16), ("compare", 17)])
def test_help_is_short_and_help_all_is_complete(tgflow, command, most):
    short, whole = (
        set(re.findall(r"│ (--[a-z-]+)", tgflow(command, flag).out))
        for flag in ("--help", "--help-all")
    )
    assert {"--out", "--config", "--help-all"} <= short
    assert len(short - {"--help", "--help-all"}) <= most
    assert short < whole
    assert {"--sort", "--precision"} & whole
    assert set(re.findall(r"│ (--[a-z-]+)", tgflow(command, "--help").out)) == short


def test_help_lists_commands_and_exit_codes(tgflow):
    text = plain(tgflow("--help").out)
    for command in COMMANDS:
        assert f" {command} " in text
    for code in EXIT_CODES:
        assert re.search(rf"\b{code} \w", text), code
    assert "--install-completion" in text


def test_version(tgflow):
    ran = tgflow("--version")
    assert ran.code == 0
    first, *lines = ran.out.splitlines()
    assert re.fullmatch(r"tgflow \d+\.\d+\.\d+\S*", first)
    assert [line.split()[0] for line in lines] == ["python", "torch", "pyarrow", "core", "gpu"]
    assert _native.simd_level() in lines[3]


@pytest.mark.parametrize(
    "code", ["import tgflow", "from tgflow.cli import main; main(['run', '-h'])"]
)
def test_importing_and_help_need_no_torch(code):
    script = f"import sys; {code}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert not {"torch", "pyarrow"} & set(done.stdout.split())


def test_info_of_a_stream(tgflow, tmp_path):
    (tmp_path / "few.csv").write_text("src,dst,t\na,b,10\na,b,10\nb,c,20\nc,c,40\n")
    found = tgflow("info", "few.csv", "--json").json
    assert found["num_events"] == 4
    assert found["num_nodes"] == 3
    assert found["num_pairs"] == 3
    assert found["repeat_share"] == 0.25
    assert found["tie_share"] == 0.25
    assert found["self_loops"] == 1
    assert (found["first_t"], found["last_t"]) == (10, 40)
    assert found["degree"] == {"min": 2, "p50": 3, "p90": 3, "p99": 3, "max": 3}
    assert found["family"]
    assert "25.0% of events" in tgflow("info", "few.csv").out
    (tmp_path / "none.csv").write_text("src,dst,t\n")
    assert tgflow("info", "none.csv", "--json").json["num_nodes"] == 0
    assert tgflow("info", "none.csv").code == 0


def test_info_of_a_run(tgflow, events_csv):
    more = ("--set", "order.buffer_bytes=1MiB", "--set", "learning.data_seed=3", *SMALL)
    tgflow("run", "-s", events_csv, "--limit", 100, "-o", "out", *more)
    found = tgflow("info", "out", "--json").json
    assert found["metrics"]["num_events"] == 100
    learning, order = found["config"]["learning"], found["config"]["order"]
    assert (learning["batch_size"], learning["data_seed"]) == (50, 3)
    assert order["buffer_bytes"] == "1MiB"
    [checkpoint] = found["checkpoints"]
    assert (checkpoint["position"], checkpoint["problem"]) == (100, None)
    assert checkpoint["state_sha256"] == found["metrics"]["state_sha256"]
    assert found["health"]["state"] == "done"
    assert found["stream"]["counts"]["read"] >= 100
    assert found["report"]
    text = plain(tgflow("info", "out").out)
    for part in ("prequential.ap", "done", "valid", "resume with: tgflow run --resume --out out"):
        assert part in text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tgflow tr", ["train"]),
        ("tgflow run --log-t", ["--log-to"]),
        ("tgflow run --visibility ", ["event", "batch"]),
        ("tgflow run --task ", ["link", "edge", "node", "property", "anomaly"]),
        ("tgflow run -m tga", ["tgat", "tgat+pairs"]),
        ("tgflow info ", []),  # left to the shell, which completes files
    ],
)
def test_commands_flags_and_values_are_completed(tgflow, monkeypatch, line, words):
    monkeypatch.setenv("_TGFLOW_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    assert tgflow().out.split() == words
