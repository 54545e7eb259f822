"""`make gpu`: stages that do not stop one another, and the figures that they leave."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu_goals import GOALS, Goal, goal_table, keep, measured
from benchmarks.results import load
from helpers import gpu_stages
from helpers.emulator import KERNELS
from helpers.gpu_stages import (
    BENCHES,
    MOST_SECONDS,
    STAGES,
    TRAININGS,
    Outcome,
    Step,
    main,
    run,
    run_step,
)
from tgflow.bench.row import Row
from tgflow.cuda.sources import KERNEL


def python(code: str, name: str = "step", **options) -> Step:
    return Step(name, [sys.executable, "-c", code], **options)


def test_a_stage_that_fails_stops_no_other(tmp_path, monkeypatch, capsys):
    stages = {
        "first": lambda _: iter([python("print('bad'); exit(3)", "one"), python("", "two")]),
        "second": lambda _: iter([python("print('fine')", "three")]),
        "third": lambda _: iter([Outcome("four", "left out: there is no GPU", 0.0)]),
    }
    monkeypatch.setattr(gpu_stages, "STAGES", stages)
    outcomes = run(list(stages), None, tmp_path)
    assert [each.status for each in outcomes] == [
        "failed with status 3",
        "passed",
        "passed",
        "left out: there is no GPU",
    ]
    assert [each.is_failure for each in outcomes] == [True, False, False, False]
    assert (tmp_path / "three.log").read_text().endswith("\n\nfine\n")
    assert "    bad" in capsys.readouterr().out


@pytest.mark.slow
def test_a_step_and_what_it_started_end_at_its_limit(tmp_path):
    sleeper = "import subprocess, sys, time; subprocess.run([sys.executable, '-c', 'import time; "
    sleeper += 'time.sleep(2); open(sys.argv[1], "w")\', sys.argv[1]])'
    mark = tmp_path / "mark"
    step = Step("slow", [sys.executable, "-c", sleeper, mark], limit_s=1)
    outcome = run_step(step, tmp_path)
    assert outcome.status == "not done after 1 s"
    assert outcome.is_failure
    time.sleep(2)
    assert not mark.exists()


def test_a_command_that_is_not_there_is_a_failure_like_others(tmp_path):
    outcome = run_step(Step("odd", [tmp_path / "no-such-command"]), tmp_path)
    assert outcome.status.startswith("cannot be run: ")
    assert outcome.is_failure


def test_rows_go_to_their_own_file(tmp_path):
    code = "import sys; print('[]'); print('hm', file=sys.stderr)"
    step = python(code, output=Path("rows") / "a.json")
    assert run_step(step, tmp_path).status == "passed"
    assert (tmp_path / "rows" / "a.json").read_text() == "[]\n"
    assert "hm" in (tmp_path / "step.log").read_text()


def test_a_build_without_its_backend_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_stages, "BUILT", tmp_path / "gpu")
    monkeypatch.setattr(gpu_stages, "BACKEND", {"no_such_module": "no-such>=1", "sys": "sys"})
    (tmp_path / "a.whl").touch()
    wheels, core = STAGES["build"](tmp_path)
    assert wheels.command[-1] == tmp_path / "a.whl"
    assert core.status.startswith("not possible without no-such>=1: install them")
    assert core.is_failure
    (tmp_path / "gpu" / "no_such_module").mkdir(parents=True)
    assert gpu_stages.missing_backend(tmp_path / "gpu") == []


def test_every_stage_is_done_in_eight_minutes(monkeypatch):
    monkeypatch.setattr(gpu_stages.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(gpu_stages.shutil, "rmtree", lambda *_, **__: None)
    for name, stage in STAGES.items():
        steps = [step for step in stage(None) if isinstance(step, Step)]
        assert sum(step.limit_s for step in steps) <= MOST_SECONDS, name
    steps = gpu_stages.measured([*BENCHES, *TRAININGS])
    kept = {step.output.stem.partition("-")[2] for step in steps if step.output is not None}
    assert kept == {goal.bench for goal in GOALS}


def test_sanitizers_look_at_our_own_kernels_alone(monkeypatch):
    texts = [path.read_text() for path in KERNELS]
    assert gpu_stages.kernel_names() == [x for text in texts for x in re.findall(KERNEL, text)]
    monkeypatch.setattr(gpu_stages.shutil, "which", lambda _: None)
    assert [each.status for each in STAGES["sanitize"](None)] == [
        "left out: there is no compute-sanitizer"
    ]


@pytest.mark.slow
def test_what_was_measured_comes_back_with_the_logs(tmp_path, monkeypatch, capsys):
    """On a machine that brings back one folder: rows, results, logs and the summary are in it."""
    goal = next(each for each in GOALS if each.bench == "train" and not each.is_ratio)
    row = json.dumps([Row(goal.name, 3e9, goal.unit, goal.params).to_json()])
    step = python(f"print({row!r})", "bench train 0", output=Path("rows") / "0-train.json")
    monkeypatch.setitem(STAGES, "train", lambda _: iter([step]))
    monkeypatch.setattr(gpu_stages, "RESULTS", tmp_path / "kept")
    assert main(["train", "--logs", str(tmp_path / "out")]) == 0
    out = tmp_path / "out"
    for folder in (out / "results", tmp_path / "kept"):
        assert load(folder / "gpu-train.json").rows[0].value == 3e9
    assert "figures" in (out / "summary.txt").read_text()
    assert f"| {goal.what} | **3G** | " in capsys.readouterr().out


def test_tests_of_settings_are_left_out_without_pydantic():
    assert "tests/tables/test_tables.py" in gpu_stages.gpu_tests(False)
    assert "tests/cuda/test_capture.py" in gpu_stages.gpu_tests(False)
    assert not [path for path in gpu_stages.gpu_tests(False) if path.startswith("tests/cli")]


ROWS = [
    Row("speed", 9.0, "events/s", {"batch": 200}, baseline=3.0),
    Row("speed", float("nan"), "events/s", {"batch": 600}),
]


def test_figures_are_kept_and_stand_beside_their_goals(tmp_path):
    rows, folder = tmp_path / "rows", tmp_path / "results"
    rows.mkdir()
    for number, part in enumerate(ROWS):
        (rows / f"{number}-race.json").write_text(json.dumps([part.to_json()]))
    (rows / "2-race.json").write_text("[{")  # ended by its limit
    (rows / "3-other.json").write_text("")
    found = keep(rows, folder)
    assert list(found) == ["race"]
    assert [row.to_json() for row in found["race"].rows] == [row.to_json() for row in ROWS]
    assert load(folder / "gpu-race.json").command == "make gpu STAGES=bench (race)"
    assert measured(Goal("", "race", "speed", 5, "", {"batch": 200}), ROWS) == 9
    assert measured(Goal("", "race", "speed", 5, "", {"batch": 200}, "", True), ROWS) == 3
    assert measured(Goal("", "race", "speed", 5, "", {"batch": 600}), ROWS) is None


@pytest.mark.parametrize(("value", "said"), [(6.0, "**6** |"), (4.0, "**4**: short |")])
def test_the_table_names_what_was_not_measured(value, said, monkeypatch, tmp_path):
    goals = (Goal("a race", "race", "speed", 5, "x"), Goal("a walk", "walk", "speed", 5, "x"))
    monkeypatch.setattr("benchmarks.gpu_goals.GOALS", goals)
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "0-race.json").write_text(json.dumps([Row("speed", value, "x").to_json()]))
    lines = list(goal_table(keep(rows, tmp_path)))
    assert said in lines[2]
    assert "| a walk | not measured | 5 x |" in lines[3]
    assert list(goal_table({}))[-1] == "Measured on: no GPU."
