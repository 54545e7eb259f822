// Threads whose start may fail.
#pragma once

#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace tgflow {

/// Thrown if the system starts no further thread: for lack of memory for its stack, or of allowed threads.
class NoThread : public std::bad_alloc {
 public:
  NoThread(const std::string& what_for, const std::system_error& error)
      : message_("cannot start a thread " + what_for + ": " + error.code().message() +
                 "; end other processes, or allow more memory or threads (ulimit -v, ulimit -u)") {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

/// Starts a thread "to do something"; throws NoThread.
template <typename Body>
std::thread start_thread(const std::string& what_for, Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw NoThread(what_for, error);
  }
}

}  // namespace tgflow
