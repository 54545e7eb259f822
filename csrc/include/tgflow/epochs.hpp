// Epoch-based reclamation of memory that readers may still use. Neither side waits for the other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tgflow {

/// Reclaims memory: a piece is identified by a number and a size.
class Reclaimer {
 public:
  virtual void reclaim(uint64_t piece, uint64_t size) noexcept = 0;

 protected:
  ~Reclaimer() = default;
};

/// Two-parity read-copy-update: readers register in the current epoch; a piece that a writer retires is
/// reused once every reader that was registered when it was unlinked has left.
class Epochs {
 public:
  /// Keeps reachable memory alive. Thread-safe.
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

  /// Reserves space for that many more retired pieces: `retire` then cannot fail. The writer's thread only.
  void expect(size_t num_pieces);
  /// Retires a piece that no new reader can reach. The writer's thread only.
  void retire(Reclaimer& owner, uint64_t piece, uint64_t size) { retire({&owner, piece, size}); }
  void retire(const Piece& piece) { retired_.push_back(piece); }
  /// Reclaims pieces without readers, and starts a new epoch where possible. The writer's thread
  /// only.
  void collect();
  /// Reclaims everything retired, if there is no reader.
  void drain();
  /// Waits until every currently registered reader has left. The writer's thread only, not from a reader.
  void wait_for_readers();
  /// Retired pieces not yet reclaimed.
  size_t num_retired() const { return retired_.size() + waiting_.size(); }

 private:
  /// Reclaims waiting pieces and starts a new epoch, unless a reader of the previous one remains.
  bool turn();

  struct alignas(64) Count {
    std::atomic<int64_t> count{0};
  };

  std::atomic<int> parity_{0};
  Count readers_[2];
  std::vector<Piece> retired_;  // in this epoch
  std::vector<Piece> waiting_;  // for the readers of the previous epoch
};

}  // namespace tgflow
