// One message for each node of a batch: the last, or the mean.
#include "tgflow/cuda/mail.hpp"

using namespace tgflow;

/// One thread block: sorts messages, at most `kFewMessages`, and finds the last ones.
extern "C" __global__ void __launch_bounds__(1024) mail_few(MailColumns mail) {
  sort_messages(mail);
  for (int64_t i = threadIdx.x; i < mail.size; i += blockDim.x) find_last(mail, i);
}

/// Per message, any number of them, sorted before: finds the last ones.
extern "C" __global__ void __launch_bounds__(256) mail_last(MailColumns mail) {
  const int64_t step = gridDim.x * static_cast<int64_t>(blockDim.x);
  for (int64_t i = thread_index(); i < mail.size; i += step) find_last(mail, i);
}

extern "C" __global__ void __launch_bounds__(256)
    mail_mean_by_4(MailColumns mail, const float* from, int64_t width, float* out) {
  mean_messages<4>(mail, from, width, out);
}
extern "C" __global__ void __launch_bounds__(256)
    mail_mean_by_1(MailColumns mail, const float* from, int64_t width, float* out) {
  mean_messages<1>(mail, from, width, out);
}
