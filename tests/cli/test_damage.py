"""Fuzzed run directories: damage is detected with the right exit code or changes no result."""

import copy
import json
import os
import random
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.forged import flip_bit, sign_checkpoint
from helpers.live_runs import SMALL, write_features
from tgflow.checkpoint import read_manifest
from tgflow.cli import main

FLIPS = int(os.environ.get("TGFLOW_FLIPS", "100"))
CASES = int(os.environ.get("TGFLOW_WRONG_VALUES", "120"))
KINDS = {
    "tables": ["--feature-scale", "auto", "--edge-table", "auto", "--edge-cache", "4KiB"],
    "scores": ["--scores", "{folder}/scores.parquet", "--max-wait", "1h"],
}
UNREAD = {".lock", "run.log", "report.html"}
"""Files that a run writes and never reads."""
FOUND, SETTINGS = {76, 77}, {2, 65, 66}
"""Exit codes of damaged or untrusted files, and of wrong settings."""
VALUES = (None, True, -1, 2**62, 2**70, 1.5, "x", [], {}, [[[]]])


@pytest.fixture(scope="module", params=KINDS)
def broken_off(request, tmp_path_factory):
    """Return a run with checkpoints and a longer log, and the digest of its final state."""
    folder = tmp_path_factory.mktemp("made")
    lines = write_features(folder / "made.csv", 300).read_text().splitlines()
    lines[40] = "x,y,soon,1,2"
    (folder / "made.csv").write_text("\n".join(lines) + "\n")
    run = folder / "run"
    kind = [word.format(folder=folder) for word in KINDS[request.param]]
    options = ["--features", "f*", *kind, "-o", run, *SMALL]
    how = ["--checkpoint-batches", 2, "--set", "checkpoint.keep=2", "--max-bad-ratio", 0.5]
    assert main(list(map(str, ["run", "-s", folder / "made.csv", *options, *how]))) == 0
    digest = json.loads((run / "metrics.json").read_text())["state_sha256"]
    shutil.rmtree(max((run / "checkpoints").iterdir()))
    return run, digest


@pytest.mark.slow
def test_flipped_bit_is_detected_or_harmless(broken_off, tgflow):
    run, digest = broken_off
    scores = run.parent / "scores.parquet"
    rows = pq.read_table(scores) if scores.exists() else None
    chance = random.Random(1)
    for _ in range(FLIPS):
        shutil.rmtree("copy", ignore_errors=True)
        to = Path(shutil.copytree(run, "copy"))
        files = [path for path in to.rglob("*") if path.is_file() and path.name not in UNREAD]
        path = chance.choice(sorted(path for path in files if path.stat().st_size))
        data = path.read_bytes()
        bit = chance.randrange(8 * len(data))
        path.write_bytes(flip_bit(data, bit))
        what = f"bit {bit} of {path}"
        looked, asked = tgflow("info", to), tgflow("predict", to, "--src", 3)
        scores.unlink(missing_ok=True)  # the interrupted run had written all of it
        ran = tgflow("run", "--resume", "-o", to)
        assert "Traceback" not in looked.err + asked.err + ran.err, what
        of_settings = SETTINGS if path.name == "config.toml" else set()
        assert looked.code in {0} | of_settings, (what, looked.err)
        assert asked.code in {0} | FOUND | of_settings, (what, asked.err)
        assert ran.code in {0} | FOUND | of_settings, (what, ran.err)
        if ran.code == 0 and not of_settings:
            found = json.loads((to / "metrics.json").read_text())
            assert found["state_sha256"] == digest, what
            assert rows is None or pq.read_table(scores).equals(rows), what


def keys_of(value, path=()):
    """Yield the paths of all values in a JSON value."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2])
    for key, item in inner:
        if isinstance(item, dict | list):
            yield from keys_of(item, (*path, key))
        else:
            yield (*path, key)


def changed(tensor, chance):
    """Return an invalid tensor."""
    ways = [
        lambda x: x.double() if x.is_floating_point() else x.float(),
        lambda x: x.reshape(-1)[:-1].clone(),
        lambda x: x.new_zeros(0),
        lambda x: x.reshape(1, -1).clone(),
        lambda x: -x - 1 if x.dtype.is_signed else ~x,
        lambda x: x.fill_(2**30) if x.dtype in (torch.int32, torch.int64) else x.flip(0),
    ]
    return chance.choice(ways)(tensor.reshape(-1).clone() if tensor.ndim == 0 else tensor.clone())


def spoil(checkpoint, chance):
    """Change one value of a checkpoint and recompute all digests; return the changed value."""
    manifest = read_manifest(checkpoint)
    if chance.random() < 0.5:
        *way, last = where = chance.choice(list(keys_of(manifest["meta"])))
        at = manifest["meta"]
        for key in way:
            at = at[key]
        at[last] = wrong = copy.deepcopy(chance.choice(VALUES))
        what = f"meta {where}: {wrong!r}"
    else:
        name = chance.choice(sorted(manifest["files"]))
        tensors = load_file(checkpoint / name)
        key = chance.choice(sorted(tensors)) if tensors else None
        if key is not None:
            tensors[key] = changed(tensors[key], chance).contiguous()
        save_file(tensors, checkpoint / name)
        what = f"{name}, {key}: {tensors.get(key)!r:.60}"
    sign_checkpoint(checkpoint, manifest)
    return what


@pytest.mark.slow
def test_wrong_value_with_valid_digests_is_refused_or_harmless(broken_off, tgflow):
    chance, run = random.Random(1), Path("copy")
    for _ in range(CASES):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(broken_off[0], run)
        [checkpoint] = (run / "checkpoints").iterdir()
        what = spoil(checkpoint, chance)
        for command in (("predict", run, "--src", 3), ("run", "--resume", "-o", run)):
            ran = tgflow(*command)
            is_explained = ran.code in {0, *SETTINGS, *FOUND, 74} or "is nan" in ran.err
            assert is_explained, (what, command, ran.code, ran.err)
            assert "Traceback" not in ran.err, what
