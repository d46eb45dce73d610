#include "models/yaml_reader.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <charconv>
#include <cmath>
#include <set>
#include <sstream>

#include "models/nearest.h"

namespace ktc::yaml {

constexpr std::size_t kMaxText = 1 << 20;
constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kMaxNodes = 100'000;
constexpr std::uint32_t kNoParent = UINT32_MAX;

// The tree in one array; a child has a larger index than its parent.
struct Document {
  struct Child {
    std::string key;  // of a map's entry
    int line = 0, column = 0;
    std::uint32_t node = 0;
  };
  struct Value {
    Kind kind = Kind::null;
    bool plain = false;
    int line = 0, column = 0;
    std::uint32_t parent = kNoParent;
    std::string text;             // of a scalar
    std::vector<Child> children;  // of a sequence or map
  };
  std::string name;
  std::vector<Value> values;

  Position position(int line, int column) const { return Position{name, line, column}; }
};

std::string to_string(const Position& position) {
  if (position.line == 0) return position.file;
  return fmt::format("{}:{}:{}", position.file, position.line, position.column);
}

std::string_view to_string(Kind kind) {
  switch (kind) {
    case Kind::null: return "nothing";
    case Kind::scalar: return "a single value";
    case Kind::sequence: return "a list";
    case Kind::map: return "a map";
  }
  return "nothing";
}

namespace {

std::string shorten(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  if (text.size() <= kLongest) return std::string(text);
  return std::string(text.substr(0, kLongest)) + "...";
}

std::string join(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    int more = 0;
    std::uint32_t code = lead;
    if (lead >= 0x80) {
      if (lead >= 0xc2 && lead < 0xe0)
        more = 1, code = lead & 0x1f;
      else if (lead >= 0xe0 && lead < 0xf0)
        more = 2, code = lead & 0x0f;
      else if (lead >= 0xf0 && lead < 0xf5)
        more = 3, code = lead & 0x07;
      else
        return false;
    }
    if (i + static_cast<std::size_t>(more) >= text.size()) return false;
    for (int k = 1; k <= more; ++k) {
      const auto next = static_cast<unsigned char>(text[i + static_cast<std::size_t>(k)]);
      if ((next & 0xc0) != 0x80) return false;
      code = (code << 6) | (next & 0x3f);
    }
    if ((more == 2 && code < 0x800) || (more == 3 && (code < 0x10000 || code > 0x10ffff))) return false;
    if (code >= 0xd800 && code < 0xe000) return false;
    i += static_cast<std::size_t>(more) + 1;
  }
  return true;
}

// Thrown inside the parser and caught in parse(): yaml-cpp offers no other way to stop.
struct Stop {
  Status status;
};

// Builds the tree from the parser's events and refuses what the strict subset excludes.
class Builder : public YAML::EventHandler {
 public:
  explicit Builder(Document* document) : document_(document) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    refuse(mark, "anchor", "&" + shorten(name), "plain values", "write the value out where it is used");
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse(mark, "alias", {}, {}, "write the value out where it is used");
  }
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    if (expects_key()) refuse(mark, "map key", "nothing", "a word", {});
    add(mark, Kind::null);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, const std::string& value) override {
    check_tag(mark, tag);
    if (expects_key()) return take_key(mark, value);
    const std::uint32_t index = add(mark, Kind::scalar);
    document_->values[index].text = value;
    document_->values[index].plain = tag == "?";
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, Kind::sequence);
  }
  void OnSequenceEnd() override { stack_.pop_back(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, YAML::EmitterStyle::value) override {
    open(mark, tag, Kind::map);
  }
  void OnMapEnd() override { stack_.pop_back(); }

 private:
  struct Level {
    std::uint32_t index;
    bool has_key = false;        // a key was read and its value is next
    std::set<std::string> keys;  // seen so far
  };

  [[noreturn]] void refuse(const YAML::Mark& mark, std::string what, std::string found, std::string expected,
                           std::string remedy) {
    throw Stop{make_error(StatusCode::invalid_argument,
                          {to_string(document_->position(mark.line + 1, mark.column + 1)), std::move(what),
                           std::move(found), std::move(expected), std::move(remedy)})};
  }

  void check_tag(const YAML::Mark& mark, const std::string& tag) {
    if (!tag.empty() && tag != "?" && tag != "!") refuse(mark, "tag", shorten(tag), "plain values", "remove the tag");
  }

  bool expects_key() const {
    return !stack_.empty() && document_->values[stack_.back().index].kind == Kind::map && !stack_.back().has_key;
  }

  void take_key(const YAML::Mark& mark, const std::string& key) {
    Level& level = stack_.back();
    if (!level.keys.insert(key).second)
      refuse(mark, "duplicate key", "'" + shorten(key) + "' twice in one map", {}, "remove one of the two");
    level.has_key = true;
    document_->values[level.index].children.push_back({key, mark.line + 1, mark.column + 1, 0});
  }

  std::uint32_t add(const YAML::Mark& mark, Kind kind) {
    if (document_->values.size() >= kMaxNodes)
      refuse(mark, "document too large", {}, fmt::format("at most {} values", kMaxNodes), "split the file");
    const auto index = static_cast<std::uint32_t>(document_->values.size());
    Document::Value value;
    value.kind = kind;
    value.line = mark.line + 1;
    value.column = mark.column + 1;
    if (!stack_.empty()) {
      Level& level = stack_.back();
      value.parent = level.index;
      auto& children = document_->values[level.index].children;
      if (document_->values[level.index].kind == Kind::map) {
        children.back().node = index;
        level.has_key = false;
        // an absent value has no place of its own: point at its key
        if (kind == Kind::null) value.line = children.back().line, value.column = children.back().column;
      } else {
        children.push_back({{}, value.line, value.column, index});
      }
    }
    document_->values.push_back(std::move(value));
    return index;
  }

  void open(const YAML::Mark& mark, const std::string& tag, Kind kind) {
    check_tag(mark, tag);
    if (expects_key()) refuse(mark, "map key", std::string(to_string(kind)), "a word", {});
    if (stack_.size() >= kMaxDepth)
      refuse(mark, "nested too deeply", {}, fmt::format("at most {} levels", kMaxDepth), {});
    stack_.push_back({add(mark, kind), false, {}});
  }

  Document* document_;
  std::vector<Level> stack_;
};

