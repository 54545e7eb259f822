#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>
#include <utility>
#include <vector>

#include "check.hpp"
#include "graph_of.hpp"
#include "tgflow/event_counts.hpp"

namespace tgflow {
namespace {

constexpr Decay kNone{0, Clock::kSeconds};

const std::vector<Count>& every_list() {
  static const std::vector<Count> counts = [] {
    std::vector<Count> all;
    for (int of = 0; of <= static_cast<int>(CountOf::kAll); ++of) {
      all.push_back({static_cast<CountOf>(of), 1, kNone});
      all.push_back({static_cast<CountOf>(of), 1, {20.0, of % 2 == 0 ? Clock::kEvents : Clock::kSeconds}});
    }
    all.push_back({CountOf::kWindow, 3, kNone});
    return all;
  }();
  return counts;
}

/// Every number of every count.
Formula every_number() {
  std::vector<Step> steps;
  std::vector<int64_t> results;
  const auto size = static_cast<int64_t>(every_list().size());
  for (int64_t i = 0; i < size; ++i) {
    const bool decays = every_list()[static_cast<size_t>(i)].decays();
    for (const Op op : {Op::kNum, Op::kAge, decays ? Op::kDecayed : Op::kNum}) {
      results.push_back(static_cast<int64_t>(steps.size()));
      steps.push_back({op, {i, 0, 0}, 0});
    }
  }
  return {std::move(steps), std::move(results)};
}

/// Pairs of the nodes of made events, each with a negative.
struct Asking {
  std::vector<node_t> src, dst, negative;
  std::vector<tick_t> t;
  std::vector<eid_t> limit;

  Asking(int64_t size, int64_t before, tick_t at) {
    for (int64_t i = 0; i < size; ++i) {
      src.push_back(i % 7);
      dst.push_back(i % 5);
      negative.push_back(i % 11);
      t.push_back(at);
      limit.push_back(before - i % (before + 1));
    }
  }
  EventCounts::Pairs pairs() const {
    return {src.data(), dst.data(),   nullptr, negative.data(),
            t.data(),   limit.data(), nullptr, static_cast<int64_t>(src.size()),
            1};
  }
};

template <typename T = double>
std::vector<T> answers(const EventCounts& counts, const Asking& asking) {
  std::vector<T> out(static_cast<size_t>(counts.width()) * asking.src.size() * 2);
  counts.answer(asking.pairs(), out.data());
  return out;
}

/// The same queries have bit-identical answers while events are added.
TEST(stress_counts_beside_a_writer) {
  constexpr int64_t kKnown = 1000;
  const Columns columns = made_events(8000, 50, 11);
  EventLog log;
  log.append(columns.slice(0, kKnown));
  EventCounts counts(log, every_list(), every_number());
  counts.read_upto(kKnown);
  const Asking asking(60, kKnown, columns.t[kKnown]);
  const std::vector<double> first = answers(counts, asking);
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      while (!done) wrong += answers(counts, asking) != first;
    });
  }
  for (int64_t at = kKnown; at < columns.size(); at += 100) {
    log.append(columns.slice(at, at + 100));
    counts.read_upto(at + 100);
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(wrong == 0 && counts.size() == columns.size());
  EventCounts rebuilt(log, every_list(), every_number());
  rebuilt.read_upto(columns.size());
  CHECK(answers(rebuilt, asking) == first);
}

/// Events that were in the answer before are not looked up again.
TEST(answers_of_floats_do_not_depend_on_the_one_before) {
  const Columns columns = made_events(1000, 50, 13);
  EventLog log;
  log.append(columns.slice(0, columns.size()));
  EventCounts counts(log, every_list(), every_number());
  counts.read_upto(columns.size());
  const tick_t end = columns.t.back() + 1;
  std::vector<Asking> askings{{100, 1000, end}, {100, 1000, end}, {100, 900, end}, {100, 900, end + 50}};
  askings.emplace_back(150, 900, end + 50);
  askings[1].negative = askings[0].dst;
  std::rotate(askings[4].src.begin(), askings[4].src.begin() + 40, askings[4].src.end());
  askings.push_back(askings[0]);
  for (const Asking& asking : askings) {
    EventCounts others(log, every_list(), every_number());
    others.read_upto(columns.size());
    CHECK(answers<float>(counts, asking) == answers<float>(others, asking));
  }
}

TEST(stress_counts_read_on_by_many_threads) {
  const Columns columns = made_events(4000, 50, 12);
  EventLog log;
  log.append(columns.slice(0, columns.size()));
  EventCounts counts(log, every_list(), every_number()), alone(log, every_list(), every_number());
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] {
      for (int64_t at = 100; at <= columns.size(); at += 100) counts.read_upto(at);
    });
  }
  for (std::thread& reader : readers) reader.join();
  alone.read_upto(columns.size());
  const Asking asking(100, columns.size(), columns.t.back() + 1);
  CHECK(answers(counts, asking) == answers(alone, asking));
}

}  // namespace
}  // namespace tgflow
