"""`make gpu`: independent stages and the results they record."""

import json
import sys
from argparse import Namespace

from benchmarks.gpu_goals import GOALS
from benchmarks.results import Row, load
from helpers import gpu_stages
from helpers.gpu_stages import BENCHES, FIRST, MOST_SECONDS, STAGES, TRAININGS, Step, main, run


def python(code, name="step", **options):
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
