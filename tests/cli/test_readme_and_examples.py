"""What the README and the examples show works as it stands."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from helpers.effort import slow
from tgflow.cli import main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_readme_fits_on_a_screen_or_two_and_opens_with_two_commands():
    assert len(README.split()) <= 700
    assert [line.split("  ")[0] for line in blocks("sh")[0].splitlines()] == [
        "make demo",
        "make test",
    ]


def test_the_first_command_of_the_readme_writes_scores(tmp_path, monkeypatch):
    command = blocks("sh")[1].splitlines()[0]
    words = command.replace("examples/data", f"{ROOT}/examples/data").split("#")[0].split()[1:]
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--limit", "100", "-m", "recency", "--batch-size", "50"]) == 0
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 101


def test_the_python_of_the_readme_runs(capsys):
    loop, own = blocks("python")
    assert len(loop.splitlines()) <= 10
    names = {}
    for code in (loop.replace("10_000", "2_000"), own.replace("2_000", "400")):
        exec(code.replace("examples/data", f"{ROOT}/examples/data"), names)  # noqa: S102
    assert re.fullmatch(r"2000 events  AP 0\.\d{3}\n", capsys.readouterr().out)
    assert names["model"].state.state_dict()["rows"].any()


@pytest.mark.parametrize(
    ("script", "args", "text"),
    [
        ("quickstart.py", ["--limit", 2000], "was last in touch with"),
        ("compare_models.py", ["--limit", 600, "--epochs", 1], "TGAT"),
        ("compare.py", ["--limit", 600, "--seeds", 1], "is ahead of"),
        ("ask_a_run.py", ["--limit", 1000], "may write to"),
        ("fraud.py", ["--limit", 2000], "by the account's last known label"),
        ("own_model.py", ["--limit", 1000], "1000 events: AP 0."),
        ("own_loop.py", ["--limit", 1000], "1000 events: AP 0."),
        ("cached_features.py", ["--limit", 1000], "the same: True"),
        ("zero_copy.py", ["--rows", 2000, "--steps", 3], "with the table the same: True"),
        slow("ask_over_http.py", ["--limit", 3000], "may write to"),
        slow("kill_a_rank.py", ["--limit", 4000], "the same bits: True"),
    ],
)
def test_examples_run(script, args, text, monkeypatch, capsys):
    if script == "own_loop.py":
        pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")
    if script == "ask_over_http.py":
        pytest.importorskip("fastapi", reason="fastapi is not installed")
    path = ROOT / "examples" / script
    monkeypatch.setattr("sys.argv", [str(path), *map(str, args)])
    runpy.run_path(str(path), run_name="__main__")
    assert text in capsys.readouterr().out


def test_examples_are_short_and_open_with_their_command():
    for path in (ROOT / "examples").glob("*.py"):
        code = path.read_text(encoding="utf-8")
        assert len(code.splitlines()) < 150
        opening = code.split('"""')[1]
        assert f"python examples/{path.name}" in opening
        for word in ("Shows:", "rotocol", "Expect:"):
            assert word in opening, (path.name, word)
