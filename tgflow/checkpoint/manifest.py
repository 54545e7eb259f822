"""The manifest: which files a checkpoint has, and what they must be.

Since format 2 it begins with the SHA-256 of all that follows, so damage is recognized before
anything is parsed. A reader takes this format and the one before, by way of `_MIGRATIONS`.
"""

from __future__ import annotations

import hashlib
import json
import re
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch

from tgflow.checkpoint.content import Checkpoint
from tgflow.checkpoint.errors import CheckpointDamaged, CheckpointVersion, UntrustedCheckpoint

FORMAT = 2
NAME = "manifest.json"
MAX_BYTES = 16 << 20
MAX_ELEMENTS = 1 << 18
"""Commas: parsed, small values take many times the bytes they have in the file."""
SECTION = re.compile(r"[a-z0-9][a-z0-9_-]{0,50}")
SUFFIX = ".safetensors"
_START, _AFTER = b'{"sha256": "', b'",'
_DIGEST = re.compile(r"[0-9a-f]{64}")

Manifest = dict[str, Any]
Files = dict[str, dict[str, Any]]


def make(checkpoint: Checkpoint, files: Files, **more: Any) -> bytes:
    """Return the bytes of the manifest of `checkpoint`, written as `files`.

    Raises:
        ValueError: If the checkpoint's meta is not JSON, or too large.
    """
    manifest = {
        "format": FORMAT,
        "versions": {"tgflow": _own_version(), "torch": torch.__version__, "numpy": np.__version__},
        **more,
        "state_sha256": state_sha256(files, checkpoint),
        "files": files,
        "meta": checkpoint.meta,
    }
    rest = json.dumps(manifest, indent=1, allow_nan=False)[1:].encode()
    data = _START + hashlib.sha256(rest).hexdigest().encode() + _AFTER + rest
    if len(data) > MAX_BYTES or data.count(b",") > MAX_ELEMENTS:
        raise ValueError(
            f"meta makes a manifest of {len(data)} bytes and {data.count(b',')} values, at most "
            f"{MAX_BYTES} and {MAX_ELEMENTS} are read; keep large tables as tensors"
        )
    return data


def state_sha256(files: Files, checkpoint: Checkpoint) -> str:
    """Return one digest of all sections that are a function of the data alone."""
    digest = hashlib.sha256()
    for name in sorted(files):
        if name.removesuffix(SUFFIX) not in checkpoint.volatile:
            digest.update(f"{name} {files[name]['sha256']}\n".encode())
    return digest.hexdigest()


def parse(what: str, data: bytes) -> Manifest:
    """Return the manifest in `data`.

    Args:
        what: The file, for messages.
        data: All of the file.

    Raises:
        CheckpointDamaged: If it is not what was written.
        CheckpointVersion: If its format is not one this tgflow reads.
        UntrustedCheckpoint: If it is what was written, but not by tgflow.
    """
    after = len(_START) + 64
    sealed = data.startswith(_START) and data[after : after + len(_AFTER)] == _AFTER
    digest = hashlib.sha256(memoryview(data)[after + len(_AFTER) :]).hexdigest()
    if sealed and data[len(_START) : after] != digest.encode():
        raise CheckpointDamaged(f"{what} is not what was written; use an older checkpoint")
    if len(data) > MAX_BYTES or data.count(b",") > MAX_ELEMENTS:
        raise UntrustedCheckpoint(
            f"{what} has {len(data)} bytes and {data.count(b',')} values, at most {MAX_BYTES} and "
            f"{MAX_ELEMENTS} are read"
        )
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointDamaged(f"{what} is not JSON: {error}") from None
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if type(found) is not int or found != FORMAT:
        raise CheckpointVersion(
            f"{what} has format {found!r}, this tgflow reads {FORMAT}; use the tgflow that wrote it"
        )
    if not sealed:
        raise CheckpointDamaged(f"{what} lacks its own digest; use an older checkpoint")
    _check(what, manifest)
    return manifest  # type: ignore[no-any-return]


def _check(what: str, manifest: Manifest) -> None:
    files, meta = manifest.get("files"), manifest.get("meta")
    if not isinstance(files, dict) or not isinstance(meta, dict):
        raise UntrustedCheckpoint(f"{what} lacks files or meta")
    for name, entry in files.items():
        section = name.removesuffix(SUFFIX)
        if not SECTION.fullmatch(section) or name == section:
            raise UntrustedCheckpoint(f"{what} names a file {name!r:.80} that no checkpoint has")
        if not (
            isinstance(entry, dict)
            and type(entry.get("bytes")) is int
            and entry["bytes"] >= 0
            and isinstance(entry.get("sha256"), str)
            and _DIGEST.fullmatch(entry["sha256"])
            and type(entry.get("sealed")) is bool
        ):
            raise UntrustedCheckpoint(f"{what} lacks size or digest of {name}")


def _own_version() -> str | None:
    try:
        return version("tgflow-learn")
    except PackageNotFoundError:  # run from the sources
        return None
