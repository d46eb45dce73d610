// A strict reader for the project's YAML files (family declarations, policies, targets). Everything that plain YAML
// lets slip by is an error with file:line:column: duplicate keys, unknown keys, values of the wrong kind, aliases and
// tags, a second document. Numbers and booleans are what they look like: `true` and `false` only, no octal, quotes make
// a string.
//
// Limits against hostile input: 1 MiB of text, 64 levels, 100,000 nodes; no anchors or aliases, so nothing can expand.
// Threading: a parsed document is immutable; nodes are handles that keep it alive and may be copied between threads.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/base/status.h"

namespace ktc::yaml {

struct Position {
  std::string file;  // the name given to parse
  int line = 0;      // from 1
  int column = 0;    // from 1
};
std::string to_string(const Position& position);  // "policy.yaml:7:12"

enum class Kind : std::uint8_t { null, scalar, sequence, map };
std::string_view to_string(Kind kind);  // "nothing", "a single value", "a list", "a map"

struct Document;
class Map;
struct Entry;

// One value of the document. Every accessor states what it wants; a mismatch is an error with place, found and
// expected.
class Node {
 public:
  Node() = default;

  Kind kind() const;
  bool is_scalar() const { return kind() == Kind::scalar; }
  bool is_sequence() const { return kind() == Kind::sequence; }
  bool is_map() const { return kind() == Kind::map; }
  // A scalar without quotes: only such a value can be a number or a boolean.
  bool is_plain() const;

  Position position() const;
  // Where the value stands in the tree: "rules[2].place.device"; empty at the root.
  std::string path() const;
  // A diagnostic about this value: "policy.yaml:4:11: rules[2].place.device: WHAT: found FOUND, expected EXPECTED;
  // REMEDY". An empty `found` is filled with the value itself (shortened) or its kind.
  Status error(std::string_view what, std::string_view expected, std::string_view remedy = {},
               std::string_view found = {}, StatusCode code = StatusCode::invalid_argument) const;

  Expected<std::string> string() const;  // any scalar, quoted or not; not empty-valued (null)
  Expected<bool> boolean() const;        // true, false
  Expected<std::int64_t> integer(std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                                 std::int64_t most = std::numeric_limits<std::int64_t>::max()) const;
  Expected<double> number() const;        // finite; 1, 1.5, 1e-6
  Expected<std::uint64_t> bytes() const;  // "24GiB", "512MiB", "1.5TiB", "64KiB", "100B": the unit is required
  Expected<double> percent() const;       // "10%", "12.5%" -> 0.1, 0.125; 0..100 %
  Expected<std::vector<Node>> sequence() const;
  // A map whose keys are the caller's (`keys` is everything allowed): an unknown key is an error that lists them and
  // suggests the nearest.
  Expected<Map> map(std::initializer_list<std::string_view> keys) const;
  Expected<Map> map(const std::vector<std::string>& keys) const;
  // A map whose keys are data: entries in the order of the file.
  Expected<std::vector<Entry>> entries() const;

  // One of a closed list of words.
  template <typename T>
  Expected<T> choice(std::initializer_list<std::pair<std::string_view, T>> words) const {
    std::vector<std::string> names;
    auto text = string();
    for (const auto& [name, value] : words) {
      if (text.ok() && *text == name) return value;
      names.emplace_back(name);
    }
    return not_one_of(names);
  }

 private:
  friend struct Document;
  friend class Map;
  friend Expected<Node> parse(std::string_view text, std::string_view name);
  Node(std::shared_ptr<const Document> document, std::uint32_t index) : document_(std::move(document)), index_(index) {}
  Status not_one_of(const std::vector<std::string>& names) const;
  Status wrong_kind(std::string_view expected) const { return error({}, expected); }

  std::shared_ptr<const Document> document_;  // null: a default-constructed Node, which has kind null
  std::uint32_t index_ = 0;
};

struct Entry {
  std::string key;
  Position position;  // of the key
  Node value;
};

// A map with known keys. `read` leaves its target alone when the key is absent; `require` makes absence an error.
class Map {
 public:
  bool has(std::string_view key) const;
  Node operator[](std::string_view key) const;  // a null Node when absent
  Expected<Node> require(std::string_view key) const;
  const Node& node() const { return node_; }  // the map itself, for errors about it as a whole

  template <typename T>
  Status read(std::string_view key, T* target) const {
    return has(key) ? assign((*this)[key], target) : Status();
  }
  template <typename T>
  Status require(std::string_view key, T* target) const {
    KTC_ASSIGN_OR_RETURN(Node value, require(key));
    return assign(value, target);
  }

 private:
  friend class Node;
  explicit Map(Node node) : node_(std::move(node)) {}

  template <typename T>
  static Status assign(const Node& value, T* target) {
    if constexpr (std::is_same_v<T, std::string>) {
      KTC_ASSIGN_OR_RETURN(*target, value.string());
    } else if constexpr (std::is_same_v<T, bool>) {
      KTC_ASSIGN_OR_RETURN(*target, value.boolean());
    } else if constexpr (std::is_floating_point_v<T>) {
      KTC_ASSIGN_OR_RETURN(double number, value.number());
      *target = static_cast<T>(number);
    } else if constexpr (std::is_integral_v<T>) {
      constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<T>::max());
      constexpr auto kSigned = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
      KTC_ASSIGN_OR_RETURN(std::int64_t number,
                           value.integer(static_cast<std::int64_t>(std::numeric_limits<T>::min()),
                                         static_cast<std::int64_t>(kMost < kSigned ? kMost : kSigned)));
      *target = static_cast<T>(number);
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      KTC_ASSIGN_OR_RETURN(std::vector<Node> items, value.sequence());
      T strings;
      for (const Node& item : items) {
        KTC_ASSIGN_OR_RETURN(std::string text, item.string());
        strings.push_back(std::move(text));
      }
      *target = std::move(strings);
    } else {
      static_assert(std::is_same_v<T, Node>, "read takes string, bool, numbers, vector<string> or Node");
      *target = value;
    }
    return Status();
  }

  Node node_;
};

// Parses one document; `name` stands for the file in positions. An empty document is a null node.
Expected<Node> parse(std::string_view text, std::string_view name);

// Parses the text of a scalar alone, for values that come from a command line: same rules, same messages.
std::optional<std::uint64_t> parse_bytes(std::string_view text);  // "24GiB"
std::optional<double> parse_percent(std::string_view text);       // "10%" -> 0.1

}  // namespace ktc::yaml
