// A coin that comes up with probability 2^-x, in integers, so that every device agrees. No `std::` here.
#pragma once

#include "tgflow/random.hpp"

namespace tgflow {

constexpr int32_t kFractionDigits = 32;

/// 2^-(2^-digit) in 64-bit fixed point, 1 <= digit <= kFractionDigits.
TGFLOW_HD inline uint64_t root_of_half(int32_t digit) {
  static constexpr uint64_t kRoots[kFractionDigits] = {
      0xb504f333f9de6484, 0xd744fccad69d6af4, 0xeac0c6e7dd24392e, 0xf5257d152486cc2c, 0xfa83b2db722a033a,
      0xfd3e0c0cf486c174, 0xfe9e115c7b8f884b, 0xff4ecb59511ec8a5, 0xffa756521c8daed1, 0xffd3a751c0f7e10b,
      0xffe9d2b2f7db2755, 0xfff4e91bff1b8c3d, 0xfffa747ea0040664, 0xfffd3a3b7814eb53, 0xfffe9d1cc60ddab1,
      0xffff4e8e25879bfa, 0xffffa7470363f451, 0xffffd3a37dda0313, 0xffffe9d1bdf703ae, 0xfffff4e8debe025e,
      0xfffffa746f4fa150, 0xfffffd3a37a3f8b0, 0xfffffe9d1bd1065a, 0xffffff4e8de845ad, 0xffffffa746f41376,
      0xffffffd3a37a05e3, 0xffffffe9d1bd01fb, 0xfffffff4e8de80c0, 0xfffffffa746f4050, 0xfffffffd3a37a024,
      0xfffffffe9d1bd011, 0xffffffff4e8de808};
  return kRoots[digit - 1];
}

/// Whether `bits`, 64 random ones, are below 2^-(num / den), 1 <= den < 2^63, as a fraction of 2^64. The
/// binary digits of the exponent are found one by one, and only until the outcome is certain: after two,
/// mostly. Off by less than 2^-58 in all.
TGFLOW_HD inline bool half_power_coin(uint64_t bits, uint64_t num, uint64_t den) {
  if (num >= den) {
    const uint64_t whole = num / den;
    if (whole > 63 || bits >> (64 - whole) != 0) return false;
    bits <<= whole;
    num -= whole * den;
  }
  uint64_t power =
      ~0ull;  // of the digits so far: the answer is at most this, more than the digit's root of it
  for (int32_t digit = 1; num != 0 && digit <= kFractionDigits; ++digit) {
    const uint64_t lower = multiply_high(power, root_of_half(digit));
    num += num;
    if (num >= den) {
      num -= den;
      power = lower;
      if (bits >= power) return false;
    } else if (bits < lower) {
      return true;
    }
  }
  return bits < power;
}

}  // namespace tgflow
