#include "tools/ktc/run_interrupt.h"

#include <csignal>

namespace ktc::run {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may store to it");

struct sigaction previous;

void on_interrupt(int) {
  interrupted.store(true, std::memory_order_relaxed);
}

}  // namespace

Interrupt::Interrupt() {
  interrupted = false;
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // without SA_RESTART: a pending read of standard input ends too
  sigaction(SIGINT, &action, &previous);
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &previous, nullptr);
}

const std::atomic<bool>& Interrupt::flag() const {
  return interrupted;
}

void ignore_broken_pipes() {
  std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace ktc::run
