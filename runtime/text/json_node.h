// A JSON value with its place, so that every complaint about tokenizer.json names file and path, found and expected.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace ktc::text {

// Parses a whole JSON text; `name` is the file that errors name. Error: data_corrupt with the byte where it stops being
// JSON.
Expected<nlohmann::json> parse_json(std::string_view text, const std::string& name);

// A short rendering of a value for messages: "\"abc\"", "an object", "3".
std::string describe(const nlohmann::json& value);

class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string file) : value_(&value), file_(std::move(file)) {}

  const nlohmann::json& value() const { return *value_; }
  std::string place() const { return path_.empty() ? file_ : file_ + ": " + path_; }
  bool is_null() const { return value_->is_null(); }

  // Member `key`; a missing one reads as null.
  JsonNode member(std::string_view key) const;
  JsonNode element(std::size_t index) const;

  // Each checks the type of this very value.
  Expected<std::string> string() const;
  Expected<bool> boolean() const;
  Expected<bool> boolean_or(bool absent) const;  // null: `absent`
  Expected<std::int64_t> integer(std::int64_t low, std::int64_t high) const;
  Status expect_object() const;
  Status expect_array() const;

  // data_corrupt unless `code` says otherwise; found is a description of this value.
  Status error(std::string expected, std::string remedy = "") const;
  Status unsupported(std::string expected) const;

 private:
  JsonNode(const nlohmann::json& value, const std::string& file, std::string path)
      : value_(&value), file_(file), path_(std::move(path)) {}
  const nlohmann::json* value_;
  std::string file_, path_;
};

}  // namespace ktc::text
