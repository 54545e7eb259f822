"""The command line: composes streams, models and trainers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, on the process's arguments by default, and return its exit code.

    It is one of `tgflow.cli.errors.EXIT_CODES`, or 130 after Ctrl-C before a run begins, or a
    second one. Thread counts and the umask are restored.
    """
    try:
        from tgflow.cli import app, errors
    except KeyboardInterrupt:
        return 130

    args = list(sys.argv[1:] if argv is None else argv)
    show_traceback = "--traceback" in args or bool(os.environ.get("TGFLOW_TRACEBACK"))
    args = [arg for arg in args if arg != "--traceback"]
    for arg in args:
        if any("\udc80" <= character <= "\udcff" for character in arg):
            text = f"{arg!r} has bytes that are not UTF-8, which no name may have; rename it"
            return errors.report(errors.CliError(text, errors.USAGE))
    restore_threads, umask = _thread_restorer(), os.umask(0o077)
    os.umask(umask)  # which cannot be read otherwise
    try:
        app.app(args, prog_name="tgflow", obj=args)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except Exception as error:
        if show_traceback:
            raise
        return errors.report(error)
    finally:
        restore_threads()
        os.umask(umask)
    return 0


def _thread_restorer() -> Callable[[], None]:
    """Return a function that restores thread counts, for callers from Python."""
    torch = sys.modules.get("torch")
    if torch is None:  # in a shell there is nothing to restore
        return lambda: None
    from tgflow.base import _native

    torch_threads, core_threads = torch.get_num_threads(), _native.num_threads()

    def restore() -> None:
        torch.set_num_threads(torch_threads)
        _native.set_num_threads(core_threads)

    return restore
