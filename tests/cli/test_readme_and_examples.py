"""What the README and the examples show works as it stands."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from helpers.effort import slow
from tgflow.cli import app, main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language):
    """Return the first block of the README in `language`."""
    return re.search(rf"```{language}\n(.*?)```", README, re.DOTALL).group(1)


def test_the_readme_opens_with_two_commands():
    assert block("sh").splitlines()[0].startswith("make demo")
    assert block("sh").splitlines()[1].startswith("make test")


def test_scores_are_what_the_readme_shows_first(tmp_path, monkeypatch):
    command, _, names, row = block("console").splitlines()
    words = command.replace("examples/data", f"{ROOT}/examples/data").split()[2:]
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--limit", "100", "-m", "recency", "--batch-size", "50"]) == 0
    found = (tmp_path / "scores.csv").read_text().splitlines()
    assert found[0] == names
    assert len(found[-1].split(",")) == len(row.split(","))


def test_the_first_example_is_short_and_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = block("python")
    assert len(code.splitlines()) < 15
    assert "10_000" in code
    code = code.replace("10_000", "1_000").replace("examples/data", f"{ROOT}/examples/data")
    (tmp_path / "first.py").write_text(code)
    runpy.run_path(str(tmp_path / "first.py"))
    assert re.fullmatch(r"1000 events  AP 0\.\d{3}  MRR 0\.\d{3}\n", capsys.readouterr().out)
    assert (tmp_path / "runs" / "first" / "manifest.json").exists()


def test_the_readme_names_every_command():
    for commands in app.COMMANDS.values():
        for name in commands:
            assert f"| `tgflow {name}` |" in README


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
