#include "tgflow/epochs.hpp"

namespace tgflow {

Epochs::Reader::Reader(Epochs& epochs) : epochs_(epochs) {
  for (;;) {
    parity_ = epochs_.parity_.load();
    epochs_.readers_[parity_].count.fetch_add(1);
    if (epochs_.parity_.load() == parity_) return;
    epochs_.readers_[parity_].count.fetch_sub(1);  // the epoch ended in between
  }
}

void Epochs::collect() {
  const int old_parity = 1 - parity_.load();
  if (readers_[old_parity].count.load() != 0) return;
  for (const Piece& piece : waiting_) piece.arena->free(piece.address, piece.bytes);
  waiting_.clear();
  if (retired_.empty()) return;
  std::swap(waiting_, retired_);
  parity_.store(old_parity);  // whoever registers from here on cannot reach what waits
}

}  // namespace tgflow
