// Runs all tests, or those whose names contain the argument.
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "check.hpp"

void fail_check(const char* file, int line, const char* condition) {
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + condition);
}

int main(int argc, char** argv) {
  int num_run = 0;
  int num_failed = 0;
  for (const Test& test : all_tests()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    ++num_run;
    try {
      test.body();
      std::printf("ok   %s\n", test.name);
    } catch (const std::exception& error) {
      ++num_failed;
      std::printf("FAIL %s: %s\n", test.name, error.what());
    }
  }
  std::printf("%d of %d failed\n", num_failed, num_run);
  return num_failed > 0 || num_run == 0 ? 1 : 0;
}
