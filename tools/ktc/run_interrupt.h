// Ctrl-C as a flag, while one of these lives: the first ends the generation, a second one ends the program.
#pragma once

#include <atomic>

namespace ktc::run {

class Interrupt {
 public:
  Interrupt();   // clears the flag; one object at a time
  ~Interrupt();  // restores what SIGINT did before
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  const std::atomic<bool>& flag() const;
};

// A closed standard output shall be an error of write, not a signal.
void ignore_broken_pipes();

}  // namespace ktc::run
