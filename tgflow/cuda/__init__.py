"""The GPU: kernels compiled at first use through CuPy, and launched on torch's current stream."""

from tgflow.cuda.requirements import CudaError as CudaError
