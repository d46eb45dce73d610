// Text of a plan's parts, private to runtime/plan. Works on plans that were not verified, too: an index that leads
// nowhere is printed as it is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/plan/plan.h"

namespace ktc::plan::detail {

std::string quote(std::string_view text);  // in quotes; control characters, quotes and backslashes escaped
std::string type_text(std::uint8_t format, std::uint16_t group, std::uint8_t packing);  // "int4/64", "int8/row", "bf16"
std::string float_text(float value);       // shortest text that reads back to the same value
bool natural_less(std::string_view a, std::string_view b);  // layers.2 before layers.10

std::string slots_text(const std::vector<std::int32_t>& slots);  // "[0-3:0, 9:4]": experts and their matrices
// `EmbedOp w="embed"`: the op and its attributes, weights and caches by name.
std::string op_text(const planfb::PlanT& plan, const planfb::OpUnion& op);

}  // namespace ktc::plan::detail
