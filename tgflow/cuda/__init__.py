"""CUDA support: kernels compiled at first use through CuPy, run on torch's current stream."""

from tgflow.cuda.requirements import CudaError as CudaError
