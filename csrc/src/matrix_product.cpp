#include "tgflow/matrix_product.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tgflow/detail/simd.hpp"
#include "tgflow/thread_pool.hpp"

namespace tgflow {
namespace {

constexpr int64_t kDepth = 256;      // inner indices of a block; a panel of b then fits in the L1 cache
constexpr int64_t kBlockRows = 96;   // rows of a that are multiplied with a panel while it is there
constexpr int64_t kGrain = 1 << 20;  // multiply-adds: least work for another thread

/// Multiply-adds of float32, one inner index a step.
template <typename Level>
struct Singles {
  using Element = float;
  using Wide = Level;
  static constexpr int64_t kInner = 1;

  TGFLOW_INLINE static void load(const float* from, int64_t step, int64_t size, int64_t, float* out) {
    if (step == 1) {
      for (int64_t i = 0; i < size; ++i) out[i] = from[i];
    } else {
      for (int64_t i = 0; i < size; ++i) out[i] = from[i * step];
    }
  }
  template <typename Vector>
  TGFLOW_INLINE static void add(Vector& sum, float x, const Vector& y) {
    sum += x * y;
  }
};

#if defined(TGFLOW_WIDE)
#define TGFLOW_HAS_BFLOAT16() (TGFLOW_HAS_AVX512() && __builtin_cpu_supports("avx512bf16"))

/// The upper half of a float32, rounded to the nearest, ties to even; NaN stays NaN.
TGFLOW_INLINE uint32_t bfloat16_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return (bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded;
}

/// Multiply-adds of bfloat16, two inner indices a step: the first in the low half of an element.
struct Pairs {
  using Element = uint32_t;
  using Wide = simd::Avx512;
  static constexpr int64_t kInner = 2;

