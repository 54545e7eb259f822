"""`make gpu`: independent stages and the results they record."""

import json
import subprocess
import sys
from argparse import Namespace

import pytest

from benchmarks.gpu_goals import GOALS
from benchmarks.results import load
from helpers import gpu_stages
from helpers.gpu_stages import BENCHES, FIRST, MOST_SECONDS, STAGES, TRAININGS, Step, main, run
from tgflow.cli.benchmarks.row import Row


def python(code: str, name: str = "step", **options) -> Step:
    return Step(name, [sys.executable, "-c", code], **options)


def test_failed_step_does_not_stop_the_others(tmp_path, capsys):
    steps = [
        python("print('bad'); exit(3)", "one"),
        Step("two", [tmp_path / "no-such-command"]),
        Step("three", status="left out: there is no GPU"),
        python("print('fine')", "four"),
    ]
    ended = run(iter(steps), tmp_path)
    assert [is_failure for _, is_failure in ended] == [True, True, False, False]
    for (line, _), status in zip(
        ended, ("failed with status 3", "failed with status 127", "left out", "passed"), strict=True
    ):
        assert status in line
    assert (tmp_path / "four.log").read_text().endswith("\n\nfine\n")
    assert "    bad" in capsys.readouterr().out


def test_every_stage_is_limited_to_eight_minutes(monkeypatch):
    monkeypatch.setattr(gpu_stages.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(gpu_stages.shutil, "rmtree", lambda *_, **__: None)
    given = Namespace(wheels=None, data=None, base=None)
    for name, stage in STAGES.items():
        assert sum(step.limit_s for step in stage(given) if step.command) <= MOST_SECONDS, name
    steps = gpu_stages.measured([*FIRST, *BENCHES, *TRAININGS])
    kept = {step.output.partition("-")[2] for step in steps if step.output is not None}
    assert kept == {f"{goal.bench}.json" for goal in GOALS}


def test_steps_share_the_seconds_of_a_command_and_logs_are_packed_after_each(tmp_path, monkeypatch):
    monkeypatch.setenv("OUT", str(tmp_path))
    packed, logs = tmp_path / "log.tar.gz", tmp_path / "logs"
    steps = [Step("one", ["true"], limit_s=99), Step("two", ["tar", "tzf", packed])]
    for seconds, status in ((9, "passed"), (0.5, "left out: no time")):
        assert [line.split(" s  ")[1] for line, _ in run(iter(steps), logs, seconds)] == [
            status
        ] * 2
    assert "--signal=KILL 8 true" in (logs / "one.log").read_text()
    assert "./one.log" in (logs / "two.log").read_text()


def test_missing_packages_are_named_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_stages, "BUILT", tmp_path)
    monkeypatch.setattr(gpu_stages, "find_spec", lambda name: None if name[:3] == "pyd" else name)
    monkeypatch.setitem(STAGES, "smoke", lambda given: pytest.fail("a step has begun"))
    assert main(["smoke", "--logs", str(tmp_path / "logs")]) == 1
    error = capsys.readouterr().err
    assert "no pydantic, pydantic_core here; install them" in error
    assert "make gpu WHEELS=" in error
    (tmp_path / "pydantic-2.13-py3-none-any.whl").touch()
    assert gpu_stages.missing(["build"], tmp_path) == ["pydantic_core"]
    (tmp_path / "pydantic_core").mkdir()
    assert gpu_stages.missing(["smoke"], None) == ["pydantic"]


def test_changed_kernels_are_sanitized_after_a_planted_fault(tmp_path, monkeypatch):
    def git(*words):
        name = ["-c", "user.name=x", "-c", "user.email=x"]
        subprocess.run(["git", *name, *words], cwd=tmp_path, check=True, capture_output=True)

    def write(name, text):
        file = tmp_path / "csrc/cuda" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    sanitizer = tmp_path / "sanitizer"
    monkeypatch.setattr(gpu_stages, "ROOT", tmp_path)
    monkeypatch.setattr(gpu_stages.shutil, "which", lambda name: str(sanitizer))
    for name in "ab":
        write(f"{name}.cu", f'extern "C" __global__ void {name}(int* x) {{}}\n')
    assert gpu_stages.kernel_names("HEAD") == ["a", "b"], "there is no git"
    for words in (["init"], ["add", "."], ["commit", "-m", "x"]):
        git(*words)
    given = Namespace(base="HEAD")
    assert "no kernel has changed" in [*gpu_stages.sanitize(given)][-1].status
    write("b.cu", 'extern "C" __global__ void c(int* x) {}\n')
    planted, *tools = gpu_stages.sanitize(given)
    assert [gpu_stages.KERNEL.findall(gpu_stages.FAULT)] == [["planted"]]
    assert all("--kernel-name=kernel_name=c" in step.command for step in tools)
    assert not any("--kernel-name=kernel_name=a" in step.command for step in tools)
    for status, found in ((9, "passed"), (0, "failed with status 0")):
        sanitizer.write_text(f"#!/bin/sh\nexit {status}\n")
        sanitizer.chmod(0o700)
        assert planted.run(tmp_path) == found
    write("d.hpp", "")
    git("add", ".")
    assert gpu_stages.kernel_names("HEAD") == ["a", "c"]


def test_rows_are_returned_with_the_logs(tmp_path, monkeypatch, capsys):
    goal = next(each for each in GOALS if each.bench == "train" and not each.is_ratio)
    row = json.dumps([Row(goal.name, 3e9, goal.unit, goal.params).to_json()])
    step = python(f"print({row!r})", "bench train 0", output="rows/0-train.json")
    monkeypatch.setitem(STAGES, "train", lambda _: iter([step]))
    monkeypatch.setattr(gpu_stages, "RESULTS", tmp_path / "kept")
    assert main(["train", "--logs", str(tmp_path / "out")]) == 0
    for folder in (tmp_path / "out" / "results", tmp_path / "kept"):
        assert load(folder / "gpu-train.json").rows[0].value == 3e9
    assert "figures" in (tmp_path / "out" / "summary.txt").read_text()
    assert f"| {goal.what} | **3G** | " in capsys.readouterr().out
