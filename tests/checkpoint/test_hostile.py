"""Hostile checkpoint files are refused quickly and with little memory."""

import hashlib
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from helpers.effort import tries
from helpers.forged import sign_manifest
from tgflow import load, save
from tgflow.checkpoint import Checkpoint, CheckpointDamaged, CheckpointVersion, UntrustedCheckpoint
from tgflow.checkpoint.typed import read_as, read_natural

MIB = 1 << 20


def manifest_of(files, meta=None):
    """Return a manifest with valid digests."""
    return sign_manifest({"format": 2, "files": files, "meta": meta or {}, "state_sha256": ""})


def entry(data, **changes):
    digest = hashlib.sha256(data).hexdigest()
    return {"bytes": len(data), "sha256": digest, "sealed": False} | changes


def hostile(path, data, name="model.safetensors"):
    """Create a checkpoint of one file with this content."""
    path.mkdir()
    (path / name).write_bytes(data)
    (path / "manifest.json").write_bytes(manifest_of({name: entry(data)}))
    return path


def tensors_file(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def described(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


class Evil:
    def __reduce__(self):
        return os.system, ("touch executed",)


HEADERS = {
    "a pickle": pickle.dumps(Evil()) + bytes(100),
    "a header of a tebibyte": struct.pack("<Q", 1 << 40) + b"{}",
    "a header of all 64 bits": b"\xff" * 8 + b"{}",
    "no JSON": tensors_file(b"\xff{}"),
    "two of one name": tensors_file(b'{"w":1,"w":2}'),
    "overlapping tensors": tensors_file({"a": described(), "b": described()}, bytes(8)),
    "a gap": tensors_file({"a": described(offsets=(4, 12))}, bytes(12)),
    "data that no tensor has": tensors_file({"a": described()}, bytes(9)),
    "2^40 elements": tensors_file({"a": described(shape=(1 << 40,))}, bytes(8)),
    "an unknown kind": tensors_file({"a": described(dtype="OBJ")}, bytes(8)),
    "too many axes": tensors_file({"a": described(shape=(1,) * 40 + (2,))}, bytes(8)),
    "offsets back to front": tensors_file({"a": described(offsets=(8, 0))}, bytes(8)),
}


JUDGE = """
import resource, sys, time, tgflow.checkpoint.directory as c
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
for path in sys.stdin:
    name, before, start = 'loaded', peak(), time.process_time()
    try: c.load(path.rstrip('\\n'))
    except Exception as error: name = type(error).__name__ + ': ' + str(error)
    print(time.process_time() - start, peak() - before, name, flush=True)
"""


@pytest.fixture(scope="module")
def judged():
    """Load paths in a separate process; return CPU seconds, memory growth in bytes, error."""
    command, pipe = [sys.executable, "-c", JUDGE], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:

        def judge(path):
            process.stdin.write(f"{path}\n")
            process.stdin.flush()
            seconds, growth, name = process.stdout.readline().split(" ", 2)
            return float(seconds), int(growth), name

        yield lambda paths: map(judge, paths)
        process.stdin.close()


def test_hostile_files_are_refused_within_time_and_memory_limits(judged, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = tensors_file({})
    manifests = {
        "a way out": {"../../x.safetensors": entry(good)},
        "an absolute way out": {str(tmp_path / "x.safetensors"): entry(good)},
        "another kind of file": {"model.pt": entry(good)},
        "a hidden file": {".model.safetensors": entry(good)},
        "no digest": {"model.safetensors": entry(good, sha256=3)},
        "no size": {"model.safetensors": entry(good, bytes="3")},
        "a size below zero": {"model.safetensors": entry(good, bytes=-1)},
        "a tebibyte": {"model.safetensors": entry(good, bytes=1 << 50)},
        "a million values": {"model.safetensors": entry(good, more=[[]] * 10**6)},
    }
    made = [hostile(tmp_path / name, data) for name, data in HEADERS.items()]
    for name, files in manifests.items():
        made.append(hostile(tmp_path / name, good))
        (made[-1] / "manifest.json").write_bytes(manifest_of(files))
    (tmp_path / "x.safetensors").write_bytes(good)
    for path, (seconds, growth, said) in zip(made, judged(made), strict=True):
        assert said.startswith("UntrustedCheckpoint"), (path.name, said)
        assert seconds < 1, (path.name, seconds)
        assert growth < 64 * MIB, (path.name, growth / MIB)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("kind", ["link", "directory", "pipe", "device"])
@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json"])
def test_only_regular_files_are_read(tmp_path, name, kind):
    path = hostile(tmp_path / "c", tensors_file({}))
    file = path / name
    if kind == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        file.unlink()
        make = {"directory": os.mkdir, "pipe": os.mkfifo, "device": os.mkfifo}[kind]
        make(file)
        if kind == "device":
            file.unlink()
            file.symlink_to("/dev/zero")
    start = time.perf_counter()
    with pytest.raises(UntrustedCheckpoint):
        load(path)
    assert time.perf_counter() - start < 1


def test_sparse_file_of_one_tebibyte_is_not_read(tmp_path):
    path = hostile(tmp_path / "c", tensors_file({}))
    with (path / "model.safetensors").open("r+b") as file:
        file.truncate(1 << 40)
    (path / "manifest.json").write_bytes(
        manifest_of({"model.safetensors": entry(b"", bytes=1 << 40)})
    )
    with pytest.raises(UntrustedCheckpoint, match="at most"):
        load(path)
    with (path / "manifest.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(UntrustedCheckpoint, match="at most"):
        load(path)


DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32),
    *(torch.uint64, torch.float8_e5m2, torch.float8_e4m3fn),
]


@given(
    shapes=st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)), max_size=8
    )
)
@settings(max_examples=tries(30))
def test_checkpoint_files_are_safetensors(tmp_path_factory, shapes):
    """Files are interchangeable with the safetensors library in both directions."""
    directory = tmp_path_factory.mktemp("c")
    tensors = {
        f"{'xyz'[i % 3]}{i}": torch.randint(0, 2, shape).to(dtype)
        for i, (dtype, shape) in enumerate(shapes)
    }
    path = save(directory / "ours", Checkpoint({"model": tensors}))
    read = load_file(path / "model.safetensors")
    save_file(tensors, directory / "theirs.safetensors")
    data = (directory / "theirs.safetensors").read_bytes()
    ours = load(hostile(directory / "theirs", data)).sections["model"]
    assert ours.keys() == read.keys() == tensors.keys()
    for name, x in tensors.items():
        for y in (ours[name], read[name]):
            assert y.dtype == x.dtype
            assert y.shape == x.shape
            assert torch.equal(y.double(), x.double())


