from __future__ import annotations

import shutil

import pytest
import torch

from tgflow import _native, doctor


def found(name, folder=None):
    (check,) = [check for check in doctor.report(folder) if check.name == name]
    return check


def test_a_report_names_everything_once_and_advises_on_what_is_wrong():
    checks = doctor.report()
    names = [check.name for check in checks]
    assert len(set(names)) == len(names)
    assert {"python", "tgflow", "torch", "threads", "memory", "disk", "CUDA device"} <= set(names)
    assert all(check.detail for check in checks)
    assert all(check.advice for check in checks if check.status != "ok")
    assert found("tgflow").status == found("torch").status == found("pyarrow").status == "ok"


def test_a_full_disk_is_a_warning(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=5 * 10**8)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    check = found("disk", tmp_path)
    assert check.status == "warn"
    assert check.detail == f"0.5 GB free at {tmp_path}"


def test_how_tables_on_disk_are_read_is_tried_out(tmp_path, monkeypatch):
    check = found("row files", tmp_path)
    assert check.detail.endswith(f" at {tmp_path}")
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(_native, "probe_reads", lambda path: "pread through the page cache")
    assert found("row files", tmp_path).status == "warn"


def test_too_many_threads_are_a_warning(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 10_000)
    check = found("threads")
    assert check.status == "warn"
    assert "OMP_NUM_THREADS" in check.advice


def test_slow_vector_instructions_are_a_warning(monkeypatch):
    assert _native.simd_level() in found("vectors").detail
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")
    for level, status in (("AVX-512", "ok"), ("AVX2", "ok"), ("baseline", "warn")):
        monkeypatch.setattr(_native, "simd_level", lambda level=level: level)
        assert found("vectors").status == status


def test_without_a_compiler_the_report_says_what_it_is_for(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert found("compiler").status == "warn"
    assert "from source" in found("compiler").advice


@pytest.mark.parametrize("error", [OSError("broken"), RuntimeError("broken")])
def test_a_check_that_fails_is_a_finding(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(doctor.shutil, "disk_usage", fail)
    check = found("disk")
    assert check.status == "missing"
    assert check.detail == f"{type(error).__name__}: broken"
