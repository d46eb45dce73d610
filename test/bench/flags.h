// Flags of the benchmarks of devices: words alone, and words with a number behind them.
#pragma once

#include <cerrno>  // program_invocation_short_name
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace ktc {

// word(flag): whether it is one that stands alone; number(flag, value): whether it is one with this value. False, with a line for the
// user, at the first flag that is neither.
template <typename Word, typename Number>
bool read_flags(int argc, char** argv, const Word& word, const Number& number) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (word(flag)) continue;
    if (++i < argc && number(flag, std::atof(argv[i]))) continue;
    std::fprintf(stderr, "%s: %s: an unknown flag, or a value that is missing or out of range\n", program_invocation_short_name,
                 flag.data());
    return false;
  }
  return true;
}

}  // namespace ktc
