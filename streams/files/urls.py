"""Files at URLs of object stores and file systems, read through pyarrow."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self, TypeAlias, TypeVar

from pyarrow import fs

from tgflow.checkpoint.durable.urls import open_url
from tgflow.streams.errors import SourceMismatch, SourceUnavailable

FILE_SCHEMES = ("s3", "gs", "file")
"""URL schemes of files and folders."""
AHEAD_BYTES = 4 << 20
"""Bytes of one request when a file is read in order."""
PAUSES = (0.1, 0.5, 2.0, 8.0)
"""Seconds before each retry of a failed request."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class FileStat:
    """Size and version of a file; `mtime` is in nanoseconds."""

    st_size: int
    mtime: int | None


class UrlPath:
    """A file or folder at a URL, with the part of `pathlib.Path` that readers of streams use.

    The first look at a file fixes its size and time of modification; a file that has others when it
    is opened or read later was replaced, and raises `SourceMismatch`.

    Args:
        url: The URL, with one of `FILE_SCHEMES`.
        system: Its file system; None opens it.
        path: Its path in `system`.
    """

    def __init__(self, url: str, system: fs.FileSystem | None = None, path: str = "") -> None:
        if system is None:
            system, path = open_url(url)
        self._system, self._path = system, path
        self._scheme = url.partition("://")[0]
        self._url = f"{self._scheme}://{path}"  # without options such as the endpoint
        found = PurePosixPath(path)
        self.name, self.suffix, self.suffixes = found.name, found.suffix, found.suffixes
        """Last part of the path, its ending with the dot, and all endings."""
        self._info: fs.FileInfo | None = None
        self._tag: bytes | None = None

    def __str__(self) -> str:
        return self._url

    def with_suffix(self, suffix: str) -> UrlPath:
        """Return the path with another ending."""
        return self._at(str(PurePosixPath(self._path).with_suffix(suffix)))

    def stat(self) -> FileStat:
        """Return size and time of the first look; FileNotFoundError if it does not exist."""
        info = self._found()
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(f"there is no file {self._url!r}")
        return FileStat(int(info.size or 0), info.mtime_ns)

    def exists(self) -> bool:
        """Whether it was a file or folder at the first look."""
        return bool(self._found().type != fs.FileType.NotFound)

    def is_dir(self) -> bool:
        """Whether it was a folder at the first look."""
        return bool(self._found().type == fs.FileType.Directory)

    def is_file(self) -> bool:
        """Whether it was a file at the first look."""
        return bool(self._found().type == fs.FileType.File)

    def iterdir(self) -> Iterator[UrlPath]:
        """Return the files and folders in this folder; a list may be older than its files."""
        selector = fs.FileSelector(self._path)
        for info in retried(self._url, lambda: self._system.get_file_info(selector)):
            yield self._at(info.path)

    def open(self, mode: str = "rb") -> io.BufferedReader:
        """Open the file for reading; a failed request is repeated, and then raises.

        Raises:
            SourceUnavailable: If the store cannot be reached.
            SourceMismatch: If the file was replaced since the first look at it.
        """
        assert mode == "rb"
        return io.BufferedReader(_UrlFile(self), AHEAD_BYTES)

    def open_native(self) -> Any:
        """Return the file as opened by pyarrow; raises as `open`."""
        first, now = self._found(), self._look()
        file = retried(self._url, lambda: self._system.open_input_file(self._path))
        tag = (file.metadata() or {}).get("ETag")  # times of S3 have whole seconds
        self._tag = self._tag or tag
        if (now.size, now.mtime_ns, tag) != (first.size, first.mtime_ns, self._tag):
            file.close()
            text = "it was replaced during the read; put the old file back, or start afresh"
            raise SourceMismatch(self._url, "schema", text)
        return file

    def version(self) -> str:
        """Return size and ETag, or of a store without ETags URL, size and time; raises as `open`.

        They identify the contents without a download.
        """
        self.open_native().close()
        found = self.stat()
        if self._tag is None:
            return f"{self._url} {found.st_size} {found.mtime}"
        return f"{found.st_size} {self._tag!r}"

    def _found(self) -> fs.FileInfo:
        if self._info is None:
            self._info = self._look()
        return self._info

    def _look(self) -> fs.FileInfo:
        return retried(self._url, lambda: self._system.get_file_info(self._path))

    def _at(self, path: str) -> UrlPath:
        return UrlPath(f"{self._scheme}://", self._system, path)


class _UrlFile(io.RawIOBase):
    """The bytes of a file, whose failed requests are repeated at the same place."""

    def __init__(self, path: UrlPath) -> None:
        self._path, self._at = path, 0
        self._size = path.stat().st_size
        self._file: Any = path.open_native()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self._size - self._at)
        if size <= 0:
            return 0
        data = retried(str(self._path), lambda: self._read(size))
        buffer[: len(data)] = data
        self._at += len(data)
        if self._at == self._size:
            self._path.open_native().close()  # raises SourceMismatch if it has changed
        return len(data)

    def _read(self, size: int) -> bytes:
        try:
            if self._file is None:
                self._file = self._path.open_native()
            self._file.seek(self._at)
            data: bytes = self._file.read(size)
            if len(data) < size:
                raise OSError(f"{len(data)} bytes came of {size} asked for")
        except OSError as error:
            self._drop()
            raise OSError(str(error)) from error  # a missing file is looked for again, too
        return data

    def close(self) -> None:
        self._drop()
        super().close()

    def __enter__(self) -> Self:
        return self

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


FilePath: TypeAlias = Path | UrlPath


def retried(url: str, request: Callable[[], _Result]) -> _Result:
    """Return the result of a request to a store, which is repeated after `PAUSES` if it fails."""
    for pause in (*PAUSES, None):
        try:
            return request()
        except FileNotFoundError:
            raise
        except OSError as error:
            if pause is None:
                first = f"the store cannot be read: {str(error).partition(chr(10))[0]:.300}"
                raise SourceUnavailable(url, "schema", first) from error
            time.sleep(pause)
    raise AssertionError


def file_path(source: Any) -> FilePath:
    """Return the path of a file or folder, given by a path or by a URL of `FILE_SCHEMES`.

    Raises:
        ValueError: If the URL has another scheme, or cannot be opened.
    """
    text = str(source)
    scheme, is_url, _ = text.partition("://")
    if not is_url:
        return Path(source)
    if scheme.lower() not in FILE_SCHEMES:
        known = ", ".join(f"{name}://" for name in FILE_SCHEMES)
        raise ValueError(f"{text!r} has an unknown scheme; files are paths or {known}")
    return UrlPath(text)
