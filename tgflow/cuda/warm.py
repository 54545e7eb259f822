"""Compiles all kernels and prints times: `python -m tgflow.cuda.warm [DEVICE]`."""

from __future__ import annotations

import sys
from time import perf_counter

import torch

from tgflow.cuda.launch import Kernels, driver_cuda
from tgflow.cuda.requirements import CudaError, require_cupy, require_device


def main(arguments: list[str]) -> int:
    """Print the GPU, the versions, and each source's compile time; return the exit status."""
    try:
        device = require_device(torch.device(arguments[0] if arguments else "cuda"))
        cupy = require_cupy(device)
        print(f"{torch.cuda.get_device_name(device)} ({device}), driver for CUDA {driver_cuda()}")
        print(f"torch {torch.__version__}, CuPy {cupy.__version__}", flush=True)
        start = perf_counter()
        seconds = Kernels(device).warm()
    except CudaError as error:
        print(f"tgflow.cuda.warm: {error}", file=sys.stderr)
        return 1
    for name, spent in seconds.items():
        print(f"{spent:8.2f} s  {name}")
    print(f"{perf_counter() - start:8.2f} s  all, side by side")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
