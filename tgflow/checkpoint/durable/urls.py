"""File systems at URLs: object stores and folders, through pyarrow."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import fs

from tgflow.base.secret import check_url


def open_url(url: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URL, and the path in it.

    Raises:
        ValueError: If the URL is invalid, holds credentials, or its file system is not supported
            by this pyarrow.
    """
    check_url(url)
    try:
        system, path = fs.FileSystem.from_uri(url)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"{url!r} cannot be opened: {error}") from None
    return system, path.rstrip("/")
