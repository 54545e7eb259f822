"""The files of one checkpoint: written whole or not at all, and read without trust."""

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
from tgflow.checkpoint.checkpoint import (
    Checkpoint,
    CheckpointDamaged,
    CheckpointDurabilityUnknown,
    CheckpointNotCommitted,
    CheckpointVersion,
    UntrustedCheckpoint,
    is_of_part,
)
from tgflow.durable.errors import FULL, DiskFull
from tgflow.durable.fs import RealFs, make_directories

FORMAT = 2
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 16 << 20
MAX_ELEMENTS = 1 << 18
"""Commas: parsed, small values take many times the bytes they have in the file."""
SECTION = re.compile(r"[a-z0-9][a-z0-9_-]{0,50}")
SUFFIX = ".safetensors"
_START, _AFTER = b'{"sha256": "', b'",'
_DIGEST = re.compile(r"[0-9a-f]{64}")

Manifest = dict[str, Any]
Files = dict[str, dict[str, Any]]


def make_manifest(checkpoint: Checkpoint, files: Files, **more: Any) -> bytes:
    """Return the bytes of the manifest of `checkpoint`, written as `files`."""
    manifest = {
        "format": FORMAT,
        "versions": {
            "tgflow": version("tgflow-learn"),
            "torch": torch.__version__,
            "numpy": version("numpy"),
        },
        **more,
        "state_sha256": state_sha256(files, checkpoint),
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


def state_sha256(files: Files, checkpoint: Checkpoint) -> str:
    """Return one digest of all sections that are a function of the data alone."""
    digest = hashlib.sha256()
    for name in sorted(files):
        if name.removesuffix(SUFFIX) not in checkpoint.volatile:
            digest.update(f"{name} {files[name]['sha256']}\n".encode())
    return digest.hexdigest()


def parse_manifest(what: str, data: bytes) -> Manifest:
    """Return the manifest in `data`."""
    after = len(_START) + 64
    sealed = data.startswith(_START) and data[after : after + len(_AFTER)] == _AFTER
    digest = hashlib.sha256(memoryview(data)[after + len(_AFTER) :]).hexdigest()
    if sealed and data[len(_START) : after] != digest.encode():
        raise CheckpointDamaged(f"{what} is not what was written; use an older checkpoint")
    if len(data) > MAX_MANIFEST_BYTES or data.count(b",") > MAX_ELEMENTS:
        raise UntrustedCheckpoint(
            f"{what} has {len(data)} bytes and {data.count(b',')} values, at most "
            f"{MAX_MANIFEST_BYTES} and {MAX_ELEMENTS} are read"
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
    _check_manifest(what, manifest)
    return manifest  # type: ignore[no-any-return]


def _check_manifest(what: str, manifest: Manifest) -> None:
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


TEMPORARY = ".tmp-"
ROOM = 1.2
"""A disk must have this many times the bytes that are to be written."""
_REAL_FS = RealFs()

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class Written:
    """A checkpoint on the disk whose sealed files others may link to."""

    path: Path
    manifest: Manifest


class OtherWriters:
    """Other processes that write files of a checkpoint that this one commits; here none."""

    def announce(self, directory: Path, linkable: Path | None) -> None:
        """Start them; sealed files are linked from `linkable`."""

    def wait(self) -> None:
        """Return once none of them writes, or after a timeout."""

    def files(self, directory: Path) -> Files:
        """Return their files, all of them on the disk; OSError if one has failed."""
        return {}


def save(path: str | os.PathLike[str], checkpoint: Checkpoint) -> Path:
    """Write `checkpoint` as the directory `path`, whole or not at all, and return its path.

    One that is already there is replaced: it stays readable until the new one is on the disk.

    Raises:
        ValueError: If a section's name is not usable, or `meta` is not JSON.
        DiskFull: If there is no room; `path` is then as it was.
        CheckpointNotCommitted: If the disk refuses; `path` is then as it was.
        CheckpointDurabilityUnknown: If it is in place, but perhaps not after a crash.

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
    """Return the checkpoint in the directory `path`; its tensors are copies in host memory.

    Sealed sections, and those of parts of ids, are checked as all others, and read when they are
    asked for.

    Args:
        path: The directory.
        max_bytes: Largest size in all; None allows what the machine's memory can hold.
        check_all: Whether those are checked now. Else they are checked when they are read alone,
            as is enough for one of many ranks, of which rank 0 has found all of them right.

    Raises:
        CheckpointDamaged: If it is missing, or any file is not what was written.
        CheckpointVersion: If its format is not one this tgflow reads.
        UntrustedCheckpoint: If it holds what tgflow never writes, or is too large.

    Example:
        >>> sections = {"model": {"weight": torch.ones(2)}}
        >>> _ = tg.save("saved/some", tg.checkpoint.Checkpoint(sections))
        >>> tg.load("saved/some").get("model")["weight"].tolist()
        [1.0, 1.0]
    """
    path = Path(path)
    if not path.exists() and _old(path).exists():  # a save was cut off between its two renames
        path = _old(path)
    return read(path, max_bytes, check_all=check_all)[0]


def read(
    path: Path, max_bytes: int | None = None, *, check_all: bool = True
) -> tuple[Checkpoint, Manifest]:
    """Return what `load` does, and the manifest."""
    manifest = read_manifest(path)
    total = sum(entry["bytes"] for entry in manifest["files"].values())
    limit = _memory_bytes() if max_bytes is None else max_bytes
    if total > limit:
        raise UntrustedCheckpoint(
            f"{path} has {total} bytes, at most {limit} are read; if it is yours, raise "
            "max_checkpoint_bytes"
        )
    checkpoint = Checkpoint({}, manifest["meta"])
    for name, entry in manifest["files"].items():
        section, file = name.removesuffix(SUFFIX), path / name
        if entry["sealed"] or is_of_part(section):
            if check_all:
                _read_section(file, entry, tensors.check)
            later = checkpoint.sealed if entry["sealed"] else checkpoint.unread
            later[section] = functools.partial(_read_section, file, entry, tensors.read)
        else:
            checkpoint.sections[section] = _read_section(file, entry, tensors.read)
    return checkpoint, manifest


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the manifest of the checkpoint `path` without reading its tensors.

    Returns:
        `format`, `versions`, `meta`, `state_sha256` and `files` (`{name: {bytes, sha256,
        sealed}}`), whichever format it was written in.

    Raises:
        CheckpointDamaged: If it is missing, or not what was written.
        CheckpointVersion: If its format is not one this tgflow reads.
        UntrustedCheckpoint: If it is what was written, but not by tgflow.
    """
    file = Path(path) / MANIFEST
    with open_plain_file(file) as (descriptor, size):
        if size > MAX_MANIFEST_BYTES:
            raise UntrustedCheckpoint(f"{file} has {size} bytes, at most {MAX_MANIFEST_BYTES} fit")
        data = os.pread(descriptor, MAX_MANIFEST_BYTES, 0)
    return parse_manifest(str(file), data)


@contextmanager
def prepared(
    fs: RealFs,
    path: Path,
    checkpoint: Checkpoint,
    linkable: Written | None = None,
    others: OtherWriters | None = None,
    **more: Any,
) -> Iterator[Path]:
    """Yield a directory beside `path`, complete and on the disk, that is to be renamed to it."""
    others = OtherWriters() if others is None else others
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{uuid.uuid4().hex[:8]}")
    with _failing_as_uncommitted(path):
        try:
            fs.make_directory(temporary)
            others.announce(temporary, None if linkable is None else linkable.path)
            files = _write_sections(fs, temporary, checkpoint, linkable)
            others.wait()
            files |= others.files(temporary)
            data = make_manifest(checkpoint, files, **more)
            _write_file(fs, temporary / MANIFEST, lambda: [data])
            fs.sync_directory(temporary)
            yield temporary
        except BaseException:
            with suppress(Exception):
                others.wait()
            with suppress(OSError):
                fs.remove_directory(temporary)
            raise


def write_share(
    fs: RealFs, directory: Path, checkpoint: Checkpoint, linkable: Written | None = None
) -> Files:
    """Write the sections of `checkpoint` into a directory that is another's."""
    with _failing_as_uncommitted(directory):
        files = _write_sections(fs, directory, checkpoint, linkable)
        fs.sync_directory(directory)
        return files


@contextmanager
def _failing_as_uncommitted(path: Path) -> Iterator[None]:
    """Enclose what writes a checkpoint: failures of the disk say that there is none."""
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
    """Return once the checkpoint's new name `path` is on the disk."""
    try:
        fs.sync_directory(path.parent)
    except OSError as error:
        text = f"the checkpoint is in place, but may not outlive a crash: {error.strerror}"
        raise CheckpointDurabilityUnknown(error.errno, text, str(path)) from error


def _write_sections(
    fs: RealFs, directory: Path, checkpoint: Checkpoint, linkable: Written | None
) -> Files:
    sections = checkpoint.sections | {name: read() for name, read in checkpoint.unread.items()}
    for section in (*sections, *checkpoint.sealed):
        if not SECTION.fullmatch(section):
            raise ValueError(f"section {section!r} must match {SECTION.pattern}")
    if twice := sections.keys() & checkpoint.sealed.keys():
        raise ValueError(f"sections {sorted(twice)} are sealed and not sealed")
    encoded = {name: tensors.encode(value) for name, value in sections.items()}
    _require_room(directory, sum(each.num_bytes for each in encoded.values()))
    files = {}
    for section, content in encoded.items():
        name = section + SUFFIX
        files[name] = _write_tensors(fs, directory / name, content, sealed=False)
    for section, make in checkpoint.sealed.items():
        name = section + SUFFIX
        entry = None if linkable is None else _link(fs, linkable, directory / name)
        if entry is None:
            content = tensors.encode(make())
            _require_room(directory, content.num_bytes)
            entry = _write_tensors(fs, directory / name, content, sealed=True)
        files[name] = entry
    for make_durable in checkpoint.outside:
        make_durable()
    return files


def _write_tensors(
    fs: RealFs, file: Path, content: tensors.Encoded, *, sealed: bool
) -> dict[str, Any]:
    digest = _write_file(fs, file, content.chunks)
    return {"bytes": content.num_bytes, "sha256": digest, "sealed": sealed}


def _write_file(fs: RealFs, file: Path, chunks: Callable[[], Iterable[bytes | memoryview]]) -> str:
    try:
        return _try_to_write(fs, file, chunks())
    except OSError as error:
        if error.errno in FULL:
            raise
        with suppress(FileNotFoundError):
            fs.unlink(file)
        return _try_to_write(fs, file, chunks())


def _try_to_write(fs: RealFs, file: Path, chunks: Iterable[bytes | memoryview]) -> str:
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
    """Give a sealed file of `written` its second name `file`; None if it must be written."""
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
        return None  # a file system without links, or too many of them
    return entry


def _require_room(directory: Path, num_bytes: int) -> None:
    found = os.statvfs(directory)
    free = found.f_bavail * found.f_frsize
    if free < ROOM * num_bytes:
        raise DiskFull(
            f"a checkpoint's {num_bytes} bytes need {ROOM} times as many free, and there are {free}"
            "; make room, or keep fewer checkpoints",
            directory.parent,
        )


@contextmanager
def open_plain_file(file: Path) -> Iterator[tuple[int, int]]:
    """Open a plain file of a checkpoint, never a link or a device; yields descriptor and size."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(file, flags)
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointDamaged(f"{file.parent} is no checkpoint: it has no {file.name}") from None
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.ENXIO}:
            raise
        raise UntrustedCheckpoint(f"{file} is a link or a device; no checkpoint has any") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UntrustedCheckpoint(f"{file} is no plain file")
        yield descriptor, found.st_size
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise CheckpointDamaged(f"{file} cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _read_section(
    file: Path, entry: dict[str, Any], read: Callable[[str, int, int], Content]
) -> Content:
    """Return what `read` makes of a file, once its size and digest are found right."""
    with open_plain_file(file) as (descriptor, size):
        if size == entry["bytes"] and _sha256(descriptor) == entry["sha256"]:
            return read(str(file), descriptor, size)
    raise CheckpointDamaged(
        f"{file} is not what was written (size or SHA-256 differ); use an older checkpoint"
    )


def _sha256(descriptor: int) -> str:
    digest, offset = hashlib.sha256(), 0
    buffer = memoryview(bytearray(tensors.CHUNK_BYTES))
    while count := os.preadv(descriptor, [buffer], offset):
        digest.update(buffer[:count])
        offset += count
    return digest.hexdigest()


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _old(path: Path) -> Path:
    return path.with_name(f".old-{path.name}")
