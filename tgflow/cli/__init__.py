"""The command line: where streams, models and trainers are put together."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: Arguments without the program's name; None takes the process's.

    Returns:
        One of `tgflow.cli.errors.EXIT_CODES`, or 130 where Ctrl-C ended it at once.
    """
    from tgflow.cli import app, errors

    args = list(sys.argv[1:] if argv is None else argv)
    show_traceback = "--traceback" in args or bool(os.environ.get("TGFLOW_TRACEBACK"))
    args = [arg for arg in args if arg != "--traceback"]
    try:
        app.app(args, prog_name="tgflow", obj=args)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except Exception as error:
        if show_traceback:
            raise
        return errors.report(error)
    return 0
