// Attention against its formula, and their gradients against differences.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "check.hpp"
#include "tgflow/attention.hpp"

namespace tgflow {
namespace {

using Floats = std::vector<float>;

Floats normal(int64_t size, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> draw;
  Floats out(size);
  for (float& x : out) x = draw(engine);
  return out;
}

bool near(double a, double b, double tolerance) { return std::abs(a - b) <= tolerance * (1 + std::abs(b)); }

/// 70 targets with gaps, the first without neighbors; widths that leave every kind of remainder.
struct AttentionCase {
  static constexpr int64_t kTargets = 70, kSlots = 3, kHeads = 2, kBelow = 9, kEvents = 5;
  static constexpr int64_t kH = 41, kX = 7, kTime = 11, kD = kH + kX + kTime;
  bool shared;
  Floats query, below = normal(kBelow * kH, 2), edges = normal(kEvents * kX, 3), dt, frequency;
  Floats keep = normal(kHeads * kTargets * kSlots, 4);
  std::vector<int64_t> neighbor, edge_row;
  std::vector<char> mask;

  explicit AttentionCase(bool shared_query)
      : shared(shared_query), query(normal(kHeads * (shared_query ? 1 : kTargets) * kD, 1)) {
    for (float& q : query) q *= 0.3f;
    for (int64_t i = 0; i < kTime; ++i) frequency.push_back(std::pow(0.3f, static_cast<float>(i)));
    for (int64_t s = 0; s < kTargets * kSlots; ++s) {
      mask.push_back(s >= kSlots && s % 4 != 1);
      neighbor.push_back(s * 7 % kBelow);
      edge_row.push_back(s * 3 % kEvents);
      dt.push_back(static_cast<float>(s % 13));
    }
  }

  Attention view() const {
    return {kTargets,        kSlots,
            kHeads,          query.data(),
            shared,          below.data(),
            kBelow,          kH,
            neighbor.data(), edges.data(),
            kEvents,         kX,
            edge_row.data(), reinterpret_cast<const bool*>(mask.data()),
            dt.data(),       frequency.data(),
            kTime,           keep.data()};
  }

  double input(int64_t slot, int64_t i) const {
    if (i < kH) return below[neighbor[slot] * kH + i];
    if (i < kH + kX) return edges[edge_row[slot] * kX + i - kH];
    return std::cos(static_cast<double>(frequency[i - kH - kX]) * dt[slot]);
  }

  /// The loss sum(inputs * grad_inputs) + sum(total * grad_total), by the formula.
  double loss(const Floats& grad_inputs, const Floats& grad_total) const {
    double sum = 0;
    for (int64_t row = 0; row < kHeads * kTargets; ++row) {
      const float* q = query.data() + (shared ? row / kTargets : row) * kD;
      double norm = 0;
      double weighted = 0;
      for (int64_t j = 0; j < kSlots; ++j) {
        const int64_t slot = row % kTargets * kSlots + j;
        if (!mask[slot]) continue;
        double score = 0;
        double gain = grad_total[row];
        for (int64_t i = 0; i < kD; ++i) {
          score += q[i] * input(slot, i);
          gain += grad_inputs[row * kD + i] * input(slot, i);
        }
        norm += std::exp(score);
        weighted += std::exp(score) * keep[row * kSlots + j] * gain;
      }
      if (norm > 0) sum += weighted / norm;
    }
    return sum;
  }
};

void check_differences(AttentionCase& made, Floats& values, const Floats& gradient, const Floats& inputs,
                       const Floats& total) {
  for (size_t i = 0; i < values.size(); i += 17) {
    const float before = values[i];
    values[i] = before + 1e-2f;
    const double above = made.loss(inputs, total);
    values[i] = before - 1e-2f;
    const double under = made.loss(inputs, total);
    values[i] = before;
    CHECK(near(gradient[i], (above - under) / 2e-2, 2e-2));
  }
}

void check_attention(bool shared) {
  using C = AttentionCase;
  AttentionCase made(shared);
  const int64_t rows = C::kHeads * C::kTargets;
  Floats weight(rows * C::kSlots), inputs(rows * C::kD), total(rows);
  attend(made.view(), {weight.data(), inputs.data(), total.data()});
  const Floats grad_inputs = normal(rows * C::kD, 5), grad_total = normal(rows, 6);
  double loss = 0;
  for (int64_t i = 0; i < rows * C::kD; ++i) loss += inputs[i] * grad_inputs[i];
  for (int64_t i = 0; i < rows; ++i) loss += total[i] * grad_total[i];
  CHECK(near(loss, made.loss(grad_inputs, grad_total), 1e-4));
  CHECK(std::all_of(inputs.begin(), inputs.begin() + C::kD, [](float x) { return x == 0; }));

  Floats grad_query(made.query.size()), grad_below(made.below.size());
  attend_backward(made.view(), {weight.data(), grad_inputs.data(), grad_total.data(), grad_query.data(),
                                grad_below.data()});
  check_differences(made, made.query, grad_query, grad_inputs, grad_total);
  check_differences(made, made.below, grad_below, grad_inputs, grad_total);
}

TEST(attention_and_its_gradients) { check_attention(false); }
TEST(attention_with_a_shared_query_and_its_gradients) { check_attention(true); }

TEST(attention_of_nobody) {
  Attention none{};
  none.num_heads = 2;
  none.k = 3;
  attend(none, {nullptr, nullptr, nullptr});
  attend_backward(none, {});
}

}  // namespace
}  // namespace tgflow
