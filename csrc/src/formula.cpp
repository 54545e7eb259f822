#include "tgflow/formula.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "tgflow/detail/simd.hpp"
#include "tgflow/double_math.hpp"

namespace tgflow {

int Formula::num_operands(Op op) {
  if (op < Op::kAdd) return 0;
  return op == Op::kWhere ? 3 : op < Op::kExp ? 2 : 1;
}

Formula::Formula(std::vector<Step> steps, std::vector<int64_t> results)
    : steps_(std::move(steps)), results_(std::move(results)) {
  const auto check = [](int64_t step, size_t known) {
    if (step >= 0 && step < static_cast<int64_t>(known)) return;
    throw std::invalid_argument("step " + std::to_string(step) + " is not among the " +
                                std::to_string(known) + " that are known");
  };
  for (size_t i = 0; i < steps_.size(); ++i) {
    for (int j = 0; j < num_operands(steps_[i].op); ++j) check(steps_[i].of[static_cast<size_t>(j)], i);
  }
  for (const int64_t result : results_) check(result, steps_.size());
}

std::vector<double> Formula::columns() const {
  std::vector<double> columns(steps_.size() * kBlock);
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (steps_[i].op == Op::kConstant) std::fill_n(&columns[i * kBlock], kBlock, steps_[i].constant);
  }
  return columns;
}

namespace {

/// Computes a step of up to kBlock pairs from the columns of its operands.
struct Compute {
  template <typename Level>
  TGFLOW_INLINE static void run(Op op, int64_t num, const double* x, const double* y, const double* z,
                                double* to) {
    switch (op) {
      case Op::kAdd:
        for (int64_t k = 0; k < num; ++k) to[k] = x[k] + y[k];
        break;
      case Op::kSubtract:
        for (int64_t k = 0; k < num; ++k) to[k] = x[k] - y[k];
        break;
      case Op::kMultiply:
        for (int64_t k = 0; k < num; ++k) to[k] = x[k] * y[k];
        break;
      case Op::kDivide:
        for (int64_t k = 0; k < num; ++k) to[k] = x[k] / y[k];
        break;
      case Op::kMinimum:
        for (int64_t k = 0; k < num; ++k) to[k] = x[k] < y[k] ? x[k] : y[k];
        break;
      case Op::kMaximum:
        for (int64_t k = 0; k < num; ++k) to[k] = x[k] > y[k] ? x[k] : y[k];
        break;
      case Op::kAtLeast:
        for (int64_t k = 0; k < num; ++k) to[k] = x[k] >= y[k] ? 1.0 : 0.0;
        break;
      case Op::kWhere:
        for (int64_t k = 0; k < num; ++k) to[k] = x[k] != 0 ? y[k] : z[k];
        break;
      case Op::kExp:
        return exp_all(x, num, to);
      case Op::kLog:
        for (int64_t k = 0; k < num; ++k) to[k] = std::log(x[k]);
        break;
      case Op::kLog1p:
        return log1p_all(x, num, to);
      case Op::kLog2:
        for (int64_t k = 0; k < num; ++k) to[k] = std::log2(x[k]);
        break;
      default:  // of counts and of pairs
        break;
    }
  }
};

}  // namespace

template <typename T>
void Formula::evaluate(int64_t num, double* columns, T* out) const {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const auto column = [&](size_t j) -> const double* { return columns + steps_[i].of[j] * kBlock; };
    simd::run<Compute>(steps_[i].op, num, column(0), column(1), column(2),
                       columns + static_cast<int64_t>(i) * kBlock);
  }
  for (size_t j = 0; j < results_.size(); ++j) {
    const double* from = columns + results_[j] * kBlock;
    for (int64_t k = 0; k < num; ++k)
      out[static_cast<size_t>(k) * results_.size() + j] = static_cast<T>(from[k]);
  }
}

template void Formula::evaluate(int64_t num, double* columns, double* out) const;
template void Formula::evaluate(int64_t num, double* columns, float* out) const;

}  // namespace tgflow
