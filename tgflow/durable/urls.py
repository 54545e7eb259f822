"""File systems at URLs: object stores and folders, through pyarrow."""

from __future__ import annotations

import re

import pyarrow as pa
from pyarrow import fs


def open_url(url: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URL, and the path in it.

    Raises:
        ValueError: If the URL is invalid, holds credentials, or its file system is not supported
            by this pyarrow.
    """
    if re.match(r"[\w+]+://[^/]*@", url):
        raise ValueError(
            "a URL must not hold credentials, as it is written to files; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or the variables of the store's own tools"
        )
    try:
        system, path = fs.FileSystem.from_uri(url)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"{url!r} cannot be opened: {error}") from None
    return system, path.rstrip("/")
