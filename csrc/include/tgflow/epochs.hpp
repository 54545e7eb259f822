// When may memory that readers could still be looking at be reused? Neither side ever waits for the other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tgflow {

/// Whoever takes memory back: a piece is known to it by a number and a size.
class Reclaimer {
 public:
  virtual void reclaim(uint64_t piece, uint64_t size) noexcept = 0;

 protected:
  ~Reclaimer() = default;
};

/// Two-parity read-copy-update: readers register in the current epoch; what a writer retires is reused once
/// every reader that was registered when it was unlinked has left.
class Epochs {
 public:
  /// Keeps what the reader can reach alive. Any number of threads.
  class Reader {
   public:
    explicit Reader(Epochs& epochs);
    ~Reader() { epochs_.readers_[parity_].count.fetch_sub(1); }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

   private:
    Epochs& epochs_;
    int parity_;
  };

  struct Piece {
    Reclaimer* owner;
    uint64_t piece;
    uint64_t size;
  };

  /// Makes room for that many more retired pieces: `retire` then cannot fail. The writer's thread only.
  void expect(size_t num_pieces);
  /// Hands over a piece that no new reader can reach. The writer's thread only.
  void retire(Reclaimer& owner, uint64_t piece, uint64_t size) { retire({&owner, piece, size}); }
  void retire(const Piece& piece) { retired_.push_back(piece); }
  /// Gives back what no reader can hold any more, and starts a new epoch where possible. The writer's thread
  /// only.
  void collect();
  /// Gives everything retired back, where no reader is about.
  void drain();
  /// Waits until every reader that is registered now has left. The writer's thread only; no reader's.
  void wait_for_readers();
  /// Retired pieces not yet given back.
  size_t num_retired() const { return retired_.size() + waiting_.size(); }

 private:
  /// Gives back what waits and starts a new epoch, unless a reader of the one before is still there.
  bool turn();

  struct alignas(64) Count {
    std::atomic<int64_t> count{0};
  };

  std::atomic<int> parity_{0};
  Count readers_[2];
  std::vector<Piece> retired_;  // in this epoch
  std::vector<Piece> waiting_;  // for the readers of the one before
};

}  // namespace tgflow
