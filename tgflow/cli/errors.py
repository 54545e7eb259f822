"""What went wrong, in one sentence, and the exit code that says it to a script."""

from __future__ import annotations

import sys

USAGE, DATA, NO_INPUT, INTERNAL, IO = 2, 65, 66, 70, 74
"""After sysexits.h, but for usage, where every shell expects 2."""


class CliError(Exception):
    """A failure whose message is complete as it is.

    Args:
        message: What was wrong, what arrived, and the way out.
        code: The exit code.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def exit_code(error: Exception) -> int:
    """Return the exit code that stands for `error`."""
    from tgflow.config import ConfigError  # needs pydantic, and `bench` does not

    if isinstance(error, CliError):
        return error.code
    if isinstance(error, ConfigError):
        return USAGE
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return NO_INPUT
    if isinstance(error, PermissionError) and error.filename is not None:
        return NO_INPUT
    if isinstance(error, OSError):
        return IO
    # what reads data says ValueError; FloatingPointError: a loss or score that is not finite
    return DATA if isinstance(error, ValueError | FloatingPointError) else INTERNAL


def report(error: Exception) -> int:
    """Write one line about `error` to stderr and return its exit code."""
    code = exit_code(error)
    text = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    if code == INTERNAL and not isinstance(error, CliError):
        text = f"{type(error).__name__}: {text} (a fault in tgflow; --traceback shows where)"
    print(f"tgflow: {text}", file=sys.stderr)
    return code
