// Strict JSON for checkpoint files: duplicate keys are an error, depth and size are bounded, messages say file, line
// and column. What is in the file wins over every default, so a key that is there twice must not pass silently.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace ktc::models {

using Json = nlohmann::json;

// `name` stands for the file in messages.
Expected<Json> parse_json(std::string_view text, const std::string& name);

// Reads a whole file of at most `max_bytes`. A missing file is not_found.
Expected<std::string> read_text(const std::filesystem::path& path, std::uint64_t max_bytes);
Expected<Json> read_json(const std::filesystem::path& path, std::uint64_t max_bytes);

// A value for a message: compact, shortened, never invalid UTF-8.
std::string show(const Json& value);

// A key's value, where null is the same as absent: nullptr then, and for anything that is not an object.
const Json* find_key(const Json& object, std::string_view key);

}  // namespace ktc::models
