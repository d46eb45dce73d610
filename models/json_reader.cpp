#include "models/json_reader.h"

#include <fmt/format.h>

#include <fstream>
#include <set>
#include <vector>

namespace ktc::models {
namespace {

constexpr std::size_t kMaxDepth = 64;

std::string place(const std::string& name, std::string_view text, std::size_t byte) {
  std::size_t line = 1, start = 0;
  for (std::size_t i = 0; i < std::min(byte, text.size()); ++i)
    if (text[i] == '\n') ++line, start = i + 1;
  return fmt::format("{}:{}:{}", name, line, byte - std::min(byte, start) + 1);
}

}  // namespace

Expected<Json> parse_json(std::string_view text, const std::string& name) {
  std::vector<std::set<std::string>> seen;  // keys of every open object
  Status refused;
  auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (!refused.ok()) return false;
    if (static_cast<std::size_t>(depth) > kMaxDepth)
      refused = make_error(StatusCode::data_corrupt,
                           {name, "nested too deeply", {}, fmt::format("at most {} levels", kMaxDepth), {}});
    if (event == Json::parse_event_t::object_start) seen.emplace_back();
    if (event == Json::parse_event_t::object_end && !seen.empty()) seen.pop_back();
    if (event == Json::parse_event_t::key && !seen.empty()) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!seen.back().insert(key).second)
        refused = make_error(StatusCode::data_corrupt,
                             {name, "duplicate key", show(parsed), "every key once", "remove one of the two"});
    }
    return refused.ok();
  };
  try {
    Json json = Json::parse(text, watch);
    if (!refused.ok()) return refused;
    return json;
  } catch (const Json::parse_error& e) {
    if (!refused.ok()) return refused;
    std::string what = e.what();  // "[json.exception...] parse error at line 1, column 5: REASON"
    if (const std::size_t reason = what.find(": "); reason != std::string::npos) what.erase(0, reason + 2);
    if (what.size() > 200) what.resize(200);
    return make_error(StatusCode::data_corrupt,
                      {place(name, text, e.byte > 0 ? e.byte - 1 : 0), "not valid JSON: " + what, {}, {}, {}});
  } catch (const std::exception& e) {
    if (!refused.ok()) return refused;
    return make_error(StatusCode::data_corrupt, {name, "not valid JSON: " + std::string(e.what()), {}, {}, {}});
  }
}

Expected<std::string> read_text(const std::filesystem::path& path, std::uint64_t max_bytes) {
  std::error_code failure;
  if (!std::filesystem::exists(path, failure))
    return make_error(StatusCode::not_found, {path.string(), "no such file", {}, {}, {}});
  const bool regular = std::filesystem::is_regular_file(path, failure);
  const std::uint64_t size = regular ? std::filesystem::file_size(path, failure) : 0;
  if (!regular || failure) return make_error(StatusCode::io_error, {path.string(), "cannot be read", {}, "a file", {}});
  if (size > max_bytes)
    return make_error(
        StatusCode::data_corrupt,
        {path.string(), "file too large", fmt::format("{} bytes", size), fmt::format("at most {}", max_bytes), {}});
  std::string text(static_cast<std::size_t>(size), '\0');
  std::ifstream stream(path, std::ios::binary);
  if (!stream.read(text.data(), static_cast<std::streamsize>(size)))
    return make_error(StatusCode::io_error, {path.string(), "cannot be read", {}, {}, {}});
  return text;
}

Expected<Json> read_json(const std::filesystem::path& path, std::uint64_t max_bytes) {
  KTC_ASSIGN_OR_RETURN(std::string text, read_text(path, max_bytes));
  return parse_json(text, path.string());
}

std::string show(const Json& value) {
  constexpr std::size_t kLongest = 80;
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

const Json* find_key(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(std::string(key));
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

}  // namespace ktc::models
