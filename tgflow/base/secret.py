"""References to secrets: settings hold `env:NAME` or `file:PATH`, never the secret itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_REFERENCE = re.compile(r"(env|file):(.+)", re.DOTALL)
_SECRET = re.compile(r"passw|passphrase|secret|token|credential|api_?key", re.IGNORECASE)
_CREDENTIALS = re.compile(r"(?<![\w+.-])[a-z][\w+.-]*://[^\"]*@", re.IGNORECASE)


def check_url(text: str) -> None:
    """Raise `ValueError`, without the text, if it contains a URL with credentials."""
    if _CREDENTIALS.search(text):
        raise ValueError(
            "a URL must not hold credentials, as it is written to files: give Kafka the options "
            "sasl_plain_username and sasl_plain_password=env:NAME or file:PATH, and HTTP a "
            "token"
        )


def check_options(options: Mapping[str, Any]) -> None:
    """Raise `ValueError`, without the value, if an option of a client is a literal secret.

    Objects, which are not written to files, are accepted.
    """
    for name, value in options.items():
        is_reference = isinstance(value, str) and _REFERENCE.fullmatch(value)
        is_plain = isinstance(value, str | bytes | int | float | list | tuple | dict)
        if is_plain and not is_reference and _SECRET.search(name):
            raise ValueError(
                f"the option {name} holds a secret, and settings are written to files: refer to it "
                f"as {name}=env:NAME, a variable of the environment, or {name}=file:PATH"
            )
        if isinstance(value, str):
            check_url(value)


def resolve(name: str, value: Any) -> Any:
    """Return the text that a reference refers to; other values are returned as they are.

    Raises:
        ValueError: If the variable is not set, or the text is empty.
        OSError: If the file cannot be read.
    """
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    kind, where = match.groups()
    text = os.environ.get(where) if kind == "env" else Path(where).expanduser().read_text("utf-8")
    if not (text := (text or "").rstrip("\r\n")):
        what = "a variable that is not set" if kind == "env" else "an empty file"
        raise ValueError(f"the option {name} refers to {value}, {what}")
    return text
