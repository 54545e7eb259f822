"""health.json, by which a supervisor knows how a run is."""

from __future__ import annotations

import math

import pytest

from tgflow.runtime import files
from tgflow.runtime.files import STATES, read_health, write_health


@pytest.mark.parametrize("state", STATES)
def test_states_tell_the_living_from_the_dead(tmp_path, state):
    path = tmp_path / "health.json"
    assert write_health(path, state, {"position": 7, "loss": math.nan})
    found = read_health(path)
    assert (found["state"], found["position"], found["loss"]) == (state, 7, None)
    assert found["alive"] == (state not in ("stopped", "done", "failed"))
    assert [p.name for p in tmp_path.iterdir()] == ["health.json"]


def test_a_file_that_is_old_or_from_the_future_is_not_alive(tmp_path, monkeypatch):
    path = tmp_path / "health.json"
    for shift in (-3600, 3600):
        monkeypatch.setattr(files.time, "time", lambda shift=shift: 1e9 + shift)
        write_health(path, "running", {})
        monkeypatch.setattr(files.time, "time", lambda: 1e9)
        assert not read_health(path)["alive"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"state": "running"}'])
def test_a_damaged_file_is_none(tmp_path, text):
    (tmp_path / "health.json").write_text(text)
    assert read_health(tmp_path / "health.json") is None
    assert read_health(tmp_path / "nowhere.json") is None
