"""Runs kernel sources on the CPU; the threads of a thread block are fibers of one thread.

For tests only. It detects wrong results, dependence on lane order, and collectives that not all
lanes of the mask reach; sanitized, also undefined behavior and races between thread blocks at
atomic operations; not memory ordering, or speed.
"""

import ctypes
import hashlib
import os
import re
import subprocess
from collections.abc import Callable
from functools import cache
from itertools import takewhile
from pathlib import Path

from tgflow.cuda.launch import Argument
from tgflow.cuda.sources import KERNEL

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
CSRC = ROOT / "csrc"
FLAGS = [
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-shared",
    "-U_FORTIFY_SOURCE",
    "-Wall",
    "-Wextra",
    "-Wno-unused-value",
]


SANITIZED = ("-fsanitize=undefined", "-fno-sanitize-recover=all", "-DTGFLOW_INTERLEAVED")
KERNELS = tuple(sorted((CSRC / "cuda").glob("*.cu")))


class Emulator:
    """The kernels of some .cu files.

    Args:
        sources: The files.
        order: 0 runs lanes forwards, 1 backwards, else a seed.
        is_sanitized: Abort at undefined behavior. From an order of 1,000 on thread blocks
            interleave at atomic operations, and their shared memory begins with any values.
    """

    def __init__(
        self, sources: tuple[Path, ...] = KERNELS, order: int = 0, *, is_sanitized: bool = False
    ) -> None:
        self._library = ctypes.CDLL(str(_build(sources, (*SANITIZED,) if is_sanitized else ())))
        self.order = order
        self.launches: list[str] = []
        """The names of the kernels launched so far."""
        self.between: Callable[[], None] | None = None
        """Callback before and after every launch except its own."""
        self.put: Callable[[Callable[[], None]], None] = lambda work: work()
        """Queues a launch on the current stream."""

    def launch(self, name: str, blocks: int, threads: int, *arguments: Argument) -> None:
        """Run a kernel to completion, or queue it; RuntimeError is raised for a mistake in it."""
        sizes = getattr(self._library, f"sizes_{name}")
        sizes.restype = ctypes.POINTER(ctypes.c_int64)
        passed = [ctypes.sizeof(argument) for argument in arguments]
        wanted = list(takewhile(bool, sizes()))
        assert wanted == passed, f"{name} takes arguments of {wanted} bytes, got {passed}"
        self.launches.append(name)
        given = [type(argument).from_buffer_copy(argument) for argument in arguments]
        self.put(lambda: self._run(name, blocks, threads, given))

    def _run(self, name: str, blocks: int, threads: int, arguments: list[Argument]) -> None:
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        kernel = getattr(self._library, f"launch_{name}")
        kernel.restype = ctypes.c_char_p
        self._pause()
        wrong = kernel(blocks, threads, pointers, ctypes.c_uint64(self.order))
        if wrong is not None:
            raise RuntimeError(f"{name}: {wrong.decode()}")
        self._pause()

    def _pause(self) -> None:
        called, self.between = self.between, None
        if called is not None:
            called()
            self.between = called

    def reads(self) -> list[tuple[int, int, int, int]]:
        """Return thread block, thread, address and bytes of each `__ldcs` of the last launch."""
        rows = ctypes.POINTER(ctypes.c_int64)()
        count = self._library.reads(ctypes.byref(rows))
        flat = rows[: 4 * count]
        return list(zip(*(flat[i::4] for i in range(4)), strict=True))


@cache
def _build(sources: tuple[Path, ...], more_flags: tuple[str, ...]) -> Path:
    """Return the library of `sources`, compiled unless cached for these exact files."""
    code = '#include "dialect.hpp"\n#include "kernel.hpp"\n'
    for source in sources:
        text = source.read_text()
        code += f'#line 1 "{source.name}"\n{text}'
        code += "".join(f"EMULATED_KERNEL({name})\n" for name in re.findall(KERNEL, text))
    files = [*sorted(HERE.glob("*.?pp")), *sorted((CSRC / "include").rglob("*.hpp"))]
    contents = b"\0".join(file.read_bytes() for file in files)
    digest = hashlib.sha256(code.encode() + contents + repr(more_flags).encode()).hexdigest()[:16]
    library = ROOT / "build" / "emulator" / f"{digest}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        own = library.with_suffix(f".{os.getpid()}.cpp")  # other processes may build it, too
        own.write_text(code)
        _compile(own, library, more_flags)
        own.replace(library.with_suffix(".cpp"))
    return library


def _compile(main: Path, library: Path, more_flags: tuple[str, ...]) -> None:
    new = library.with_suffix(f".{os.getpid()}")
    includes = ["-I", HERE, "-I", CSRC / "include"]
    command = ["g++", *FLAGS, *more_flags, *includes, main, HERE / "thread_block.cpp", "-o", new]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    new.replace(library)
