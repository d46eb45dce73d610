// The products of one GPU that cuBLASLt computes (runtime/kernels/cuda/large_product.h): one for each shape of weight and kind of
// result, shared by all entries and layers, so that an op has one algorithm whatever the number of rows.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "runtime/kernels/cuda/large_product.h"

namespace ktc::exec {

class LargeProducts {
 public:
  // ordinal: of the CUDA device; most_rows: of the plan's entries.
  LargeProducts(int ordinal, std::uint32_t most_rows) : ordinal_(ordinal), most_rows_(most_rows) {}

  // For a product of an entry for prompts; null where our kernels compute it. Lives as long as this.
  const gpu::LargeProduct* find(const gpu::LinearArgs& args);

  std::size_t count() const { return products_.size(); }
  const Status& refused() const { return refused_; }  // of the first product that the library does not serve

 private:
  using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t, bool>;
  int ordinal_;
  std::uint32_t most_rows_;
  std::map<Key, std::unique_ptr<gpu::LargeProduct>> products_;
  Status refused_;
};

}  // namespace ktc::exec
