// A minimal test framework: TEST bodies register themselves, CHECK reports the failed condition and its
// place.
#pragma once

#include <exception>
#include <functional>
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

/// Throws the report of a failed check; not inline, as there are hundreds of calls.
[[noreturn]] void fail_check(const char* file, int line, const char* condition);

#define CHECK(condition)                                          \
  do {                                                            \
    if (!(condition)) fail_check(__FILE__, __LINE__, #condition); \
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
