// Executing what a planner wrote, after checking that it is about what is asked.
#include <string>

#include "row_cache_begun.hpp"

namespace tgflow {
namespace {

std::string at_row(int64_t r, int64_t id) {
  return "row " + std::to_string(r) + " (id " + std::to_string(id) + ")";
}

}  // namespace

/// Gives each id its row in the schedule: the ids must be those of the schedule, in order of first
/// appearance.
void RowCache::match(const CacheSchedule& schedule, const int64_t* id, int64_t n, CacheLookup& out) {
  numbers_.reset(schedule.size + 1);
  out.source.assign(static_cast<std::size_t>(n), CacheLookup::kNothing);
  int32_t known = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (id[i] < 0) continue;
    const int32_t number =
        numbers_.find_or_insert(id_tag(id[i]), known, [&](int32_t r) { return schedule.id[r] == id[i]; });
    if (number == known) {
      if (known == schedule.size)
        throw ScheduleMismatch("id " + std::to_string(id[i]) + " is asked for and was not planned");
      if (schedule.id[known] != id[i]) {
        throw ScheduleMismatch("id " + std::to_string(id[i]) + " is asked for where " +
                               at_row(known, schedule.id[known]) + " was planned");
      }
      ++known;
    }
    out.source[static_cast<std::size_t>(i)] = number;
  }
  if (known < schedule.size)
    throw ScheduleMismatch(at_row(known, schedule.id[known]) + " was planned and is not asked for");
}

void RowCache::check_slots(const CacheSchedule& schedule) const {
  for (int64_t r = 0; r < schedule.size; ++r) {
    const int32_t hit = schedule.hit[r], into = schedule.admit[r];
    const bool fits =
        hit >= -1 && hit < capacity() && into >= -1 && into < capacity() && (hit < 0 || into < 0);
    if (!fits)
      throw ScheduleMismatch(at_row(r, schedule.id[r]) + " was planned for slots that there are not");
    const int32_t slot = find(schedule.id[r]);
    if (slot == hit) continue;
    throw ScheduleMismatch(at_row(r, schedule.id[r]) + " is in slot " + std::to_string(slot) + ", not in " +
                           std::to_string(hit) + " as planned");
  }
}

/// Whether gathers at work leave alone what the schedule reads and writes.
bool RowCache::may_run(const CacheSchedule& schedule) const {
  if (at_work_.empty()) return true;
  const auto valid = [&](int32_t s) { return s >= 0 && s < capacity(); };
  for (int64_t r = 0; r < schedule.size; ++r) {
    const int32_t hit = schedule.hit[r], into = schedule.admit[r];
    if (valid(into) && held_[into].used >= at_work_.front().begin) return false;
    if (valid(hit) && came_[hit] >= at_work_.front().begin) return false;
  }
  return true;
}

void RowCache::apply(const CacheSchedule& schedule, const int64_t* id, int64_t n, int64_t table_size,
                     CacheLookup& out) {
  check_ids(id, n, table_size);
  Started started(*this, n, out, [&] { return may_run(schedule); });
  try {
    match(schedule, id, n, out);
    check_slots(schedule);
  } catch (...) {
    started.give_up();
    throw;
  }
  out.puts_after = true;
  std::vector<int32_t> source(static_cast<std::size_t>(schedule.size));
  for (int64_t r = 0; r < schedule.size; ++r) {
    const int32_t hit = schedule.hit[r];
    source[static_cast<std::size_t>(r)] = hit >= 0 ? hit : CacheLookup::of_miss(out.miss.size());
    if (hit >= 0) {
      held_[hit].used = out.begin;
      continue;
    }
    out.miss.push_back(schedule.id[r]);
    out.admit.push_back(schedule.admit[r]);
  }
  for (int32_t& from : out.source) {
    if (from != CacheLookup::kNothing) from = source[static_cast<std::size_t>(from)];
  }
  put_all(out);
  const auto misses = static_cast<int64_t>(out.miss.size());
  const auto kept = misses - std::count(out.admit.begin(), out.admit.end(), CacheLookup::kNothing);
  counts_.hits += schedule.size - misses;
  counts_.misses += misses;
  counts_.bypassed += misses - kept;
  started.done();
}

/// Puts misses where they are to go; two of them into one slot is a mistake.
void RowCache::put_all(const CacheLookup& lookup) {
  for (std::size_t r = 0; r < lookup.miss.size(); ++r) {
    const int32_t s = lookup.admit[r];
    if (s == CacheLookup::kNothing) continue;
    if (came_[s] >= lookup.begin)
      throw ScheduleMismatch("two rows were planned for slot " + std::to_string(s));
    put(lookup.miss[r], s, lookup.begin + static_cast<int64_t>(r));
  }
}

}  // namespace tgflow
