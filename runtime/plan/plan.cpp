// plan.ktp as bytes: footer, digest, identifier, structure; and back.
#include "runtime/plan/plan.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstring>

#include "runtime/plan/bounds.h"

namespace ktc::plan {
namespace {

constexpr std::string_view kFooterMagic = "KTPDIGST";
constexpr std::string_view kIdentifier = "KTP1";
constexpr const char* kCompileAgain = "compile the plan again, or copy it again if the copy was cut short";

std::uint64_t load_le64(const std::byte* p) {
  std::uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<std::uint64_t>(p[i]);
  return value;
}

// Four bytes that may be anything, as text for a message.
std::string quoted(const std::byte* p, std::size_t count) {
  std::string text = "\"";
  for (std::size_t i = 0; i < count; ++i) {
    const auto c = static_cast<unsigned char>(p[i]);
    if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\')
      text += static_cast<char>(c);
    else
      text += fmt::format("\\x{:02x}", c);
  }
  return text + "\"";
}

Status check_identifier(std::span<const std::byte> bytes, std::string_view place) {
  const std::byte* identifier = bytes.data() + 4;
  if (std::memcmp(identifier, kIdentifier.data(), 4) == 0) return {};
  const std::string found = quoted(identifier, 4), expected = fmt::format("\"{}\"", kIdentifier);
  if (std::memcmp(identifier, "KTP", 3) == 0)
    return make_error(StatusCode::incompatible, {std::string(place), "plan of another version", found, expected,
                                                 "compile the model again with this ktc"});
  return make_error(StatusCode::data_corrupt, {std::string(place), "not a plan: identifier", found, expected,
                                               "name the folder that ktc compile wrote"});
}

Status check_footer(std::span<const std::byte> bytes, std::string_view place) {
  const std::byte* footer = bytes.data() + bytes.size() - kFooterBytes;
  if (std::memcmp(footer, kFooterMagic.data(), kFooterMagic.size()) != 0)
    return make_error(StatusCode::data_corrupt,
                      {std::string(place), "no footer", quoted(footer, 8),
                       fmt::format("\"{}\" 16 bytes before the end", kFooterMagic), kCompileAgain});
  const std::uint64_t found = digest64(bytes.first(bytes.size() - kFooterBytes)), expected = load_le64(footer + 8);
  if (found != expected)
    return make_error(StatusCode::data_corrupt,
                      {std::string(place), "the bytes do not match their digest", fmt::format("{:016x}", found),
                       fmt::format("{:016x}", expected), kCompileAgain});
  if (bytes.size() % 8 != 0)
    return make_error(StatusCode::data_corrupt, {std::string(place), "length", fmt::format("{} bytes", bytes.size()),
                                                 "a multiple of 8", kCompileAgain});
  return {};
}

}  // namespace

std::uint64_t digest64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

Status check_head(std::span<const std::byte> bytes, std::string_view name) {
  if (bytes.size() < kSmallestPlan)
    return make_error(StatusCode::data_corrupt,
                      {std::string(name), "too short for a plan", fmt::format("{} bytes", bytes.size()),
                       fmt::format("at least {}", kSmallestPlan), kCompileAgain});
  return check_identifier(bytes, name);
}

Expected<planfb::PlanT> parse_plan(std::span<const std::byte> bytes, std::string_view name) {
  KTC_RETURN_IF_ERROR(check_head(bytes, name));
  if (bytes.size() > kMaxPlanBytes)
    return make_error(StatusCode::unsupported,
                      {std::string(name), "too long for a plan", fmt::format("{} bytes", bytes.size()),
                       fmt::format("at most {}", kMaxPlanBytes), kCompileAgain});
  KTC_RETURN_IF_ERROR(check_footer(bytes, name));

  // FlatBuffers reads its scalars in place; a caller's bytes may start anywhere.
  std::vector<std::uint64_t> aligned;
  std::span<const std::byte> body = bytes.first(bytes.size() - kFooterBytes);
  if (reinterpret_cast<std::uintptr_t>(body.data()) % 8 != 0) {
    aligned.resize(body.size() / 8);
    std::memcpy(aligned.data(), body.data(), body.size());
    body = std::as_bytes(std::span(aligned));
  }
  if (!structure_is_sound(body))
    return make_error(StatusCode::data_corrupt,
                      {std::string(name), "structure", "offsets or lengths that leave the file or repeat each other",
                       "a FlatBuffer of schema plan.fbs", kCompileAgain});
  const planfb::Plan* root = planfb::GetPlan(body.data());
  if ((root->required_features() & ~kKnownFeatures) != 0)
    return make_error(StatusCode::incompatible,
                      {std::string(name), "required_features", fmt::format("bits {:#x}", root->required_features()),
                       fmt::format("none outside {:#x}", kKnownFeatures),
                       "use the ktc that compiled it, or compile the model again with this one"});
  planfb::PlanT plan;
  root->UnPackTo(&plan);
  KTC_RETURN_IF_ERROR(verify_plan(plan).with_context(name));
  return plan;
}

std::vector<std::byte> serialise_plan(const planfb::PlanT& plan) {
  flatbuffers::FlatBufferBuilder builder(1 << 16);
  planfb::FinishPlanBuffer(builder, planfb::Plan::Pack(builder, &plan));
  const std::size_t body = builder.GetSize(), padded = (body + 7) / 8 * 8;
  std::vector<std::byte> bytes(padded + kFooterBytes);
  std::memcpy(bytes.data(), builder.GetBufferPointer(), body);
  const std::uint64_t digest = digest64(std::span(bytes).first(padded));
  std::memcpy(bytes.data() + padded, kFooterMagic.data(), kFooterMagic.size());
  for (int i = 0; i < 8; ++i) bytes[padded + 8 + i] = static_cast<std::byte>(digest >> (8 * i));
  return bytes;
}

}  // namespace ktc::plan
