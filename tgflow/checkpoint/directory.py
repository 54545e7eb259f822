"""Files of one checkpoint: atomic writes, and reads that trust nothing."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import re
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch

from tgflow.checkpoint import tensors
from tgflow.checkpoint.checkpoint import OF_PART, Checkpoint
from tgflow.checkpoint.durable.errors import FULL, DiskFull
from tgflow.checkpoint.durable.fs import RealFs, make_directories
from tgflow.checkpoint.names import (
    CheckpointDamaged,
    CheckpointDurabilityUnknown,
    CheckpointNotCommitted,
    CheckpointVersion,
    UntrustedCheckpoint,
)
from tgflow.checkpoint.typed import read_as

FORMAT = 2
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 16 << 20
MAX_ELEMENTS = 1 << 18
"""Maximum number of commas: parsed, small values take many times their size in the file."""
SECTION = re.compile(r"[a-z0-9][a-z0-9_-]{0,50}")
SUFFIX = ".safetensors"
ALIGNMENT = 64 << 10
"""Tensors of a sealed file begin at a multiple of it, so that they can be mapped: a large page."""
TEMPORARY = ".tmp-"
_START, _AFTER = b'{"sha256": "', b'",'
_REAL_FS = RealFs()

Manifest = dict[str, Any]
Files = dict[str, dict[str, Any]]
"""Files of a checkpoint: name, and the fields of a `FileEntry`."""
Announce = Callable[[Path, Path | None], Callable[[], Files]]
"""Makes other processes write files to a directory, or link unchanged ones from another.

Returns a function that waits and returns their files, or raises OSError if one has failed.
"""
Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Manifest entry of a file."""

    bytes: int
    sha256: str
    sealed: bool


@dataclass(frozen=True, slots=True)
class Written:
    """A checkpoint on disk whose sealed files may be linked to."""

    path: Path
    manifest: Manifest


def save(path: str | os.PathLike[str], checkpoint: Checkpoint) -> Path:
    """Write `checkpoint` atomically as the directory `path`, and return its path.

    An existing one is replaced, and stays readable until the new one is on disk.

    Raises:
        ValueError: If a section name is invalid, or `meta` is not JSON.
        DiskFull: If there is no space; `path` is unchanged.
        CheckpointNotCommitted: On a disk error; `path` is unchanged.
        CheckpointDurabilityUnknown: If it is in place, but may not survive a crash.

    Example:
        >>> trainer = tg.ContinualTrainer(model, tg.TemporalGraph())
        >>> _ = trainer.run([events])
        >>> tg.save("saved/first", trainer.checkpoint()).name
        'first'
    """
    path, fs = Path(path), _REAL_FS
    make_directories(fs, path.parent)
    with prepared(fs, path, checkpoint) as temporary:
        old = _old(path)
        if path.exists():
            if old.exists():
                fs.remove_directory(old)
            fs.rename(path, old)
        try:
            fs.rename(temporary, path)
        except OSError:
            with suppress(OSError):
                fs.rename(old, path)
            raise
    sync_names(fs, path)
    with suppress(FileNotFoundError):
        fs.remove_directory(old)
    return path


def load(
    path: str | os.PathLike[str], *, max_bytes: int | None = None, check_all: bool = True
) -> Checkpoint:
    """Load the checkpoint in the directory `path`; its tensors are copies in host memory.

    Sealed sections and those of id partitions are verified like the others, and read on demand.

    Args:
        path: The directory.
        max_bytes: Maximum total size. None allows the size of the machine's memory for the
            largest sealed section and all others.
        check_all: Whether to verify the on-demand sections now. Otherwise each is verified when it
            is read, which suffices on ranks other than 0, as rank 0 has verified all of them.

    Raises:
        CheckpointDamaged: If it is missing, or a file differs from the manifest.
        CheckpointVersion: If this tgflow does not support its format.
        UntrustedCheckpoint: If it has content that tgflow never writes, or is too large.

    Example:
        >>> sections = {"model": {"weight": torch.ones(2)}}
        >>> _ = tg.save("saved/some", tg.checkpoint.Checkpoint(sections))
        >>> tg.load("saved/some").get("model")["weight"].tolist()
        [1.0, 1.0]
    """
    path = Path(path)
    if not path.exists() and _old(path).exists():  # a save was interrupted between its renames
        path = _old(path)
    return read(path, max_bytes, check_all=check_all)[0]