Status text_error(std::string_view name, std::string what, std::string found, std::string expected) {
  return make_error(StatusCode::invalid_argument,
                    {std::string(name), std::move(what), std::move(found), std::move(expected), {}});
}

}  // namespace

Expected<Node> parse(std::string_view text, std::string_view name) {
  if (text.size() > kMaxText)
    return text_error(name, "file too large", fmt::format("{} bytes", text.size()),
                      fmt::format("at most {}", kMaxText));
  if (text.find('\0') != std::string_view::npos || !is_utf8(text))
    return text_error(name, "not a text file", "bytes that are not UTF-8", "UTF-8 text");
  auto document = std::make_shared<Document>();
  document->name = name;
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    Builder builder(document.get());
    if (!parser.HandleNextDocument(builder) || document->values.empty()) {
      document->values.assign(1, Document::Value{});
      document->values[0].line = document->values[0].column = 1;
    }
    Document second;
    second.name = name;
    Builder other(&second);
    if (parser.HandleNextDocument(other))
      return text_error(name, "several documents in one file", "a second '---'", "one document");
  } catch (const Stop& stop) {
    return stop.status;
  } catch (const YAML::Exception& e) {
    const bool placed = !e.mark.is_null() && e.mark.line >= 0;
    const Position at{std::string(name), placed ? e.mark.line + 1 : 0, placed ? e.mark.column + 1 : 0};
    return make_error(StatusCode::invalid_argument, {to_string(at), "not valid YAML: " + e.msg, {}, {}, {}});
  } catch (const std::exception& e) {
    return make_error(StatusCode::invalid_argument,
                      {std::string(name), "not valid YAML: " + std::string(e.what()), {}, {}, {}});
  }
  return Node(std::move(document), 0);
}

