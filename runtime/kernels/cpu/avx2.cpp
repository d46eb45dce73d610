// The avx2 level: the shared bodies on the vectors of vector_avx2.h. This file alone is compiled with the level's
// flags.
#include "runtime/kernels/cpu/vector_avx2.h"
// the bodies come after the vectors that they are written in
#include "runtime/kernels/cpu/attend_body.h"
#include "runtime/kernels/cpu/kernel_table.h"
#include "runtime/kernels/cpu/rows_body.h"

namespace ktc::kernels {

void matmul_f32_avx2(const MatmulArgs& a) {
  multiply<MatmulTile<float>>(a, 0);
}
void matmul_bf16_avx2(const MatmulArgs& a) {
  multiply<MatmulTile<Bf16>>(a, 0);
}
void gate_up_f32_avx2(const MatmulArgs& a, std::size_t intermediate) {
  multiply<GateUpTile<float>>(a, intermediate);
}
void gate_up_bf16_avx2(const MatmulArgs& a, std::size_t intermediate) {
  multiply<GateUpTile<Bf16>>(a, intermediate);
}

void rms_norm_avx2(const float* x, const float* weight, float eps, std::size_t columns, float* out) {
  rms_norm(x, weight, eps, columns, out);
}
void rope_avx2(float* x, const float* cos, const float* sin, std::size_t dim, bool interleaved) {
  rope(x, cos, sin, dim, interleaved);
}
void add_avx2(const float* const* inputs, std::size_t count, std::size_t columns, float* out) {
  add(inputs, count, columns, out);
}

void store_f32_avx2(const float* src, std::size_t count, std::byte* dst) {
  convert(src, count, reinterpret_cast<float*>(dst));
}
void store_bf16_avx2(const float* src, std::size_t count, std::byte* dst) {
  convert(src, count, reinterpret_cast<Bf16*>(dst));
}
void load_f32_avx2(const std::byte* src, std::size_t count, float* dst) {
  convert(reinterpret_cast<const float*>(src), count, dst);
}
void load_bf16_avx2(const std::byte* src, std::size_t count, float* dst) {
  convert(reinterpret_cast<const Bf16*>(src), count, dst);
}

void attend_f32_avx2(const AttendArgs& a) {
  attend<float>(a);
}
void attend_bf16_avx2(const AttendArgs& a) {
  attend<Bf16>(a);
}
void attend_join_avx2(const AttendJoinArgs& a) {
  attend_join(a);
}

}  // namespace ktc::kernels
