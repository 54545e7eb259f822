#include "tgflow/epochs.hpp"

#include <algorithm>
#include <thread>

namespace tgflow {
namespace {

constexpr size_t kKept = 64 << 10;  // pieces with capacity always kept

}  // namespace

Epochs::Reader::Reader(Epochs& epochs) : epochs_(epochs) {
  for (;;) {
    parity_ = epochs_.parity_.load();
    epochs_.readers_[parity_].count.fetch_add(1);
    if (epochs_.parity_.load() == parity_) return;
    epochs_.readers_[parity_].count.fetch_sub(1);  // the epoch ended in between
  }
}

void Epochs::expect(size_t num_pieces) {
  const size_t wanted = retired_.size() + num_pieces;
  const bool has_far_too_much = retired_.capacity() > kKept && 8 * wanted < retired_.capacity();
  if (has_far_too_much && retired_.empty()) std::vector<Piece>().swap(retired_);
  if (retired_.capacity() < wanted) retired_.reserve(std::max(wanted, 2 * retired_.capacity()));
}

bool Epochs::turn() {
  const int old_parity = 1 - parity_.load();
  if (readers_[old_parity].count.load() != 0) return false;
  for (const Piece& piece : waiting_) piece.owner->reclaim(piece.piece, piece.size);
  waiting_.clear();
  std::swap(waiting_, retired_);
  parity_.store(old_parity);  // readers that register from here on cannot reach waiting pieces
  return true;
}

void Epochs::collect() {
  if (num_retired() != 0) turn();
}

void Epochs::drain() {
  for (int turns = 0; turns < 2; ++turns) collect();  // pieces retired in this epoch wait for one more
}

void Epochs::wait_for_readers() {
  for (int turns = 0; turns < 2; turns += turn()) std::this_thread::yield();
}

}  // namespace tgflow