FUZZ = settings(max_examples=tries(80), suppress_health_check=[HealthCheck.function_scoped_fixture])


def try_to_load(path):
    start = time.perf_counter()
    with suppress(CheckpointDamaged, CheckpointVersion, UntrustedCheckpoint):
        load(path)
    assert time.perf_counter() - start < 5  # on a busy machine


@given(data=st.data())
@FUZZ
def test_fuzzed_headers_with_valid_digests_raise_a_declared_error(tmp_path, data):
    """Mutations of a valid file with recomputed digests."""
    events = {"src": torch.arange(5), "t": torch.rand(5), "flag": torch.tensor(True)}
    made = save(tmp_path / "sound", Checkpoint({"events": events}))
    sound = bytearray((made / "events.safetensors").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(sound) - 1))
        sound[at] = data.draw(st.integers(0, 255))
    path = tmp_path / "c"
    shutil.rmtree(path, ignore_errors=True)
    try_to_load(hostile(path, bytes(sound)))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(
    files=json_values | st.dictionaries(st.just("model.safetensors"), json_values), meta=json_values
)
@FUZZ
def test_fuzzed_manifests_with_valid_digests_raise_a_declared_error(tmp_path, files, meta):
    path = tmp_path / "c"
    shutil.rmtree(path, ignore_errors=True)
    hostile(path, tensors_file({}))
    (path / "manifest.json").write_bytes(manifest_of(files, meta))
    try_to_load(path)


@dataclass
class Pair:
    first: int
    rest: dict[str, tuple[float, float]] | None


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (int, True, "key is True, expected int"),
        (int, 2**70, "expected int"),
        (float, True, "expected float"),
        (float, float("nan"), "key is nan, expected float"),
        (Literal["a", 1], True, "key is True"),
        (list[int], [1, "x"], r"key\[1\] is 'x', expected int"),
        (dict[str, int], {"a": None}, r"key\.a is None"),
        (tuple[int, int], [1], r"key is \[1\]"),
        (tuple[int, ...], [1, "x"], r"key\[1\] is 'x', expected int"),
        (Pair, {"first": 1}, "key lacks 'rest'"),
        (Pair, {"first": 1, "rest": None, "more": 2}, "key has an unknown 'more'"),
        (Pair, {"first": 1, "rest": {"a": [1]}}, "key.rest"),
        (Pair | None, 5, "key is 5"),
    ],
)
def test_value_of_a_wrong_type_is_refused_by_its_key(kind, value, text):
    with pytest.raises(UntrustedCheckpoint, match=text):
        read_as(kind, value, "key")


@pytest.mark.parametrize(
    ("kind", "value"),
    [(int, -(2**63)), (int | None, None), (Literal["a", 1], 1), (tuple[str, ...], ("a", "b"))],
)
def test_value_of_the_right_type_is_returned_unchanged(kind, value):
    assert read_as(kind, value, "key") == value


def test_negative_count_is_refused():
    assert read_natural({"n": 3}, "n") == 3
    for meta, text in (({"n": -1}, "n is -1"), ({}, "n is None"), ({"n": 2.0}, "n is 2.0")):
        with pytest.raises(UntrustedCheckpoint, match=text):
            read_natural(meta, "n")
