#include "runtime/text/jinja/environment.h"

#include <fmt/format.h>

#include "runtime/text/jinja/evaluator.h"
#include "runtime/text/jinja/parser.h"
#include "runtime/text/unicode.h"

namespace ktc::text::jinja {
namespace {

constexpr std::size_t kMaxTemplate = 1u << 20;

Value from_json(const nlohmann::ordered_json& json, bool content, Meter& meter, int depth) {
  using Type = nlohmann::ordered_json::value_t;
  if (depth > kMaxNesting) fail(fmt::format("lists and dicts are nested more than {} deep", kMaxNesting));
  switch (json.type()) {
    case Type::boolean: return Value(json.get<bool>());
    case Type::number_integer: return Value(json.get<std::int64_t>());
    case Type::number_unsigned:
      if (json.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
        fail("an integer of a message leaves 64 bits");
      return Value(json.get<std::int64_t>());
    case Type::number_float: return Value(json.get<double>());
    case Type::string: {
      const auto& text = json.get_ref<const std::string&>();
      if (find_invalid_utf8(text) != std::string::npos) fail("a string of a message is not valid UTF-8");
      return make_text(text, meter, content);
    }
    case Type::array: {
      std::vector<Value> items;
      for (const auto& item : json) items.push_back(from_json(item, content, meter, depth + 1));
      return make_list(std::move(items), meter);
    }
    case Type::object: {
      std::vector<std::pair<Value, Value>> items;
      for (const auto& [key, value] : json.items()) {
        if (find_invalid_utf8(key) != std::string::npos) fail("a key of a message is not valid UTF-8");
        items.emplace_back(make_text(key, meter, content), from_json(value, content, meter, depth + 1));
      }
      return make_dict(std::move(items), meter);
    }
    default: return Value(None{});
  }
}

}  // namespace

struct Template::Tree {
  Body body;
};

Template::Template(std::unique_ptr<Tree> tree, std::string name) : tree_(std::move(tree)), name_(std::move(name)) {}
Template::~Template() = default;

Expected<std::unique_ptr<Template>> Template::parse(std::string_view source, const std::string& name) {
  if (source.size() > kMaxTemplate)
    return make_error(StatusCode::unsupported, {.place = name,
                                                .found = fmt::format("a template of {} bytes", source.size()),
                                                .expected = fmt::format("at most {}", kMaxTemplate)});
  if (const std::size_t bad = find_invalid_utf8(source); bad != std::string_view::npos)
    return make_error(StatusCode::data_corrupt,
                      {.place = fmt::format("{}: byte {}", name, bad),
                       .found = fmt::format("0x{:02X}", static_cast<unsigned char>(source[bad])),
                       .expected = "valid UTF-8"});
  try {
    auto tree = std::make_unique<Tree>();
    tree->body = parse_template(source);
    return std::unique_ptr<Template>(new Template(std::move(tree), name));
  } catch (const Failure& failure) {
    return make_error(StatusCode::unsupported,
                      {.place = fmt::format("{}:{}", name, failure.line), .what = failure.message});
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::resource_exhausted, name + ": not enough memory to load the template");
  }
}

Expected<Rendered> Template::render(const std::vector<Variable>& variables,
                                    std::chrono::system_clock::time_point now) const {
  Meter meter;  // outlives every value
  try {
    Scope globals(nullptr);
    for (const Variable& variable : variables)
      globals.set(variable.name, from_json(variable.value, variable.content, meter, 0));
    Evaluator evaluator(meter, now);
    const TextPtr text = evaluator.render(tree_->body, globals);
    return Rendered{text->bytes, text->content};
  } catch (const Failure& failure) {
    const std::string place = failure.line > 0 ? fmt::format("{}:{}", name_, failure.line) : name_;
    if (failure.raised)
      return make_error(
          StatusCode::invalid_argument,
          {.place = place, .what = "the template refuses the conversation", .found = '"' + failure.message + '"'});
    const bool bound = meter.steps > Meter::kMaxSteps;
    return make_error(bound ? StatusCode::resource_exhausted : StatusCode::invalid_argument,
                      {.place = place, .what = failure.message});
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::resource_exhausted, name_ + ": not enough memory to render the template");
  }
}

}  // namespace ktc::text::jinja