  /// out[i] is the pair of from[i * step] and from[i * step + second]; `second` 0: of one and a zero.
  TGFLOW_INLINE static void load(const float* from, int64_t step, int64_t size, int64_t second,
                                 uint32_t* out) {
    const auto pair = [&](int64_t at) {
      return bfloat16_of(from[at]) | (second != 0 ? bfloat16_of(from[at + second]) << 16 : 0);
    };
    if (step == 1) {
      for (int64_t i = 0; i < size; ++i) out[i] = pair(i);
    } else if (step == 2 && second == 1) {
      for (int64_t i = 0; i < size; ++i) {
        out[i] = bfloat16_of(from[2 * i]) | bfloat16_of(from[2 * i + 1]) << 16;
      }
    } else {
      for (int64_t i = 0; i < size; ++i) out[i] = pair(i * step);
    }
  }
  template <typename Vector>
  TGFLOW_INLINE static void add(Vector& sum, const uint32_t& x, const Vector& y) {
    Vector own = sum;  // an operand that is part of an array would be kept in memory
    if constexpr (sizeof(Vector) == 64) {
      asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(own) : "v"(y), "m"(x));
    } else {
      asm("vdpbf16ps %2%{1to8%}, %1, %0" : "+v"(own) : "v"(y), "m"(x));
    }
    sum = own;
  }
};
#else
#define TGFLOW_HAS_BFLOAT16() false
#endif

/// Factors of one block of inner indices as the loops read them.
template <typename Element>
struct Packed {
  const Element* a;
  int64_t a_row, a_step;  ///< Distances of rows and of steps.
  const Element* panel;   ///< [num_steps, panel_width], zeros beyond the columns of b.
  int64_t panel_width, num_steps;
};

/// Rows and columns of the result, and what they are added to.
struct Target {
  const float* prior;
  int64_t prior_stride;
  float* out;
  int64_t out_stride, num_columns;
};

/// `kRows` rows from row `r` on by `kVectors` vectors of columns: the sums stay in registers.
template <typename Kind, typename Lanes, int kRows, int kVectors>
TGFLOW_INLINE void multiply_tile(const Packed<typename Kind::Element>& p, const Target& t, int64_t r) {
  using Vector = typename Lanes::Vector;
  constexpr int64_t kLanes = Lanes::kLanes, kWidth = kLanes * kVectors;
  Vector sum[kRows][kVectors] = {};
  const bool is_whole = t.num_columns >= kWidth;
  float edge[kRows * kWidth];  // columns beyond the last are computed here
  if (t.prior != nullptr) {
    const float* from = t.prior + r * t.prior_stride;
    if (!is_whole) {
      std::memset(edge, 0, sizeof edge);
      for (int i = 0; i < kRows; ++i) {
        std::memcpy(edge + i * kWidth, from + i * t.prior_stride, t.num_columns * sizeof(float));
      }
    }
    for (int i = 0; i < kRows; ++i) {
      const float* row = is_whole ? from + i * t.prior_stride : edge + i * kWidth;
      for (int v = 0; v < kVectors; ++v) sum[i][v] = simd::vector_at<Lanes>(row + v * kLanes);
    }
  }
  const auto* a = p.a + r * p.a_row;
  const auto* panel = p.panel;
  for (int64_t k = 0; k < p.num_steps; ++k, a += p.a_step, panel += p.panel_width) {
    Vector y[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      y[v] = *reinterpret_cast<const Vector*>(panel + v * kLanes);
    }
    for (int i = 0; i < kRows; ++i) {
      for (int v = 0; v < kVectors; ++v) Kind::add(sum[i][v], a[i * p.a_row], y[v]);
    }
  }
  float* out = t.out + r * t.out_stride;
  for (int i = 0; i < kRows; ++i) {
    float* row = is_whole ? out + i * t.out_stride : edge + i * kWidth;
    for (int v = 0; v < kVectors; ++v) *reinterpret_cast<Vector*>(row + v * kLanes) = sum[i][v];
    if (!is_whole) std::memcpy(out + i * t.out_stride, row, t.num_columns * sizeof(float));
  }
}

template <typename Kind, typename Lanes, int kVectors>
TGFLOW_INLINE void multiply_rows(const Packed<typename Kind::Element>& p, const Target& t, int64_t num_rows) {
  constexpr int kRows = Kind::Wide::kLanes == 16 ? 12 : 6;  // as many as there are registers for
  int64_t r = 0;
  for (; r + kRows <= num_rows; r += kRows) multiply_tile<Kind, Lanes, kRows, kVectors>(p, t, r);
  for (; r + kRows / 3 <= num_rows; r += kRows / 3) multiply_tile<Kind, Lanes, kRows / 3, kVectors>(p, t, r);
  for (; r < num_rows; ++r) multiply_tile<Kind, Lanes, 1, kVectors>(p, t, r);
}

/// One panel of columns; the last one may be of one vector, of 8 lanes or more.
template <typename Kind>
TGFLOW_INLINE void multiply_panel(const Packed<typename Kind::Element>& p, const Target& t,
                                  int64_t num_rows) {
  using Wide = typename Kind::Wide;
  if (p.panel_width > Wide::kLanes) {
    multiply_rows<Kind, Wide, 2>(p, t, num_rows);
  } else if (p.panel_width > simd::Eight::kLanes) {
    multiply_rows<Kind, Wide, 1>(p, t, num_rows);
  } else {
    multiply_rows<Kind, simd::Eight, 1>(p, t, num_rows);
  }
}

int64_t parts(int64_t size, int64_t part) { return (size + part - 1) / part; }

/// A product over one block of inner indices.
struct Block {
  const Product& product;
  SimdLevel level;
  int64_t first, depth;       ///< Inner indices.
  int64_t num_steps, inner;   ///< Steps, and inner indices of a step: 2 of bfloat16.
  int64_t panel, num_panels;  ///< Columns of a panel: 2 vectors.
  float* b;                   ///< Packed panels, each [num_steps, panel or less] elements of 4 bytes.

