#include "runtime/exec/large_products.h"

namespace ktc::exec {

const gpu::LargeProduct* LargeProducts::find(const gpu::LinearArgs& args) {
  const gpu::Weight& w = args.w;
  if (most_rows_ < gpu::kLargeProductRows || w.format != Format::bf16 || w.packing != Packing::row_major || args.activations != Format::bf16)
    return nullptr;
  if (!refused_.ok() && products_.empty()) return nullptr;  // no library: every further answer is the same
  const Key key = {w.rows, w.columns, w.row_bytes, args.out.stride, args.bias != nullptr};
  if (const auto known = products_.find(key); known != products_.end()) return known->second.get();
  gpu::LargeShape shape;
  shape.n = w.rows;
  shape.k = w.columns;
  shape.x_stride = (std::uint64_t{w.columns} + 63) / 64 * 64;  // as linear rounds its operand (gpu_operand_bytes)
  shape.w_stride = w.row_bytes / 2;
  shape.out_stride = args.out.stride;
  shape.bias = args.bias != nullptr;
  shape.most_rows = most_rows_;
  auto product = gpu::open_large_product(ordinal_, shape);
  if (!product.ok()) {
    if (refused_.ok()) refused_ = product.status();
    return nullptr;
  }
  return products_.emplace(key, std::move(product).value()).first->second.get();
}

}  // namespace ktc::exec
