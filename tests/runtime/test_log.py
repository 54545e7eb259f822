"""What a run says: lines for machines, nothing that a terminal obeys."""

from __future__ import annotations

import json
import math

import pytest

from tgflow.runtime import log as module
from tgflow.runtime.log import RunLog
from tgflow.text import printable


def entries(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_messages_are_lines_of_json_and_warnings_are_said(tmp_path, capsys):
    notes = RunLog(tmp_path / "run.log")
    notes.info("start", "it begins", position=3, loss=math.nan)
    notes.warning("disk", "little room")
    notes.progress("half", position=4)
    notes.close()
    notes.error("end", "it ends")
    start, disk = entries(tmp_path / "run.log")
    assert (start["event"], start["level"], start["position"], start["loss"]) == (
        "start", "info", 3, None,
    )  # fmt: skip
    assert start["time"].endswith("+00:00")
    assert disk["level"] == "warning"
    assert capsys.readouterr().err == "tgflow: little room\ntgflow: it ends\n"


@pytest.mark.parametrize(
    "hostile", ["\x1b[2J\x1b]0;x\x07", "a\r\nb", "\u202eevil", "\x9b31m", "\ud800"]
)
def test_what_a_terminal_obeys_is_escaped(tmp_path, capsys, hostile):
    notes = RunLog(tmp_path / "run.log")
    notes.warning("bad", f"row is {hostile!s}", raw=hostile)
    notes.close()
    said = capsys.readouterr().err.removesuffix("\n")
    assert said.isprintable()
    assert said == f"tgflow: {printable(f'row is {hostile}')}"
    text = (tmp_path / "run.log").read_bytes()
    assert text.isascii()
    assert text.count(b"\n") == 1
    assert b"\x1b" not in text
    assert entries(tmp_path / "run.log")[0]["raw"] == hostile


def test_the_file_does_not_grow_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    notes = RunLog(tmp_path / "run.log")
    for number in range(100):
        notes.info("tick", "x" * 50, number=number)
    notes.close()
    assert {p.name for p in tmp_path.iterdir()} == {"run.log", "run.log.1"}
    assert all(path.stat().st_size < 1300 for path in tmp_path.iterdir())
    assert entries(tmp_path / "run.log")[-1]["number"] == 99
