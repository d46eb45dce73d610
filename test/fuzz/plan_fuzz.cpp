// Arbitrary bytes as plan.ktp. The digest is made to fit, so that the input reaches the structure and the meaning.
// Corpus: test/golden/plans (plan.ktp files).
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "runtime/plan/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> bytes(size);
  if (size != 0) std::memcpy(bytes.data(), data, size);
  (void)ktc::plan::parse_plan(bytes, "as it is");
  if (size < 24) return 0;
  bytes.resize(size / 8 * 8);
  std::memcpy(bytes.data() + 4, "KTP1", 4);
  std::memcpy(bytes.data() + bytes.size() - 16, "KTPDIGST", 8);
  const std::uint64_t digest = ktc::plan::digest64(std::span(bytes).first(bytes.size() - 16));
  for (int i = 0; i < 8; ++i) bytes[bytes.size() - 8 + i] = static_cast<std::byte>(digest >> (8 * i));
  const auto plan = ktc::plan::parse_plan(bytes, "with a digest");
  if (!plan.ok()) return 0;
  // what was accepted is printed and written, and read again as the same
  const std::string text = ktc::plan::dump(*plan);
  (void)ktc::plan::sizes(*plan);
  const auto again = ktc::plan::parse_plan(ktc::plan::serialise_plan(*plan), "again");
  if (!again.ok() || ktc::plan::dump(*again) != text) std::abort();
  return 0;
}