  int64_t columns(int64_t i) const { return std::min(panel, product.num_columns - i * panel); }
  int64_t width(int64_t i) const {
    const int64_t num = columns(i), lanes = panel / 2;
    return num > lanes ? panel : num > 8 ? lanes : 8;
  }
  /// Distance of the second inner index of a step; 0 if there is none.
  int64_t second(int64_t step, int64_t stride) const { return inner * step + 1 < depth ? stride : 0; }
};

template <typename Kind>
TGFLOW_INLINE void pack(const Block& block, int64_t panel) {
  using Element = typename Kind::Element;
  const Matrix& b = block.product.b;
  const float* from = b.data + block.first * b.row_stride + panel * block.panel * b.column_stride;
  const int64_t have = block.columns(panel), width = block.width(panel);
  auto* out = reinterpret_cast<Element*>(block.b) + panel * block.num_steps * block.panel;
  for (int64_t k = 0; k < block.num_steps; ++k, out += width) {
    Kind::load(from + Kind::kInner * k * b.row_stride, b.column_stride, have, block.second(k, b.row_stride),
               out);
    std::fill(out + have, out + width, Element{0});
  }
}

/// Rows of a as the loops read them: in place, or rounded into `room` in the order of memory.
template <typename Kind>
TGFLOW_INLINE Packed<typename Kind::Element> rows_of_a(const Block& block, int64_t row, int64_t num_rows,
                                                       std::vector<typename Kind::Element>& room) {
  const Matrix& a = block.product.a;
  const float* from = a.data + row * a.row_stride + block.first * a.column_stride;
  const int64_t steps = block.num_steps;
  if constexpr (Kind::kInner == 1) {
    return {from, a.row_stride, a.column_stride, nullptr, 0, steps};
  } else {
    room.resize(num_rows * steps);
    if (a.column_stride != 1) {
      for (int64_t k = 0; k < steps; ++k) {
        Kind::load(from + 2 * k * a.column_stride, a.row_stride, num_rows, block.second(k, a.column_stride),
                   room.data() + k * num_rows);
      }
      return {room.data(), 1, num_rows, nullptr, 0, steps};
    }
    for (int64_t i = 0; i < num_rows; ++i) {
      const float* own = from + i * a.row_stride;
      auto* out = room.data() + i * steps;
      Kind::load(own, 2, block.depth / 2, 1, out);
      if (block.depth % 2 != 0) Kind::load(own + block.depth - 1, 1, 1, 0, out + steps - 1);
    }
    return {room.data(), steps, 1, nullptr, 0, steps};
  }
}

/// Multiplies tiles of `kBlockRows` rows by a panel: those of the first rows come first.
template <typename Kind>
TGFLOW_INLINE void multiply_tiles(const Block& block, int64_t begin, int64_t end) {
  using Element = typename Kind::Element;
  const Product& product = block.product;
  std::vector<Element> room;
  Packed<Element> p{};
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = i / block.num_panels * kBlockRows, panel = i % block.num_panels;
    const int64_t num_rows = std::min(kBlockRows, product.num_rows - row), column = panel * block.panel;
    if (i == begin || panel == 0) p = rows_of_a<Kind>(block, row, num_rows, room);
    p.panel = reinterpret_cast<const Element*>(block.b) + panel * block.num_steps * block.panel;
    p.panel_width = block.width(panel);
    float* out = product.out + row * product.out_stride + column;
    Target target{out, product.out_stride, out, product.out_stride, block.columns(panel)};
    if (block.first == 0) {
      const Matrix& prior = product.prior;
      target.prior = prior.data == nullptr ? nullptr : prior.data + row * prior.row_stride + column;
      target.prior_stride = prior.row_stride;
    }
    multiply_panel<Kind>(p, target, num_rows);
  }
}

struct PackPanels {
  template <typename Level>
  TGFLOW_INLINE static void run(const Block& block, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
#if defined(TGFLOW_WIDE)
      if constexpr (Level::kLanes == 16) {
        if (block.inner == 2) {
          pack<Pairs>(block, i);
          continue;
        }
      }
#endif
      pack<Singles<Level>>(block, i);
    }
  }
};

struct MultiplyTiles {
  template <typename Level>
  TGFLOW_INLINE static void run(const Block& block, int64_t begin, int64_t end) {
#if defined(TGFLOW_WIDE)
    if constexpr (Level::kLanes == 16) {
      if (block.inner == 2) return multiply_tiles<Pairs>(block, begin, end);
    }
#endif
    multiply_tiles<Singles<Level>>(block, begin, end);
  }
};

}  // namespace

bool has_bfloat16() { return simd_level() == SimdLevel::kAvx512 && TGFLOW_HAS_BFLOAT16(); }

void multiply(const Product& product, Rounding rounding) {
  const SimdLevel level = simd_level();
  const int64_t inner = rounding == Rounding::kBfloat16 ? 2 : 1;
  const int64_t panel = level == SimdLevel::kAvx512 ? 32 : 16;
  const int64_t num_panels = parts(product.num_columns, panel),
                num_blocks = parts(product.num_rows, kBlockRows);
  std::vector<float> packed;
  for (int64_t first = 0; first == 0 || first < product.depth; first += kDepth) {
    const int64_t depth = std::min(kDepth, product.depth - first), num_steps = parts(depth, inner);
    packed.resize(num_panels * num_steps * panel);
    const Block block{product, level, first, depth, num_steps, inner, panel, num_panels, packed.data()};
    const int64_t work = std::max<int64_t>(depth, 1) * panel;  // of a row and a panel
    parallel_for(num_panels, parts(kGrain / 8, work),
                 [&](int64_t begin, int64_t end) { simd::run_at<PackPanels>(level, block, begin, end); });
    parallel_for(num_panels * num_blocks, parts(kGrain, kBlockRows * work),
                 [&](int64_t begin, int64_t end) { simd::run_at<MultiplyTiles>(level, block, begin, end); });
  }
}

}  // namespace tgflow
