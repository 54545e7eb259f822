// As little of a test framework as will do: TEST bodies register themselves, CHECK says what failed and
// where.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& all_tests() {
  static std::vector<Test> tests;
  return tests;
}

struct Registration {
  Registration(const char* name, void (*body)()) { all_tests().push_back({name, body}); }
};

#define TEST(name)                                            \
  static void name();                                         \
  static const Registration registration_##name(#name, name); \
  static void name()

#define CHECK(condition)                                                                                  \
  do {                                                                                                    \
    if (!(condition)) {                                                                                   \
      throw std::runtime_error(std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": " #condition); \
    }                                                                                                     \
  } while (false)

/// The message of the exception that `body` throws, or "" if it throws none.
inline std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}