def read(
    path: Path, max_bytes: int | None = None, *, check_all: bool = True
) -> tuple[Checkpoint, Manifest]:
    """Return the result of `load`, and the manifest."""
    manifest = read_manifest(path)
    sizes = [(entry["bytes"], entry["sealed"]) for entry in manifest["files"].values()]
    total, limit = sum(size for size, _ in sizes), max_bytes
    if limit is None:  # one sealed file is read at a time
        limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        total = sum(size for size, sealed in sizes if not sealed)
        total += max((size for size, sealed in sizes if sealed), default=0)
    if total > limit:
        raise UntrustedCheckpoint(
            f"{path} has {total} bytes, at most {limit} are allowed; if it is yours, raise "
            "max_checkpoint_bytes"
        )
    volatile = {*manifest.get("volatile", ())}
    checkpoint = Checkpoint({}, manifest["meta"], volatile=volatile, path=path)
    for name, entry in manifest["files"].items():
        section, file = name.removesuffix(SUFFIX), path / name
        if entry["sealed"] or OF_PART.fullmatch(section):
            if check_all:
                _read_section(file, entry, tensors.check)
            made = checkpoint.sealed if entry["sealed"] else checkpoint.later
            made[section] = functools.partial(_read_section, file, entry, tensors.read)
        else:
            checkpoint.sections[section] = _read_section(file, entry, tensors.read)
    return checkpoint, manifest


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the manifest of the checkpoint `path` without reading its tensors.

    Returns:
        `format`, `versions`, `meta`, `state_sha256`, `volatile`, and `files` (`{name: {bytes,
        sha256, sealed}}`).

    Raises:
        CheckpointDamaged: If it is missing or damaged.
        CheckpointVersion: If this tgflow does not support its format.
        UntrustedCheckpoint: If it is intact, but was not written by tgflow.
    """
    file = Path(path) / MANIFEST
    with _open_plain_file(file) as (descriptor, size):
        if size > MAX_MANIFEST_BYTES:
            raise UntrustedCheckpoint(f"{file} has {size} bytes, at most {MAX_MANIFEST_BYTES} fit")
        data = os.pread(descriptor, MAX_MANIFEST_BYTES, 0)
    after = len(_START) + 64
    sealed = data.startswith(_START) and data[after : after + len(_AFTER)] == _AFTER
    digest = hashlib.sha256(data[after + len(_AFTER) :]).hexdigest()
    if sealed and data[len(_START) : after] != digest.encode():
        raise CheckpointDamaged(f"{file} is not what was written; use an older checkpoint")
    if (commas := data.count(b",")) > MAX_ELEMENTS:
        raise UntrustedCheckpoint(f"{file} has {commas} values, at most {MAX_ELEMENTS} are read")
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointDamaged(f"{file} is not JSON: {error}") from None
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if type(found) is not int or found != FORMAT:
        raise CheckpointVersion(
            f"{file} has format {found!r}, this tgflow reads {FORMAT}; use the tgflow that wrote it"
        )
    if not sealed:
        raise CheckpointDamaged(f"{file} lacks its own digest; use an older checkpoint")
    read_as(dict[str, Any], manifest.get("meta"), f"{file}: meta")
    read_as(int | None, manifest.get("token"), f"{file}: token")
    read_as(list[str] | None, manifest.get("volatile"), f"{file}: volatile")
    files = read_as(dict[str, FileEntry], manifest.get("files"), f"{file}: files")
    for name, entry in files.items():
        section = name.removesuffix(SUFFIX)
        if not SECTION.fullmatch(section) or name == section or entry.bytes < 0:
            raise UntrustedCheckpoint(f"{file} names an unexpected file {name!r:.80}")
    return manifest  # type: ignore[no-any-return]


def make_manifest(checkpoint: Checkpoint, files: Files, **more: Any) -> bytes:
    """Return the bytes of the manifest of `checkpoint`, written as `files`."""
    state = hashlib.sha256()  # of the sections that are a function of the data alone
    for name in sorted(files):
        if name.removesuffix(SUFFIX) not in checkpoint.volatile:
            state.update(f"{name} {files[name]['sha256']}\n".encode())
    manifest = {
        "format": FORMAT,
        "versions": {
            "tgflow": version("tgflow-learn"),
            "torch": torch.__version__,
            "numpy": version("numpy"),
        },
        **more,
        "state_sha256": state.hexdigest(),
        "volatile": sorted(checkpoint.volatile),
        "files": files,
        "meta": checkpoint.meta,
    }
    rest = json.dumps(manifest, indent=1, allow_nan=False)[1:].encode()
    data = _START + hashlib.sha256(rest).hexdigest().encode() + _AFTER + rest
    if len(data) > MAX_MANIFEST_BYTES or data.count(b",") > MAX_ELEMENTS:
        raise ValueError(
            f"meta makes a manifest of {len(data)} bytes and {data.count(b',')} values, at most "
            f"{MAX_MANIFEST_BYTES} and {MAX_ELEMENTS} are read; keep large tables as tensors"
        )
    return data


@contextmanager
def prepared(
    fs: RealFs,
    path: Path,
    checkpoint: Checkpoint,
    linkable: Written | None = None,
    announce: Announce | None = None,
    **more: Any,
) -> Iterator[Path]:
    """Yield a complete, durable directory beside `path`, which the caller renames to it."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{uuid.uuid4().hex[:8]}")
    collect: Callable[[], Files] = dict
    with _failing_as_uncommitted(path):
        try:
            fs.make_directory(temporary)
            if announce is not None:
                collect = announce(temporary, None if linkable is None else linkable.path)
            files = _write_sections(fs, temporary, checkpoint, linkable) | collect()
            data = make_manifest(checkpoint, files, **more)
            _write_file(fs, temporary / MANIFEST, [data])
            fs.sync_directory(temporary)
            yield temporary
        except BaseException:
            with suppress(Exception):  # stop other writers before it is removed
                collect()
            with suppress(OSError):
                fs.remove_directory(temporary)
            raise


