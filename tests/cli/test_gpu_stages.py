"""`make gpu`: independent stages and the results they record."""

import json
import sys
import time
from argparse import Namespace

import pytest

from benchmarks.gpu_goals import GOALS
from benchmarks.results import load
from helpers import gpu_stages
from helpers.gpu_stages import BENCHES, MOST_SECONDS, STAGES, TRAININGS, Step, main, run
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


@pytest.mark.slow
def test_step_and_its_processes_are_killed_at_its_time_limit(tmp_path):
    sleeper = "import subprocess, sys, time; subprocess.run([sys.executable, '-c', 'import time; "
    sleeper += 'time.sleep(2); open(sys.argv[1], "w")\', sys.argv[1]])'
    mark = tmp_path / "mark"
    step = Step("slow", [sys.executable, "-c", sleeper, mark], limit_s=1)
    assert step.run(tmp_path) == "not done after 1 s"
    time.sleep(2)
    assert not mark.exists()


def test_every_stage_is_limited_to_eight_minutes(monkeypatch):
    monkeypatch.setattr(gpu_stages.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(gpu_stages.shutil, "rmtree", lambda *_, **__: None)
    given = Namespace(wheels=None, data=None)
    for name, stage in STAGES.items():
        assert sum(step.limit_s for step in stage(given) if step.command) <= MOST_SECONDS, name
    steps = gpu_stages.measured([*BENCHES, *TRAININGS])
    kept = {step.output.partition("-")[2] for step in steps if step.output is not None}
    assert kept == {f"{goal.bench}.json" for goal in GOALS}


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
