// The algorithms of glibc, without branches, so that compilers vectorize them. Values that these branch for
// are few: the library computes them, and all others where there are no such vectors.
#include "tgflow/double_math.hpp"

#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "tgflow/detail/simd.hpp"

namespace tgflow {
namespace {

constexpr int64_t kChunk = 64;  // values whose exceptions are looked for together

TGFLOW_INLINE uint64_t bits_of(double x) {
  uint64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
TGFLOW_INLINE double double_of(uint64_t bits) {
  double x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

constexpr int kParts = 128;

/// 2^(i / kParts) = scale (1 + tail).
struct Powers {
  std::array<uint64_t, kParts> scale{};  ///< Its bits, less those of i / kParts in the exponent.
  std::array<double, kParts> tail{};

  Powers() {
    for (int i = 0; i < kParts; ++i) {
      Pair power{1, 0}, root{2, 0};
      for (int bit = kParts / 2; bit > 0; bit /= 2) {
        root = root.root();
        if (i & bit) power = power * root;
      }
      scale[static_cast<size_t>(i)] = bits_of(power.high) - (static_cast<uint64_t>(i) << 45);
      tail[static_cast<size_t>(i)] = power.low / power.high;
    }
  }

 private:
  /// A number of twice the precision, high + low.
  struct Pair {
    double high, low;

    static Pair of(double high, double low) { return {high + low, low - ((high + low) - high)}; }
    Pair operator*(Pair b) const {
      const double product = high * b.high;
      return of(product, std::fma(high, b.high, -product) + (high * b.low + low * b.high));
    }
    Pair root() const {
      const double near = std::sqrt(high);
      return of(near, (std::fma(-near, near, high) + low) / (2 * near));
    }
  };
};

const Powers& powers() {
  static const Powers powers;
  return powers;
}

/// exp2 by Szabolcs Nagy, of Arm's optimized routines.
struct Exp2 {
  static double one(double x) { return std::exp2(x); }
  TGFLOW_INLINE static bool is_plain(double x) { return ((x > -928) & (x < 1023)) | (x < -1076); }
  TGFLOW_INLINE static double plain(double x, const Powers& powers) {
    constexpr double kShift = 0x1.8p45;  // rounds to a multiple of 1 / kParts
    const double shifted = x + kShift, r = x - (shifted - kShift), r2 = r * r;
    const uint64_t k = bits_of(shifted);
    const double scale = double_of(powers.scale[k % kParts] + (k << 45));
    const double low = r * 0x1.62e42fefa39efp-1 + powers.tail[k % kParts];
    const double middle = r2 * (r * 0x1.c6b08d70cf4b5p-5 + 0x1.ebfbdff82c424p-3);
    const double high = r2 * r2 * (r * 0x1.5d7e09b4e3a84p-10 + 0x1.3b2abd24650ccp-7);
    const double power = scale + scale * (middle + low + high);
    return x < -1076 ? 0.0 : power;
  }
};

/// exp, the same.
struct Exp {
  static double one(double x) { return std::exp(x); }
  TGFLOW_INLINE static bool is_plain(double x) { return ((x > -512) & (x < 512)) | (x < -746); }
  TGFLOW_INLINE static double plain(double x, const Powers& powers) {
    constexpr double kShift = 0x1.8p52;
    const double shifted = __builtin_fma(x, 0x1.71547652b82fep+7, kShift), parts = shifted - kShift;
    const double near = __builtin_fma(parts, -0x1.62e42fefap-8, x);
    const double r = __builtin_fma(parts, -0x1.cf79abc9e3b3ap-47, near), r2 = r * r;
    const uint64_t k = bits_of(shifted);
    const double scale = double_of(powers.scale[k % kParts] + (k << 45));
    const double low = r + powers.tail[k % kParts];
    const double middle =
        __builtin_fma(__builtin_fma(r, 0x1.555555555543cp-3, 0x1.ffffffffffdbdp-2), r2, low);
    const double high = __builtin_fma(r, 0x1.1111167a4d017p-7, 0x1.55555cf172b91p-5);
    const double power = __builtin_fma(scale, __builtin_fma(r2 * r2, high, middle), scale);
    return x < -746 ? 0.0 : power;
  }
};

/// log1p of Sun's fdlibm: 1 + x = 2^k (1 + f).
struct Log1p {
  static double one(double x) { return std::log1p(x + 0.0); }  // of -0 as of 0
  TGFLOW_INLINE static bool is_plain(double x) { return (x == 0) | ((x >= 0x1p-20) & (x < 0x1p+53)); }
  TGFLOW_INLINE static double plain(double x, const Powers&) {
    constexpr uint64_t kMantissa = (uint64_t{1} << 52) - 1, kRootOf2 = uint64_t{0x6A09E} << 32;
    x += 0.0;
    const double u = 1 + x;
    const uint64_t mantissa = bits_of(u) & kMantissa;
    const bool is_low = mantissa < kRootOf2, is_near_0 = bits_of(x) < uint64_t{0x3FDA827A} << 32;
    const uint64_t exponent = (bits_of(u) >> 52) - 1023;
    const double lost = (exponent > 0 ? 1 - (u - x) : x - (u - 1)) / u;
    const double c = is_near_0 ? 0 : lost;
    // a small integer as the last bits of a large double
    const double number = double_of(bits_of(0x1.8p52) + exponent + (is_low ? 0 : 1)) - 0x1.8p52;
    const double k = is_near_0 ? 0 : number;
    const double near_1 = double_of(mantissa | (is_low ? bits_of(1) : bits_of(0.5)));
    const double f = is_near_0 ? x : near_1 - 1;
    const double half = 0.5 * f * f, s = f / (2 + f), z = s * s, z2 = z * z, z4 = z2 * z2;
    const double r1 = z2 * __builtin_fma(z, 0x1.2492494229359p-2, 0x1.999999997fa04p-2);
    const double r2 = __builtin_fma(z, 0x1.5555555555593p-1, r1);
    const double r3 = __builtin_fma(z4, __builtin_fma(z, 0x1.7466496cb03dep-3, 0x1.c71c51d8e78afp-3), r2);
    const double r = __builtin_fma(z4 * z2, __builtin_fma(z, 0x1.2f112df3e5244p-3, 0x1.39a09d078c69fp-3), r3);
    const double rest = half - (__builtin_fma(k, 0x1.a39ef35793c76p-33, c) + s * (r + half)) - f;
    return __builtin_fma(k, 0x1.62e42feep-1, -rest);
  }
};

template <typename F>
struct Each {
  template <typename Level>
  TGFLOW_INLINE static void run(const double* values, int64_t size, double* out) {
    const Powers& known = powers();
    for (int64_t begin = 0; begin < size; begin += kChunk) {
      const int64_t num = size - begin < kChunk ? size - begin : kChunk;
      const double* const x = values + begin;
      double y[kChunk];
      int64_t num_plain = 0;
      if (!std::is_same_v<Level, simd::Baseline>) {
        for (int64_t i = 0; i < num; ++i) {
          y[i] = F::plain(x[i], known);
          num_plain += F::is_plain(x[i]);
        }
      }
      for (int64_t i = 0; i < num && num_plain < num; ++i) {
        if (num_plain == 0 || !F::is_plain(x[i])) y[i] = F::one(x[i]);
      }
      std::memcpy(out + begin, y, static_cast<size_t>(num) * sizeof(double));
    }
  }
};

}  // namespace

void exp_all(const double* values, int64_t size, double* out) { simd::run<Each<Exp>>(values, size, out); }

void decay_all(const double* ages, int64_t size, double half_life, double* out) {
  for (int64_t i = 0; i < size; ++i) out[i] = -ages[i] / half_life;
  const double* const powers = out;
  simd::run<Each<Exp2>>(powers, size, out);
}

void log1p_all(const double* values, int64_t size, double* out) { simd::run<Each<Log1p>>(values, size, out); }

}  // namespace tgflow