def write_share(
    fs: RealFs, directory: Path, checkpoint: Checkpoint, linkable: Written | None = None
) -> Files:
    """Write the sections of `checkpoint` to a directory created by another process."""
    with _failing_as_uncommitted(directory):
        files = _write_sections(fs, directory, checkpoint, linkable)
        fs.sync_directory(directory)
        return files


@contextmanager
def _failing_as_uncommitted(path: Path) -> Iterator[None]:
    try:
        yield
    except DiskFull:
        raise
    except OSError as error:
        if error.errno in FULL:
            raise DiskFull("no room for a checkpoint; make some", path.parent) from error
        text = f"the checkpoint was not written: {error.strerror}"
        raise CheckpointNotCommitted(error.errno, text, str(path)) from error


def sync_names(fs: RealFs, path: Path) -> None:
    """Block until the checkpoint's new name `path` is on disk."""
    try:
        fs.sync_directory(path.parent)
    except OSError as error:
        text = f"the checkpoint is in place, but may not survive a crash: {error.strerror}"
        raise CheckpointDurabilityUnknown(error.errno, text, str(path)) from error


def _write_sections(
    fs: RealFs, directory: Path, checkpoint: Checkpoint, linkable: Written | None
) -> Files:
    now = checkpoint.later | {name: lambda x=x: x for name, x in checkpoint.sections.items()}
    for section in (*now, *checkpoint.sealed):
        if not SECTION.fullmatch(section):
            raise ValueError(f"section {section!r} must match {SECTION.pattern}")
    if twice := now.keys() & checkpoint.sealed.keys():
        raise ValueError(f"sections {sorted(twice)} are sealed and not sealed")
    files = {}
    for section, make in (now | checkpoint.sealed).items():
        file, sealed = directory / (section + SUFFIX), section in checkpoint.sealed
        entry = _link(fs, linkable, file) if sealed and linkable is not None else None
        if entry is None:
            content = tensors.encode(make(), align=ALIGNMENT if sealed else 8)
            digest = _write_file(fs, file, content.chunks())
            entry = {"bytes": content.num_bytes, "sha256": digest, "sealed": sealed}
        files[file.name] = entry
    for make_durable in checkpoint.outside:
        make_durable()
    return files


def _write_file(fs: RealFs, file: Path, chunks: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    fd = fs.create(file)
    try:
        for chunk in chunks:
            digest.update(chunk)
            fs.write(fd, chunk)
        fs.sync(fd)
    finally:
        fs.close(fd)
    return digest.hexdigest()


def _link(fs: RealFs, written: Written, file: Path) -> dict[str, Any] | None:
    """Hard-link a sealed file of `written` as `file`; None if it must be written."""
    entry: dict[str, Any] | None = written.manifest["files"].get(file.name)
    source = written.path / file.name
    try:
        found = source.lstat()
        if not entry or not entry["sealed"] or found.st_size != entry["bytes"]:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        fs.link(source, file)
    except OSError as error:
        if error.errno in FULL or error.errno == errno.EIO:
            raise
        return None  # no hard links on this file system, or too many of them
    return entry


@contextmanager
def _open_plain_file(file: Path) -> Iterator[tuple[int, int]]:
    """Open a regular file of a checkpoint, never a link or device; yield descriptor and size."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(file, flags)
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointDamaged(f"{file.parent} is no checkpoint: it has no {file.name}") from None
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.ENXIO}:
            raise
        raise UntrustedCheckpoint(f"{file} is a link or a device; checkpoints have none") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UntrustedCheckpoint(f"{file} is not a regular file")
        yield descriptor, found.st_size
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise CheckpointDamaged(f"{file} cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


@contextmanager
def opened_section(path: Path, name: str) -> Iterator[tuple[int, dict[str, int]]]:
    """Open the file of a section; yield its descriptor, and the byte at which each tensor begins.

    Raises:
        CheckpointDamaged: If it is missing.
        UntrustedCheckpoint: If it is no section.
    """
    file = path / (name + SUFFIX)
    with _open_plain_file(file) as (descriptor, size):
        yield descriptor, tensors.offsets(str(file), descriptor, size)


def _read_section(
    file: Path, entry: dict[str, Any], read: Callable[[str, int, int], Content]
) -> Content:
    """Return the result of `read` for a file, after verifying its size and digest."""
    with _open_plain_file(file) as (descriptor, size):
        if size == entry["bytes"]:
            with open(descriptor, "rb", closefd=False) as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
            if digest == entry["sha256"]:
                return read(str(file), descriptor, size)
    raise CheckpointDamaged(
        f"{file} is not what was written (size or SHA-256 differ); use an older checkpoint"
    )


def _old(path: Path) -> Path:
    return path.with_name(f".old-{path.name}")
