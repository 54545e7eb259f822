"""Checkpoints: named tensors and plain JSON in a directory that is whole or absent.

A checkpoint is a directory with one `.safetensors` file per section and a `manifest.json` that
names each file's size and SHA-256. It is written beside its target and renamed into place; reading
checks every digest before anything is parsed. Nothing in it can run code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

FORMAT = 1
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 16 << 20
_SECTION = re.compile(r"[a-z0-9][a-z0-9_-]{0,50}")

Tensors = dict[str, Tensor]


class CheckpointError(RuntimeError):
    """A checkpoint that is missing, incomplete, altered or of another format."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is saved: tensors by section and name, and what JSON can hold beside them."""

    sections: dict[str, Tensors]
    """Sections such as "model", "optimizer", "memory" and "events"; names match [a-z0-9_-]."""
    meta: dict[str, Any] = field(default_factory=dict)
    """Configuration, seeds and counters: dicts, lists, strings, numbers, bools, None."""


def save(path: str | os.PathLike[str], checkpoint: Checkpoint) -> Path:
    """Write `checkpoint` as the directory `path`, whole or not at all, and return its path.

    One that is already there is replaced: it stays readable until the new one is on the disk.

    Raises:
        ValueError: If a section's name is not usable, or `meta` is not JSON.
        OSError: If the disk refuses; `path` is then as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tmp-{path.name}-{uuid.uuid4().hex[:8]}")
    temporary.mkdir()
    try:
        _write_files(temporary, checkpoint)
        _replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return path


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """Return the checkpoint in the directory `path`; its tensors are copies in host memory.

    Raises:
        CheckpointError: If it is missing, of another format, or any file is not what was written.
    """
    path = Path(path)
    manifest = read_manifest(path)
    sections = {}
    for name, entry in manifest["files"].items():
        data = _read_checked(path / name, entry)
        try:
            sections[name.removesuffix(".safetensors")] = safetensors.torch.load(data)
        except SafetensorError as error:
            raise CheckpointError(f"{path / name} is not a safetensors file: {error}") from None
    return Checkpoint(sections, manifest["meta"])


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the manifest of the checkpoint `path` without reading its tensors.

    Returns:
        `format`, `versions`, `meta` and `files` (`{name: {bytes, sha256}}`).

    Raises:
        CheckpointError: If it is missing, too large, not a manifest, or of another format.
    """
    file = Path(path) / MANIFEST
    try:
        data = _read_file(file, MAX_MANIFEST_BYTES)
        manifest = json.loads(data)
    except FileNotFoundError:
        raise CheckpointError(f"{path} holds no checkpoint: it has no {MANIFEST}") from None
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON: {error}") from None
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if type(found) is not int or found != FORMAT:
        raise CheckpointError(f"{file} has format {found!r}, this tgflow reads {FORMAT}")
    _check_manifest(file, manifest)
    return manifest  # type: ignore[no-any-return]


def _write_files(directory: Path, checkpoint: Checkpoint) -> None:
    files = {}
    for section, tensors in checkpoint.sections.items():
        if not _SECTION.fullmatch(section):
            raise ValueError(f"section {section!r} must match {_SECTION.pattern}")
        copies = {name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}
        data = safetensors.torch.save(copies)  # which refuses tensors that share storage
        name = f"{section}.safetensors"
        _write_file(directory / name, data)
        files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest = {
        "format": FORMAT,
        "versions": {"torch": torch.__version__, "safetensors": safetensors.__version__},
        "meta": checkpoint.meta,
        "files": files,
    }
    text = json.dumps(manifest, indent=1, allow_nan=False)
    _write_file(directory / MANIFEST, text.encode())
    _sync_directory(directory)


def _replace(temporary: Path, path: Path) -> None:
    """Give `temporary` its name; an older checkpoint there goes only once the new one is safe."""
    old = None
    if path.exists():
        old = path.with_name(f".old-{path.name}-{uuid.uuid4().hex[:8]}")
        path.rename(old)
    try:
        temporary.rename(path)
    except OSError:
        if old is not None:
            old.rename(path)
        raise
    _sync_directory(path.parent)
    if old is not None:
        shutil.rmtree(old)


def _write_file(file: Path, data: bytes) -> None:
    with file.open("xb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_file(file: Path, max_bytes: int) -> bytes:
    """Read a plain file, never through a link, of at most `max_bytes`."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as opened:
        size = os.fstat(descriptor).st_size
        if size > max_bytes:
            raise CheckpointError(f"{file} has {size} bytes, at most {max_bytes} were expected")
        return opened.read()


def _read_checked(file: Path, entry: dict[str, Any]) -> bytes:
    try:
        data = _read_file(file, entry["bytes"])
    except FileNotFoundError:
        raise CheckpointError(f"{file} is in the manifest but not on the disk") from None
    if len(data) != entry["bytes"] or hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise CheckpointError(
            f"{file} is not what was written (size or SHA-256 differ); use an older checkpoint"
        )
    return data


def _check_manifest(file: Path, manifest: dict[str, Any]) -> None:
    files, meta = manifest.get("files"), manifest.get("meta")
    if not isinstance(files, dict) or not isinstance(meta, dict):
        raise CheckpointError(f"{file} lacks files or meta")
    for name, entry in files.items():
        section = name.removesuffix(".safetensors")
        if not _SECTION.fullmatch(section) or name == section:
            raise CheckpointError(f"{file} names a file {name!r} that no checkpoint has")
        if (
            not isinstance(entry, dict)
            or type(entry.get("bytes")) is not int
            or not isinstance(entry.get("sha256"), str)
        ):
            raise CheckpointError(f"{file} lacks size or digest of {name}")
