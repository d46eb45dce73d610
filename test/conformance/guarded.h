// Arrays between two inaccessible pages: an access outside ends the test at once, reads included.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "runtime/formats/formats.h"

namespace ktc::kernels {

// Where an array touches its guard page: the other side has slack, so both placements are tried.
enum class Edge { front, back };

template <typename T>
class Guarded {
 public:
  explicit Guarded(std::size_t count, Edge edge = Edge::back) : count_(count) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t inner = (count * sizeof(T) + page - 1) / page * page;
    bytes_ = inner + 2 * page;
    base_ = static_cast<std::byte*>(mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (inner != 0) mprotect(base_ + page, inner, PROT_READ | PROT_WRITE);
    data_ = reinterpret_cast<T*>(base_ + page + (edge == Edge::back ? inner - count * sizeof(T) : 0));
  }
  ~Guarded() { munmap(base_, bytes_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return count_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + count_; }

 private:
  std::size_t count_, bytes_;
  std::byte* base_;
  T* data_;
};

// Elements of a format in a guarded array: set and read as float.
class Elements {
 public:
  Elements(Format format, std::size_t count, Edge edge = Edge::back)
      : f32_(format == Format::f32), bytes_(count * width(), edge) {}
  std::size_t width() const { return f32_ ? 4 : 2; }
  std::byte* data() { return bytes_.data(); }
  // Stores the nearest value of the format and returns it.
  float set(std::size_t i, float value) {
    if (f32_) {
      std::memcpy(data() + 4 * i, &value, 4);
      return value;
    }
    const std::uint16_t bits = f32_to_bf16(value);
    std::memcpy(data() + 2 * i, &bits, 2);
    return bf16_to_f32(bits);
  }
  float get(std::size_t i) const {
    if (f32_) {
      float value;
      std::memcpy(&value, bytes_.data() + 4 * i, 4);
      return value;
    }
    std::uint16_t bits;
    std::memcpy(&bits, bytes_.data() + 2 * i, 2);
    return bf16_to_f32(bits);
  }

 private:
  bool f32_;
  Guarded<std::byte> bytes_;
};

inline std::uint32_t bits_of(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}

}  // namespace ktc::kernels
