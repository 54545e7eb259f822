"""Memory is released and reused by size class; a class must have one piece size."""

import ctypes

import torch

from helpers.emulator import CSRC, Emulator

CODE = """
#include "tgflow/cuda/insertion.hpp"
extern "C" __global__ void classes(int64_t* capacity, int32_t* size_class, int32_t* rooms) {
  const int64_t n = threadIdx.x + blockIdx.x * static_cast<int64_t>(blockDim.x) + 1;
  const int64_t most = int64_t{1} << (6 + n % 9);
  const int64_t total = n % 3 == 0 ? n : n * 8;
  capacity[n - 1] = tgflow::tail_capacity(n < most ? n : most, total, most);
  size_class[n - 1] = tgflow::piece_class(capacity[n - 1]);
  if (n < 31) rooms[n] = tgflow::room_class(tgflow::directory_room((int64_t{1} << n) - 1));
}
"""


def test_every_capacity_has_its_own_size_class(tmp_path):
    source = tmp_path / "classes.cu"
    source.write_text(CODE)
    capacity, size_class = torch.zeros(2**15, dtype=torch.int64), torch.zeros(2**15).int()
    rooms = torch.zeros(31).int()
    columns = (ctypes.c_uint64(column.data_ptr()) for column in (capacity, size_class, rooms))
    Emulator((source,)).launch("classes", 2**15 // 64, 64, *columns)
    pairs = set(zip(capacity.tolist(), size_class.tolist(), strict=True))
    assert len(pairs) == len({size for size, _ in pairs}) == len({c for _, c in pairs})
    assert len(pairs) > 60
    assert max(size_class) < 160
    assert rooms[1:].tolist() == list(range(161, 191))
    assert (CSRC / "include/tgflow/cuda/insertion.hpp").read_text().count("160") == 1
