// Numbers of scored pairs, computed from their counts by a list of steps.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace tgflow {

/// What a step computes; see `Number` in tgflow/graph/counts.py.
enum class Op : uint8_t {
  kNum,  // of a count
  kAge,
  kDecayed,
  kRank,
  kSince,
  kWithin,  // the constant: a width in seconds
  kLoop,    // of a pair
  kConstant,
  kAdd,  // of other steps
  kSubtract,
  kMultiply,
  kDivide,
  kMinimum,
  kMaximum,
  kAtLeast,
  kWhere,
  kExp,
  kLog,
  kLog1p,
  kLog2,
};

struct Step {
  Op op;
  std::array<int64_t, 3> of{};  ///< Indices of earlier steps; that of a count.
  double constant = 0;

  bool is_of_count() const { return op <= Op::kWithin; }
};

/// Steps over columns of up to `kBlock` pairs, some of which are the numbers wanted. Each pair has the same
/// bits whatever the others are.
class Formula {
 public:
  static constexpr int64_t kBlock = 64;

  /// Throws std::invalid_argument if a step or a result is of no earlier step.
  Formula(std::vector<Step> steps, std::vector<int64_t> results);

  const std::vector<Step>& steps() const { return steps_; }
  int64_t width() const { return static_cast<int64_t>(results_.size()); }
  static int num_operands(Op op);

  /// Returns a column for each step, `kBlock` numbers, with the constants.
  std::vector<double> columns() const;
  /// Computes the steps of the first `num` pairs; those of counts and of pairs must be there. Writes the
  /// results, `out[num, width()]`, as doubles or floats.
  template <typename T>
  void evaluate(int64_t num, double* columns, T* out) const;

 private:
  std::vector<Step> steps_;
  std::vector<int64_t> results_;
};

}  // namespace tgflow
