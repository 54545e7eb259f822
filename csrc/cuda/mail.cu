// One message per node of a batch: the last, or the mean.
#include "tgflow/cuda/thread_block.hpp"
#include "tgflow/cuda/warp.hpp"
#include "tgflow/detail/cosine.hpp"
#include "tgflow/detail/version_ring.hpp"

using namespace tgflow;

/// The messages to the ends of events, 2i to the source of event i and 2i + 1 to its destination;
/// tgflow/cuda/mail.py has the same fields.
struct MailColumns {
  const int64_t* src;
  const int64_t* dst;
  const int64_t* t;
  int64_t size;    ///< Messages.
  int64_t* node;   ///< [size]: receivers, ascending.
  int64_t* order;  ///< [size]: messages, ascending per receiver.
  int64_t* row;    ///< [size]: the last message to the same node.
  int64_t* row_t;  ///< [size]: time of its event.
  bool* is_last;   ///< [size]: whether it is the last one.

  /// Start of the messages to a node among the sorted ones, or their end.
  __device__ int64_t bound(int64_t of, bool is_behind) const {
    int64_t low = 0, high = size;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (node[middle] < of || (is_behind && node[middle] == of)) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

constexpr int kFewMessages = 4096;
constexpr int kMessageBits = 12;

/// One thread block: sorts a few messages by receiver.
__device__ inline void sort_messages(const MailColumns& mail) {
  __shared__ uint64_t keys[kFewMessages];
  const int first = static_cast<int>(threadIdx.x), stride = static_cast<int>(blockDim.x);
  int size = 1;
  while (size < mail.size) size *= 2;
  for (int m = first; m < size; m += stride) {
    const auto node = [&] { return static_cast<uint64_t>(m % 2 == 0 ? mail.src[m / 2] : mail.dst[m / 2]); };
    keys[m] = m < mail.size ? node() << kMessageBits | static_cast<uint64_t>(m) : ~uint64_t{0};
  }
  __syncthreads();
  sort_keys(keys, size);
  for (int m = first; m < mail.size; m += stride) {
    mail.node[m] = static_cast<int64_t>(keys[m] >> kMessageBits);
    mail.order[m] = static_cast<int64_t>(keys[m] & (kFewMessages - 1));
  }
  __syncthreads();
}

/// Per sorted message: finds the last message to the same node.
__device__ inline void find_last(const MailColumns& mail, int64_t i) {
  const int64_t last = mail.bound(mail.node[i], true) - 1, message = mail.order[last];
  mail.row[i] = message;
  mail.row_t[i] = mail.t[message / 2];
  mail.is_last[i] = last == i;
}

/// One warp per node: fills the rows of its messages, sorted, with the mean of `from`, [size, width], summed
/// in their order.
template <int kWidth>
__device__ inline void mail_mean(const MailColumns& mail, const float* from, int64_t width, float* out) {
  using Numbers = Pack<kWidth>;
  for (int64_t i = warp_index(); i < mail.size; i += warp_count()) {
    if (!mail.is_last[i]) continue;
    const int64_t begin = mail.bound(mail.node[i], false);
    const auto count = static_cast<float>(i + 1 - begin);
    for (int64_t c = lane_index() * kWidth; c < width; c += kWarp * kWidth) {
      auto sum = Numbers::filled(0);
      for (int64_t j = begin; j <= i; ++j) sum.add(1, Numbers::load(from + mail.order[j] * width, c));
      for (int w = 0; w < kWidth; ++w) sum.at[w] /= count;
      for (int64_t j = begin; j <= i; ++j) sum.store(out + j * width, c);
    }
  }
}

/// One thread block: sorts messages, at most `kFewMessages`, and finds the last ones.
extern "C" __global__ void __launch_bounds__(1024) mail_few(MailColumns mail) {
  sort_messages(mail);
  for (int64_t i = threadIdx.x; i < mail.size; i += blockDim.x) find_last(mail, i);
}

/// Per message, any number of them, already sorted: finds the last ones.
extern "C" __global__ void __launch_bounds__(256) mail_last(MailColumns mail) {
  for (int64_t i = thread_index(); i < mail.size; i += thread_count()) find_last(mail, i);
}

KERNELS_BY_WIDTH(256, mail_mean, (MailColumns mail, const float* from, int64_t width, float* out),
                 (mail, from, width, out))

/// The messages of events to their ends, in order; tgflow/cuda/mail.py has the same fields.
struct NewMail {
  const int64_t* src_row;  ///< [size / 2], `stride` apart: rows of the frontier.
  const int64_t* dst_row;
  int64_t stride;
  const int64_t* target;  ///< The input row of each of those; null: they are input rows.
  const int64_t* t;       ///< [size / 2].
  int64_t size;           ///< Messages.
  const float* memory;    ///< By input row, [., dim].
  int64_t dim;
  const int64_t* clock;  ///< By input row, [., kClockWidth].
  const float* x;        ///< [size / 2, x_dim].
  int64_t x_dim;
  float* own;            ///< [size, dim]: memory of the receiver.
  int64_t* last_update;  ///< [size].
  float* mail;           ///< [size, dim + x_dim]: memory of the other end, and features of the event.

  /// The input row of the receiver of message `m`.
  __device__ int64_t row_of(int64_t m) const {
    const int64_t* rows = m % 2 == 0 ? src_row : dst_row;  // GCC's sanitizer breaks (a ? b : c)[i]
    const int64_t row = rows[m / 2 * stride];
    return target == nullptr ? row : target[row];
  }
};

/// One warp per message.
template <int kWidth>
__device__ inline void mail_made(const NewMail& u) {
  using Numbers = Pack<kWidth>;
  const int64_t width = u.dim + u.x_dim;
  for (int64_t m = warp_index(); m < u.size; m += warp_count()) {
    const int64_t row = u.row_of(m), other = u.row_of(m ^ 1);
    for (int64_t c = lane_index() * kWidth; c < width; c += kWarp * kWidth) {
      if (c < u.dim) Numbers::load(u.memory + row * u.dim, c).store(u.own + m * u.dim, c);
      const auto sent = c < u.dim ? Numbers::load(u.memory + other * u.dim, c)
                                  : Numbers::load(u.x + m / 2 * u.x_dim, c - u.dim);
      sent.store(u.mail + m * width, c);
    }
    if (lane_index() > 0) continue;
    const int64_t* clock = u.clock + row * kClockWidth;
    u.last_update[m] = clock[kHasMail] != 0 ? clock[kMailT] : u.t[m / 2];
  }
}

KERNELS_BY_WIDTH(256, mail_made, (NewMail mail), (mail))

/// Per element: the encoding of the seconds from the last update of a row's memory to its mail. `clock` is
/// [., kClockWidth], `out` [size / width, width].
extern "C" __global__ void __launch_bounds__(256)
    mail_age(const int64_t* clock, double seconds_per_tick, const float* frequency, int64_t width,
             int64_t size, float* out) {
  for (int64_t i = thread_index(); i < size; i += thread_count()) {
    const int64_t* row = clock + i / width * kClockWidth;
    const double seconds = seconds_of(row[kMailT] - row[kLastUpdate], seconds_per_tick);
    out[i] = cosine(frequency[i % width], static_cast<float>(seconds));
  }
}
