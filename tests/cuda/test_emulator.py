"""The emulator itself: it must find the mistakes that kernels make."""

import ctypes

import pytest
import torch

from helpers.emulator import Emulator

ORDERS = (0, 1, 7, 8)


def pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def emulate(code: str, folder, order: int = 0) -> Emulator:
    source = folder / "kernel.cu"
    source.write_text(code)
    return Emulator((source,), order)


@pytest.mark.parametrize("order", ORDERS)
def test_collectives_mean_what_cuda_says(order, tmp_path):
    code = """extern "C" __global__ void k(int* out) {
      const int lane = threadIdx.x % 32, tile = lane / 8;
      const unsigned mask = 0xffu << 8 * tile;
      int* row = out + (blockIdx.x * blockDim.x + threadIdx.x) * 6;
      row[0] = __shfl_sync(mask, lane * 10, 3, 8);
      row[1] = __shfl_up_sync(mask, lane, 2, 8);
      row[2] = __shfl_down_sync(mask, lane, 2, 8);
      row[3] = __shfl_xor_sync(mask, lane, 5, 8);
      row[4] = __popc(__ballot_sync(mask, lane % 3 == 0));
      row[5] = __any_sync(mask, lane == 9) * 2 + __all_sync(mask, lane < 16);
    }"""
    out = torch.zeros(2 * 64, 6, dtype=torch.int32)
    emulate(code, tmp_path, order).launch("k", 2, 64, pointer(out))
    rows = []
    for lane in [lane % 32 for lane in range(128)]:
        first = lane - lane % 8
        up, down = max(lane - 2, lane if lane % 8 < 2 else 0), lane + 2 if lane % 8 < 6 else lane
        count = sum((first + i) % 3 == 0 for i in range(8))
        flags = 2 * (first == 8) + (first < 16)
        rows.append([(first + 3) * 10, up, down, lane ^ 5, count, flags])
    assert out.tolist() == rows


@pytest.mark.parametrize("sync", ["", "__syncwarp();"])
def test_a_missing_sync_shows_in_some_order(sync, tmp_path):
    code = f"""extern "C" __global__ void k(int* out) {{
      __shared__ int shared[32];
      shared[threadIdx.x] = threadIdx.x;
      {sync}
      out[threadIdx.x] = shared[threadIdx.x ^ 1];
      __syncwarp();
      shared[threadIdx.x] = -1;
    }}"""
    answers = set()
    for order in ORDERS:
        out = torch.zeros(32, dtype=torch.int32)
        emulate(code, tmp_path, order).launch("k", 1, 32, pointer(out))
        answers.add(tuple(out.tolist()))
    assert (len(answers) > 1) == (sync == "")


@pytest.mark.parametrize("order", ORDERS)
def test_a_block_waits_for_all_its_threads(order, tmp_path):
    code = """extern "C" __global__ void k(unsigned* out) {
      __shared__ unsigned sum;
      if (threadIdx.x == 0) sum = 0;
      __syncthreads();
      atomicAdd(&sum, threadIdx.x);
      __syncthreads();
      out[threadIdx.x] = sum;
    }"""
    out = torch.zeros(96, dtype=torch.int32)
    emulate(code, tmp_path, order).launch("k", 1, 96, pointer(out))
    assert set(out.tolist()) == {96 * 95 // 2}


MISTAKES = {
    "if (threadIdx.x < 31) __syncwarp();": "never come|has returned",
    "__ballot_sync(threadIdx.x < 16 ? 0xffff : ~0u, 1);": "operation|has returned|never come",
    "__shfl_sync(0xffu, 1, 0);": "not in the mask of its own",
    "__shfl_sync(0xffu << threadIdx.x / 8 * 8, 1, 8);": "reads lane 8, which is not in the",
    "if (threadIdx.x == 3) __syncwarp(); else __syncthreads();": "another operation|never come",
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_collective_that_lanes_miss_is_an_error(mistake, order, tmp_path):
    code = f'extern "C" __global__ void k() {{ {mistake} }}'
    with pytest.raises(RuntimeError, match=MISTAKES[mistake]):
        emulate(code, tmp_path, order).launch("k", 1, 32)


def test_arguments_are_checked_against_the_kernels(tmp_path):
    kernels = emulate('extern "C" __global__ void k(int*, int) {}', tmp_path)
    with pytest.raises(AssertionError, match=r"k takes arguments of \[8, 4\].* got \[8, 8\]"):
        kernels.launch("k", 1, 32, ctypes.c_int64(), ctypes.c_int64())
