#include "test/bench/ceilings.h"

#include <immintrin.h>
#include <time.h>

#include <cstdint>

namespace ktc::bench {
namespace {

// Seconds that this thread has run: other programs on the machine do not count, as in the benchmarks' CPU time.
double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// The compiler may neither know nor drop the value. A macro, because a function would need its caller's target.
#define KTC_KEEP(value) asm volatile("" : "+v"(value))

constexpr int kChains = 12;  // covers the latency of two units
constexpr std::size_t kRounds = 1 << 16;

__attribute__((target("avx512f"))) void run_avx512() {
  __m512 sum[kChains];
  for (__m512& s : sum) s = _mm512_set1_ps(0.5f);
  __m512 factor = _mm512_set1_ps(0.999f);
  for (std::size_t i = 0; i < kRounds; ++i) {
    KTC_KEEP(factor);
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sum[c] = _mm512_fmadd_ps(sum[c], factor, factor);
  }
  for (__m512& s : sum) KTC_KEEP(s);
}

__attribute__((target("avx2,fma"))) void run_avx2() {
  __m256 sum[kChains];
  for (__m256& s : sum) s = _mm256_set1_ps(0.5f);
  __m256 factor = _mm256_set1_ps(0.999f);
  for (std::size_t i = 0; i < kRounds; ++i) {
    KTC_KEEP(factor);
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sum[c] = _mm256_fmadd_ps(sum[c], factor, factor);
  }
  for (__m256& s : sum) KTC_KEEP(s);
}

void run_scalar() {  // the baseline has vectors of four, but no fused multiply-add
  __m128 sum[kChains];
  for (__m128& s : sum) s = _mm_set1_ps(0.5f);
  __m128 factor = _mm_set1_ps(0.999f);
  for (std::size_t i = 0; i < kRounds; ++i) {
    KTC_KEEP(factor);
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sum[c] = _mm_add_ps(_mm_mul_ps(sum[c], factor), factor);
  }
  for (__m128& s : sum) KTC_KEEP(s);
}

}  // namespace

double read_bandwidth(std::span<const std::byte> memory) {
  const double start = thread_seconds();
  __m128i sum[4] = {};
  const std::byte* p = memory.data();
  std::size_t i = 0;
  for (; i + 128 <= memory.size(); i += 128)
    for (int c = 0; c < 8; ++c)
      sum[c % 4] = _mm_xor_si128(sum[c % 4], _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i) + c));
  for (__m128i& s : sum) KTC_KEEP(s);
  return static_cast<double>(i) / (thread_seconds() - start);
}

double multiply_add_rate(IsaLevel level) {
  void (*const run)() = level >= IsaLevel::avx512 ? run_avx512 : level == IsaLevel::avx2 ? run_avx2 : run_scalar;
  const double width = level >= IsaLevel::avx512 ? 16 : level == IsaLevel::avx2 ? 8 : 4;
  double best = 0;
  run();
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double start = thread_seconds();
    run();
    const double rate = 2.0 * width * kChains * kRounds / (thread_seconds() - start);
    if (rate > best) best = rate;
  }
  return best;
}

}  // namespace ktc::bench
