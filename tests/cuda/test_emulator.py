"""The emulator itself must detect mistakes in kernels."""

import ctypes

import pytest
import torch

from helpers.emulator import Emulator

ORDERS = (0, 1, 7, 8)


def pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


EXCHANGE = """
__shared__ int shared[32];
shared[threadIdx.x] = threadIdx.x;
{sync}
out[threadIdx.x] = shared[threadIdx.x ^ 1];
__syncwarp();
shared[threadIdx.x] = -1;
"""
SUM = """
__shared__ unsigned sum;
if (threadIdx.x == 0) sum = 0;
__syncthreads();
atomicAdd(&sum, threadIdx.x);
__syncthreads();
out[threadIdx.x] = sum;
"""
MISTAKES = [
    ("if (threadIdx.x < 31) __syncwarp();", "never come|has returned"),
    ("__ballot_sync(threadIdx.x < 16 ? 0xffff : ~0u, 1);", "operation|has returned|never come"),
    ("__shfl_sync(0xffu, 1, 0);", "not in the mask of its own"),
    ("__shfl_sync(0xffu << threadIdx.x / 8 * 8, 1, 8);", "reads lane 8, which is not in the"),
    ("if (threadIdx.x == 3) __syncwarp(); else __syncthreads();", "another operation|never come"),
]
KERNELS = {
    "exchange(int* out)": EXCHANGE.format(sync=""),
    "exchange_in_step(int* out)": EXCHANGE.format(sync="__syncwarp();"),
    "sum_of_block(unsigned* out)": SUM,
    "takes(int*, int)": "",
    **{f"mistake_{number}()": code for number, (code, _) in enumerate(MISTAKES)},
}


@pytest.fixture
def kernels(tmp_path) -> Emulator:
    """All kernels in one library, as each takes seconds to compile."""
    source = tmp_path / "kernels.cu"
    codes = (f'extern "C" __global__ void {name} {{{code}}}\n' for name, code in KERNELS.items())
    source.write_text("".join(codes))
    return Emulator((source,))


@pytest.mark.parametrize("kernel", ["exchange", "exchange_in_step"])
def test_missing_sync_changes_results_in_some_lane_order(kernel, kernels):
    answers = set()
    for order in ORDERS:
        kernels.order = order
        out = torch.zeros(32, dtype=torch.int32)
        kernels.launch(kernel, 1, 32, pointer(out))
        answers.add(tuple(out.tolist()))
    assert (len(answers) > 1) == (kernel == "exchange")


@pytest.mark.parametrize("order", ORDERS)
def test_block_barrier_waits_for_all_threads(order, kernels):
    kernels.order = order
    out = torch.zeros(96, dtype=torch.int32)
    kernels.launch("sum_of_block", 1, 96, pointer(out))
    assert set(out.tolist()) == {96 * 95 // 2}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mistake", range(len(MISTAKES)), ids=lambda number: MISTAKES[number][0])
def test_collective_skipped_by_some_lanes_is_an_error(mistake, order, kernels):
    kernels.order = order
    with pytest.raises(RuntimeError, match=MISTAKES[mistake][1]):
        kernels.launch(f"mistake_{mistake}", 1, 32)
    out = torch.zeros(96, dtype=torch.int32)
    kernels.launch("sum_of_block", 1, 96, pointer(out))  # without a remainder
    assert set(out.tolist()) == {96 * 95 // 2}


def test_arguments_are_checked_against_the_kernels(kernels):
    with pytest.raises(AssertionError, match=r"takes takes arguments of \[8, 4\].* got \[8, 8\]"):
        kernels.launch("takes", 1, 32, ctypes.c_int64(), ctypes.c_int64())
