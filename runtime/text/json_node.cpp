#include "runtime/text/json_node.h"

#include <fmt/format.h>

namespace ktc::text {
namespace {
const nlohmann::json kNull;
}

Expected<nlohmann::json> parse_json(std::string_view text, const std::string& name) {
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::parse_error& e) {
    std::string_view why = e.what();
    if (const std::size_t colon = why.find(": "); colon != std::string_view::npos) why.remove_prefix(colon + 2);
    return make_error(StatusCode::data_corrupt, {.place = fmt::format("{}: byte {}", name, e.byte),
                                                 .what = "not JSON",
                                                 .found = std::string(why.substr(0, 200)),
                                                 .remedy = "download the file again"});
  } catch (const std::exception& e) {
    return make_error(StatusCode::data_corrupt, {.place = name, .what = "not JSON", .found = e.what()});
  }
}

std::string describe(const nlohmann::json& value) {
  switch (value.type()) {
    case nlohmann::json::value_t::null: return "nothing";
    case nlohmann::json::value_t::object: return "an object";
    case nlohmann::json::value_t::array: return "an array";
    case nlohmann::json::value_t::string: {
      const auto& s = value.get_ref<const std::string&>();
      if (s.size() <= 60) return '"' + s + '"';
      std::size_t cut = 57;
      while (cut > 0 && (static_cast<unsigned char>(s[cut]) & 0xC0) == 0x80) --cut;
      return '"' + s.substr(0, cut) + "...\"";
    }
    default: return value.dump();
  }
}

JsonNode JsonNode::member(std::string_view key) const {
  std::string path = path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  if (value_->is_object()) {
    const auto it = value_->find(std::string(key));
    if (it != value_->end()) return JsonNode(*it, file_, std::move(path));
  }
  return JsonNode(kNull, file_, std::move(path));
}

JsonNode JsonNode::element(std::size_t index) const {
  return JsonNode((*value_)[index], file_, fmt::format("{}[{}]", path_, index));
}

Expected<std::string> JsonNode::string() const {
  if (!value_->is_string()) return error("a string");
  return value_->get<std::string>();
}

Expected<bool> JsonNode::boolean() const {
  if (!value_->is_boolean()) return error("true or false");
  return value_->get<bool>();
}

Expected<bool> JsonNode::boolean_or(bool absent) const {
  if (is_null()) return absent;
  return boolean();
}

Expected<std::int64_t> JsonNode::integer(std::int64_t low, std::int64_t high) const {
  const std::string expected = fmt::format("an integer of {}..{}", low, high);
  if (!value_->is_number_integer()) return error(expected);
  if (value_->is_number_unsigned() && value_->get<std::uint64_t>() > static_cast<std::uint64_t>(high))
    return error(expected);
  const auto n = value_->get<std::int64_t>();
  if (n < low || n > high) return error(expected);
  return n;
}

Status JsonNode::expect_object() const {
  return value_->is_object() ? Status() : error("an object");
}
Status JsonNode::expect_array() const {
  return value_->is_array() ? Status() : error("an array");
}

Status JsonNode::error(std::string expected, std::string remedy) const {
  return make_error(
      StatusCode::data_corrupt,
      {.place = place(), .found = describe(*value_), .expected = std::move(expected), .remedy = std::move(remedy)});
}

Status JsonNode::unsupported(std::string expected) const {
  return make_error(StatusCode::unsupported,
                    {.place = place(), .found = describe(*value_), .expected = std::move(expected)});
}

}  // namespace ktc::text
