#include "test/kernels_cuda/simulator/simulator.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace simulator {

Index thread_index, block_index;
dim3 block_size, grid_size;
std::byte* dynamic_shared = nullptr;

namespace {

constexpr std::size_t kStack = 512 * 1024;
constexpr unsigned kMostWarps = 32;

struct Fiber {
  void* stack_pointer = nullptr;
  std::byte* stack = nullptr;
  bool done = false;
};
// Opens when all that still run have arrived.
struct Barrier {
  unsigned expected = 0, arrived = 0;
  std::uint64_t opened = 0;
};
struct Fragment {
  std::uint32_t a[4], b[2];
};

std::mutex one_grid;
std::vector<Fiber> fibers;
unsigned current = 0, running = 0;
void* scheduler_stack = nullptr;
Barrier block_barrier, warp_barriers[kMostWarps];
std::uint64_t slots[kMostWarps][32];
Fragment fragments[kMostWarps][32];
void (*kernel_body)(void*) = nullptr;
void* kernel_context = nullptr;

// Saves what the calling convention asks to keep, and continues elsewhere.
extern "C" void simulator_switch(void** save, void* to);
asm(R"(
.globl simulator_switch
simulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

void yield() { simulator_switch(&fibers[current].stack_pointer, scheduler_stack); }

void open_when_full(Barrier& barrier) {
  if (barrier.expected == 0 || barrier.arrived < barrier.expected) return;
  barrier.arrived = 0;
  ++barrier.opened;
}
void arrive(Barrier& barrier) {
  const std::uint64_t before = barrier.opened;
  ++barrier.arrived;
  open_when_full(barrier);
  while (barrier.opened == before) yield();
}
void leave(Barrier& barrier) {
  --barrier.expected;
  open_when_full(barrier);
}

void fiber_main() {
  kernel_body(kernel_context);
  fibers[current].done = true;
  --running;
  leave(block_barrier);
  leave(warp_barriers[current / 32]);
  while (true) yield();
}

float low(std::uint32_t pair) { return __uint_as_float(pair << 16); }
float high(std::uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
std::byte* address(std::uint32_t at) { return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(at)); }

}  // namespace

void sync_block() { arrive(block_barrier); }
void sync_warp() { arrive(warp_barriers[thread_index.x / 32]); }
unsigned lane() { return thread_index.x % 32; }
std::uint64_t* warp_slots() { return slots[thread_index.x / 32]; }

void copy16(std::uint32_t to, const void* from, bool there) {
  if (to % 16 != 0 || reinterpret_cast<std::uintptr_t>(from) % 16 != 0) __builtin_trap();
  if (there) std::memcpy(address(to), from, 16);
  else std::memset(address(to), 0, 16);
}

void load_matrix(std::uint32_t (&r)[4], std::uint32_t from, bool turned) {
  std::uint32_t rows[32];
  gather(from, rows);
  const unsigned l = lane();
  if (from % 16 != 0) __builtin_trap();
  for (unsigned m = 0; m < 4; ++m) {
    if (!turned) {
      std::memcpy(&r[m], address(rows[m * 8 + l / 4]) + l % 4 * 4, 4);
    } else {
      std::uint16_t pair[2];
      for (unsigned i = 0; i < 2; ++i) std::memcpy(&pair[i], address(rows[m * 8 + l % 4 * 2 + i]) + l / 4 * 2, 2);
      r[m] = pair[0] | static_cast<std::uint32_t>(pair[1]) << 16;
    }
  }
  sync_warp();
}

void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  Fragment* all = fragments[thread_index.x / 32];
  const unsigned l = lane();
  std::copy_n(a, 4, all[l].a);
  all[l].b[0] = b0;
  all[l].b[1] = b1;
  sync_warp();
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = l / 4 + i / 2 * 8, column = l % 4 * 2 + i % 2;
    float sum = 0;
    for (unsigned k = 0; k < 16; ++k) {
      const std::uint32_t x = all[row % 8 * 4 + k % 8 / 2].a[k / 8 * 2 + row / 8], y = all[column * 4 + k % 8 / 2].b[k / 8];
      sum += k % 2 == 0 ? low(x) * low(y) : high(x) * high(y);
    }
    c[i] += sum;
  }
  sync_warp();
}

void multiply_groups(float (&c)[16][4], std::uint64_t a, std::uint64_t b) {
  // Two neighbours of a row: rows of 128 bytes, bits 4 to 6 of an address exchanged by bits 7 to 9.
  const auto pair = [](std::uint64_t operand, unsigned row, unsigned k) {
    const std::uint64_t at = operand * 16 + row * 128 + k * 2;
    std::uint32_t both;
    std::memcpy(&both, address(static_cast<std::uint32_t>(at ^ ((at >> 7 & 7) << 4))), 4);
    return both;
  };
  const unsigned row = thread_index.x / 32 % 4 * 16 + lane() / 4, column = lane() % 4 * 2;
  for (unsigned j = 0; j < 16; ++j)
    for (unsigned i = 0; i < 4; ++i) {
      float sum = 0;
      for (unsigned k = 0; k < 16; k += 2) {
        const std::uint32_t x = pair(a, row + i / 2 * 8, k), y = pair(b, j * 8 + column + i % 2, k);
        sum += low(x) * low(y) + high(x) * high(y);
      }
      c[j][i] += sum;
    }
}

void run(dim3 grid, unsigned threads, std::size_t shared, void (*body)(void*), void* context) {
  std::lock_guard lock(one_grid);
  if (dynamic_shared == nullptr)
    dynamic_shared = static_cast<std::byte*>(
        mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0));
  if (shared > kMostShared || threads > 32 * kMostWarps) __builtin_trap();
  while (fibers.size() < threads)
    fibers.push_back({nullptr, static_cast<std::byte*>(mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)), false});
  block_size = dim3(threads);
  grid_size = grid;
  kernel_body = body;
  kernel_context = context;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        std::memset(dynamic_shared, 0xff, shared);
        block_index = {x, y, z};
        block_barrier = {threads, 0, 0};
        for (unsigned w = 0; w * 32 < threads; ++w) warp_barriers[w] = {std::min(32u, threads - w * 32), 0, 0};
        running = threads;
        for (unsigned t = 0; t < threads; ++t) {
          auto** top = reinterpret_cast<void**>(fibers[t].stack + kStack - 64);
          *--top = nullptr;  // where fiber_main would return to; leaves its stack aligned as after a call
          *--top = reinterpret_cast<void*>(&fiber_main);
          for (int i = 0; i < 6; ++i) *--top = nullptr;
          fibers[t].stack_pointer = top;
          fibers[t].done = false;
        }
        while (running > 0)
          for (unsigned t = 0; t < threads; ++t) {
            if (fibers[t].done) continue;
            current = t;
            thread_index = {t, 0, 0};
            simulator_switch(&scheduler_stack, fibers[t].stack_pointer);
          }
      }
}

}  // namespace simulator
