// Division by a number that is known when a kernel is launched, in place of FlashInfer's header of that purpose, which wants a newer
// CUDA toolkit than ours. Included before any of FlashInfer's headers: it takes their include guard.
//
// n / d = (t + ((n - t) >> min(l, 1))) >> max(l - 1, 0), l = ceil(log2 d), t = high word of n * m, m = ((2^l - d) << 32) / d + 1.
// The divisor 0 divides as 1 does.
#ifndef FLASHINFER_FASTDIV_CUH_
#define FLASHINFER_FASTDIV_CUH_

#include <cstdint>

#ifdef __CUDACC__
#define KTC_FASTDIV_BOTH __host__ __device__ __forceinline__
#else
#define KTC_FASTDIV_BOTH inline
#endif

namespace flashinfer {

struct uint_fastdiv {
  KTC_FASTDIV_BOTH uint_fastdiv() : uint_fastdiv(0u) {}
  KTC_FASTDIV_BOTH uint_fastdiv(std::uint32_t divisor) : d_(divisor) {
    const std::uint64_t d = divisor == 0 ? 1 : divisor;
    std::uint32_t l = 0;
    while ((std::uint64_t{1} << l) < d) ++l;
    m_ = static_cast<std::uint32_t>((((std::uint64_t{1} << l) - d) << 32) / d + 1);
    first_ = l == 0 ? 0 : 1;
    second_ = l == 0 ? 0 : l - 1;
  }
  KTC_FASTDIV_BOTH operator unsigned int() const { return d_; }
  KTC_FASTDIV_BOTH std::uint32_t divided(std::uint32_t n) const {
    const auto t = static_cast<std::uint32_t>((std::uint64_t{n} * m_) >> 32);
    return (t + ((n - t) >> first_)) >> second_;
  }
  KTC_FASTDIV_BOTH void divmod(std::uint32_t n, std::uint32_t& q, std::uint32_t& r) const {
    q = divided(n);
    r = n - q * d_;
  }

 private:
  std::uint32_t d_, m_, first_, second_;
};

KTC_FASTDIV_BOTH std::uint32_t operator/(const std::uint32_t n, const uint_fastdiv& d) { return d.divided(n); }
KTC_FASTDIV_BOTH std::uint32_t operator%(const std::uint32_t n, const uint_fastdiv& d) {
  std::uint32_t q, r;
  d.divmod(n, q, r);
  return r;
}

}  // namespace flashinfer

#endif