// -------------------------------------------------------------------------------------------------------------- node

Kind Node::kind() const {
  return document_ ? document_->values[index_].kind : Kind::null;
}
bool Node::is_plain() const {
  return document_ && document_->values[index_].plain;
}

Position Node::position() const {
  if (!document_) return {};
  const auto& value = document_->values[index_];
  return document_->position(value.line, value.column);
}

std::string Node::path() const {
  std::string path;
  if (!document_) return path;
  for (std::uint32_t at = index_; document_->values[at].parent != kNoParent; at = document_->values[at].parent) {
    const auto& parent = document_->values[document_->values[at].parent];
    std::string step;
    for (std::size_t i = 0; i < parent.children.size(); ++i) {
      if (parent.children[i].node != at) continue;
      step = parent.kind == Kind::map ? "." + parent.children[i].key : fmt::format("[{}]", i);
      break;
    }
    path = step + path;
  }
  return path.starts_with('.') ? path.substr(1) : path;
}

Status Node::error(std::string_view what, std::string_view expected, std::string_view remedy, std::string_view found,
                   StatusCode code) const {
  std::string shown(found);
  if (shown.empty() && document_) {
    const auto& value = document_->values[index_];
    shown = value.kind == Kind::scalar ? "'" + shorten(value.text) + "'" : std::string(to_string(value.kind));
  }
  std::string where = path();
  if (!where.empty() && !what.empty()) where += ": ";
  return make_error(
      code, {to_string(position()), where + std::string(what), shown, std::string(expected), std::string(remedy)});
}

Status Node::not_one_of(const std::vector<std::string>& names) const {
  std::string remedy;
  if (is_scalar()) {
    const std::string nearest = nearest_name(document_->values[index_].text, names);
    if (!nearest.empty()) remedy = "did you mean '" + nearest + "'?";
  }
  return error({}, "one of " + join(names), remedy);
}

Expected<std::string> Node::string() const {
  if (!is_scalar()) return wrong_kind("a text");
  return document_->values[index_].text;
}

Expected<bool> Node::boolean() const {
  if (is_plain()) {
    const std::string& text = document_->values[index_].text;
    if (text == "true") return true;
    if (text == "false") return false;
  }
  return wrong_kind("true or false");
}

Expected<std::int64_t> Node::integer(std::int64_t least, std::int64_t most) const {
  std::string expected = "an integer";
  constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();
  if (least != kLowest && most != kHighest)
    expected += fmt::format(" from {} to {}", least, most);
  else if (least != kLowest)
    expected += fmt::format(" of at least {}", least);
  if (is_plain()) {
    const std::string& text = document_->values[index_].text;
    const std::size_t digits = text.starts_with('-') ? 1 : 0;
    std::int64_t value = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = failure == std::errc() && end == text.data() + text.size();
    if (whole && text.size() > digits + 1 && text[digits] == '0')
      return error({}, expected, "remove the leading zero: some readers take it for octal");
    if (whole && value >= least && value <= most) return value;
  }
  return wrong_kind(expected);
}

