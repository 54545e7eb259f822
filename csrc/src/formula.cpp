#include "tgflow/formula.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

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

void Formula::evaluate(int64_t num, double* columns, double* out) const {
  for (size_t i = 0; i < steps_.size(); ++i) {
    double* const to = columns + static_cast<int64_t>(i) * kBlock;
    const auto column = [&](size_t j) { return columns + steps_[i].of[j] * kBlock; };
    const auto both = [&](const auto& f) {
      const double *x = column(0), *y = column(1);
      for (int64_t k = 0; k < num; ++k) to[k] = f(x[k], y[k]);
    };
    const auto each = [&](const auto& f) {  // many pairs in turn have no history, or the same
      const double* x = column(0);
      for (int64_t k = 0; k < num; ++k) to[k] = k > 0 && x[k] == x[k - 1] ? to[k - 1] : f(x[k]);
    };
    switch (steps_[i].op) {
      case Op::kNum:
      case Op::kAge:
      case Op::kDecayed:
      case Op::kRank:
      case Op::kSince:
      case Op::kWithin:
      case Op::kLoop:
      case Op::kConstant:
        break;
      case Op::kAdd:
        both([](double x, double y) { return x + y; });
        break;
      case Op::kSubtract:
        both([](double x, double y) { return x - y; });
        break;
      case Op::kMultiply:
        both([](double x, double y) { return x * y; });
        break;
      case Op::kDivide:
        both([](double x, double y) { return x / y; });
        break;
      case Op::kMinimum:
        both([](double x, double y) { return x < y ? x : y; });
        break;
      case Op::kMaximum:
        both([](double x, double y) { return x > y ? x : y; });
        break;
      case Op::kAtLeast:
        both([](double x, double y) { return x >= y ? 1.0 : 0.0; });
        break;
      case Op::kWhere: {
        const double *condition = column(0), *x = column(1), *y = column(2);
        for (int64_t k = 0; k < num; ++k) to[k] = condition[k] != 0 ? x[k] : y[k];
        break;
      }
      case Op::kExp:
        each([](double x) { return std::exp(x); });
        break;
      case Op::kLog:
        each([](double x) { return std::log(x); });
        break;
      case Op::kLog1p:
        each([](double x) { return std::log1p(x + 0.0); });  // of -0, which equals 0, as of 0
        break;
      case Op::kLog2:
        each([](double x) { return std::log2(x); });
        break;
    }
  }
  for (size_t j = 0; j < results_.size(); ++j) {
    const double* from = columns + results_[j] * kBlock;
    for (int64_t k = 0; k < num; ++k) out[static_cast<size_t>(k) * results_.size() + j] = from[k];
  }
}

}  // namespace tgflow
