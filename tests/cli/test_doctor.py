"""`tgflow.cli.doctor.report`: each finding once, with advice where something is wrong."""

from __future__ import annotations

import shutil

import pytest
import torch

from tgflow.base import _native
from tgflow.cli import doctor


def found(name, folder=None):
    (check,) = [check for check in doctor.report(folder) if check.name == name]
    return check


def test_report_lists_each_check_once_with_advice_for_failures(tmp_path):
    checks = {check.name: check for check in doctor.report(tmp_path)}
    assert len(checks) == len(doctor.report(tmp_path))
    assert {"python", "threads", "memory", "disk", "CUDA device"} <= checks.keys()
    assert all(check.detail for check in checks.values())
    assert all(check.advice for check in checks.values() if check.status != "ok")
    assert {checks[name].status for name in ("tgflow", "torch", "pyarrow")} == {"ok"}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "owner", "attribute", "value"),
    [
        ("disk", shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 0, 5 * 10**8)),
        ("row files", _native, "probe_reads", lambda _: "pread through the page cache"),
        ("threads", torch, "get_num_threads", lambda: 10_000),
        ("compiler", shutil, "which", lambda _: None),
    ],
)
def test_slow_or_limiting_settings_are_warnings(monkeypatch, name, owner, attribute, value):
    monkeypatch.setattr(owner, attribute, value)
    assert found(name).status == "warn"
    assert found(name).advice


def test_slow_vector_instructions_are_a_warning(monkeypatch):
    assert _native.simd_level() in found("vectors").detail
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")
    for level, status in (("AVX-512", "ok"), ("AVX2", "ok"), ("baseline", "warn")):
        monkeypatch.setattr(_native, "simd_level", lambda level=level: level)
        assert found("vectors").status == status


@pytest.mark.parametrize("error", [OSError("broken"), RuntimeError("broken")])
def test_failing_check_is_a_finding(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(shutil, "disk_usage", fail)
    check = found("disk")
    assert check.status == "missing"
    assert check.detail == f"{type(error).__name__}: broken"