Expected<double> Node::number() const {
  if (is_plain()) {
    const std::string& text = document_->values[index_].text;
    double value = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure == std::errc() && end == text.data() + text.size() && std::isfinite(value)) return value;
  }
  return wrong_kind("a number");
}

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  constexpr std::pair<std::string_view, int> kUnits[] = {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}, {"B", 0}};
  for (const auto& [unit, shift] : kUnits) {
    if (!text.ends_with(unit)) continue;
    std::string_view digits = text.substr(0, text.size() - unit.size());
    while (digits.ends_with(' ')) digits.remove_suffix(1);
    if (digits.empty() || digits.front() < '0' || digits.front() > '9') return std::nullopt;
    const char* last = digits.data() + digits.size();
    std::uint64_t whole = 0;
    const auto exact = std::from_chars(digits.data(), last, whole);
    if (exact.ec == std::errc() && exact.ptr == last) {
      if (shift > 0 && whole >> (64 - shift) != 0) return std::nullopt;
      return whole << shift;
    }
    double value = 0;
    const auto fraction = std::from_chars(digits.data(), last, value, std::chars_format::fixed);
    if (fraction.ec != std::errc() || fraction.ptr != last) return std::nullopt;
    value = std::ldexp(value, shift);
    if (!(value >= 0 && value < 0x1p63)) return std::nullopt;
    return static_cast<std::uint64_t>(value);
  }
  return std::nullopt;
}

std::optional<double> parse_percent(std::string_view text) {
  if (!text.ends_with('%')) return std::nullopt;
  text.remove_suffix(1);
  double value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (failure != std::errc() || end != text.data() + text.size() || !(value >= 0 && value <= 100)) return std::nullopt;
  return value / 100;
}

Expected<std::uint64_t> Node::bytes() const {
  if (is_scalar())
    if (auto value = parse_bytes(document_->values[index_].text)) return *value;
  return error({}, "a size with its unit, such as 24GiB or 512MiB", "units are B, KiB, MiB, GiB and TiB");
}

Expected<double> Node::percent() const {
  if (is_scalar())
    if (auto value = parse_percent(document_->values[index_].text)) return *value;
  return wrong_kind("a share from 0% to 100%, such as 10%");
}

Expected<std::vector<Node>> Node::sequence() const {
  if (!is_sequence()) return wrong_kind("a list");
  std::vector<Node> nodes;
  for (const auto& child : document_->values[index_].children) nodes.push_back(Node(document_, child.node));
  return nodes;
}

Expected<std::vector<Entry>> Node::entries() const {
  if (!is_map()) return wrong_kind("a map");
  std::vector<Entry> entries;
  for (const auto& child : document_->values[index_].children)
    entries.push_back({child.key, document_->position(child.line, child.column), Node(document_, child.node)});
  return entries;
}

Expected<Map> Node::map(std::initializer_list<std::string_view> keys) const {
  return map(std::vector<std::string>(keys.begin(), keys.end()));
}

Expected<Map> Node::map(const std::vector<std::string>& keys) const {
  if (!is_map()) return wrong_kind("a map with " + join(keys));
  for (const auto& child : document_->values[index_].children) {
    bool known = false;
    for (const std::string& key : keys) known = known || key == child.key;
    if (known) continue;
    const std::string nearest = nearest_name(child.key, keys);
    const std::string where = path();
    return make_error(StatusCode::invalid_argument,
                      {to_string(document_->position(child.line, child.column)),
                       where.empty() ? "unknown key" : "unknown key in " + where, "'" + shorten(child.key) + "'",
                       "one of " + join(keys), nearest.empty() ? std::string() : "did you mean '" + nearest + "'?"});
  }
  return Map(*this);
}

// --------------------------------------------------------------------------------------------------------------- map

bool Map::has(std::string_view key) const {
  for (const auto& child : node_.document_->values[node_.index_].children)
    if (child.key == key) return true;
  return false;
}

Node Map::operator[](std::string_view key) const {
  for (const auto& child : node_.document_->values[node_.index_].children)
    if (child.key == key) return Node(node_.document_, child.node);
  return {};
}

Expected<Node> Map::require(std::string_view key) const {
  if (has(key)) return (*this)[key];
  const std::string where = node_.path();
  return make_error(StatusCode::invalid_argument,
                    {to_string(node_.position()),
                     fmt::format("key '{}' is missing", key) + (where.empty() ? "" : " in " + where),
                     {},
                     {},
                     {}});
}

}  // namespace ktc::yaml
