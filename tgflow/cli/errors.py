"""Error messages and exit codes of the command line."""

from __future__ import annotations

import sys
import sysconfig
import traceback

from rich.console import Console

USAGE, DATA, NO_INPUT, INTERNAL, MEMORY, LOCKED, IO = 2, 65, 66, 70, 71, 73, 74
UNAVAILABLE, CORRUPT, UNTRUSTED = 75, 76, 77
"""Exit codes after sysexits.h, except for usage, where shells expect 2."""

EXIT_CODES = {
    0: "success, or stopped by a signal with all progress saved",
    USAGE: "invalid usage or settings",
    DATA: "invalid data",
    NO_INPUT: "input missing, empty or changed",
    INTERNAL: "non-finite loss or internal error",
    MEMORY: "memory limit reached or out of memory",
    LOCKED: "run in use by another process",
    IO: "read or write error",
    UNAVAILABLE: "source or rank unreachable (retry)",
    CORRUPT: "damaged log, checkpoint or source",
    UNTRUSTED: "untrusted file, or one that needs code of your own",
}

_NAMES = {
    0: "Stopped",
    USAGE: "ConfigError SourceRefused StrictResume WorldError ModuleNotFoundError",
    NO_INPUT: "SourceExpired SourceTruncated SourceMismatch NoTopicError FileNotFoundError "
    "IsADirectoryError NotADirectoryError",
    CORRUPT: "SourceCorrupt CheckpointError LogCorrupt ScoresLost OutcomeDamaged LogVersion "
    "DamagedFile",
    UNAVAILABLE: "SourceUnavailable NoBrokerError PeerLost",
    MEMORY: "MemoryLimit MemoryError OutOfMemoryError",
    LOCKED: "Locked",
    UNTRUSTED: "UntrustedCheckpoint CodeNotGiven",
    IO: "OSError",
    DATA: "ValueError",
}
_CODES = {name: code for code, names in _NAMES.items() for name in names.split()}
"""Exit code by class name of the nearest ancestor, else INTERNAL; avoids slow imports."""
_EXPLAINED = {"TrainingDiverged", "RanksDisagree"}
"""Errors with code 70 that are not bugs in tgflow."""

_GPU_WAY_OUT = (
    "set a smaller --set graph.device_budget=SIZE, --batch-size or --set tables.edge_budget=SIZE, "
    "or --edge-table uva; a run resumes with --resume"
)

_HOST_WAY_OUT = (
    "set a smaller --batch-size, --neighbors, --edge-cache or --set learning.replay_horizon=N, or "
    "--edge-table disk; tgflow run forgets old events with --horizon 90d or --horizon-events N; a "
    "run resumes with --resume"
)
_HOST_ALLOCATORS = ("out of memory: ", "DefaultCPUAllocator: ")
"""Texts in errors of the native core's and torch's allocations of host memory, with their sizes."""

_UNTRUSTED_WAY_OUT = (
    "a checkpoint has content that tgflow never writes: bring it back from a copy, or move it away "
    "to resume from the previous one"
)


class CliError(Exception):
    """A failure whose message is complete."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def exit_code(error: BaseException) -> int:
    if isinstance(error, CliError):
        return error.code
    if (of_rank_0 := getattr(error, "exit_code", None)) is not None:
        return int(of_rank_0)
    if isinstance(error, PermissionError) and error.filename is not None:
        return NO_INPUT
    cause = cause_of(error)
    if _lacks_host_memory(cause):
        return MEMORY
    if _place_outside(error) is not None:
        return INTERNAL
    names = getattr(cause, "kinds", None) or [kind.__name__ for kind in type(cause).__mro__]
    return next((_CODES[name] for name in names if name in _CODES), INTERNAL)


def explain(error: BaseException) -> str:
    """Return one line about `error`: the fault, the value received, and the fix.

    For an error that was reported already, return that report.
    """
    if "reported" in vars(error):
        return str(vars(error)["reported"])
    text = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    cause = cause_of(error)
    if type(cause).__name__ == "OutOfMemoryError":
        said = ". ".join(str(cause).split(". ")[:2]).rstrip(".")
        text = f"the GPU has no memory left: {said}; {_GPU_WAY_OUT}"
    elif _lacks_host_memory(cause):
        text = f"{text}; {_HOST_WAY_OUT}"
    if type(error).__name__ == "CodeNotGiven":
        return text
    if exit_code(error) == UNTRUSTED:  # its keys may coincide with names of settings
        return f"{text} ({_UNTRUSTED_WAY_OUT})"
    if (place := _place_outside(error)) is not None:
        return f"{place}: {type(error).__name__}: {text} (--traceback shows the calls)"
    is_explained = isinstance(error, CliError) or type(error).__name__ in _EXPLAINED
    if exit_code(error) == INTERNAL and not is_explained:
        return f"{type(error).__name__}: {text} (a fault in tgflow; --traceback shows where)"
    if isinstance(error, CliError):
        return text
    from tgflow.run.config import in_flags

    places = (getattr(error, name, None) for name in ("where", "filename", "example"))
    return in_flags(text, *places)


def cause_of(error: BaseException) -> BaseException:
    """Return the cause of a failed batch preparation if it is memory or a file; else the error."""
    cause = error.__cause__
    if cause is None or type(error).__name__ != "BatchError":
        return error
    return cause if exit_code(cause) in (MEMORY, IO, CORRUPT) else error


def _place_outside(error: BaseException) -> str | None:
    """Return the file and line of a user's model that raised a builtin error; None for others."""
    if type(error).__module__ != "builtins" or isinstance(error, OSError | MemoryError):
        return None
    libraries, place, is_called = tuple({*sysconfig.get_paths().values()}), None, False
    for frame, line in traceback.walk_tb(error.__traceback__):
        file, name = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        is_tgflow = name.partition(".")[0] == "tgflow"
        is_called |= is_tgflow
        if is_called and not is_tgflow and not file.startswith((*libraries, "<")):
            place = f"{file}, line {line}"
    if isinstance(error, SyntaxError) and is_called and error.filename is not None:
        place = f"{error.filename}, line {error.lineno}"
    return place


def _lacks_host_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError | RuntimeError) and any(
        name in str(error) for name in _HOST_ALLOCATORS
    )


def mark_reported(error: BaseException, text: str) -> None:
    """Record that `text` about `error` has been written to stderr."""
    vars(error)["reported"] = text


def report(error: BaseException) -> int:
    """Write one line about `error` to stderr, unless it is reported, and return its exit code."""
    if "reported" not in vars(error):
        say(explain(error))
    return exit_code(error)


def table() -> str:
    """Return the exit codes as one sentence for a help text."""
    return ", ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())


def say(text: str, speaker: str = "tgflow") -> None:
    """Write a line to stderr by one call, as ranks share it; `print` makes two if unbuffered."""
    sys.stderr.write(f"{speaker}: {text}\n")
    sys.stderr.flush()


def hint(text: str, style: str | None = None) -> None:
    console = Console(stderr=True, highlight=False)
    console.print(text, style=style, markup=False, soft_wrap=True)
