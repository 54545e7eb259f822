"""`make gpu`: independent stages and the results they record."""

import sys
from argparse import Namespace

from benchmarks.gpu_goals import GOALS
from helpers import gpu_stages
from helpers.gpu_stages import BENCHES, MOST_SECONDS, STAGES, TRAININGS, Step, run


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
    given = Namespace(wheels=None, data=None)
    for name, stage in STAGES.items():
        assert sum(step.limit_s for step in stage(given) if step.command) <= MOST_SECONDS, name
    steps = gpu_stages.measured([*BENCHES, *TRAININGS])
    kept = {step.output.partition("-")[2] for step in steps if step.output is not None}
    assert kept == {f"{goal.bench}.json" for goal in GOALS}
