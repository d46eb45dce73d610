// Templates as Hugging Face renders chat templates: a sandboxed Jinja with trim_blocks, lstrip_blocks, loop controls,
// the generation tag, tojson without ASCII escapes, raise_exception and strftime_now.
//
// What is supported: set (names, namespace attributes, unpacking, blocks), if, for (with filter, else, unpacking, loop
// variables), macro, call, filter, with, generation, raw, break, continue, comments, white-space control; every
// expression of Jinja but *args and **kwargs; the filters, tests and methods of functions.h. Anything else fails when
// it is parsed, with file and line. What differs knowingly: integers have 64 bits; printing a generator, a method or a
// macro is an error instead of an address; `safe` is `string`; macros, loops and namespaces cannot be put into lists,
// dicts and namespaces.
//
// Bounds: 1 MiB of template, 100 constructs and 200 operators inside each other, 600 evaluations inside each other,
// 20 million steps, 16 MiB for any text, 256 MiB of texts alive.
#pragma once

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/regex.h"

namespace ktc::text::jinja {

// A variable of a render. `content`: its strings are the user's; false: they are as trusted as the template.
struct Variable {
  std::string name;
  nlohmann::ordered_json value;
  bool content = true;
};

struct Rendered {
  std::string text;
  std::vector<Span> content;  // the bytes that came from content variables; sorted, disjoint
};

// Immutable and thread-safe.
class Template {
 public:
  // `name` is the place that errors name, as in "chat_template.jinja:12: ...". Errors: unsupported.
  static Expected<std::unique_ptr<Template>> parse(std::string_view source, const std::string& name);
  ~Template();

  // Errors: invalid_argument (the template's raise_exception, or values that it cannot work with), resource_exhausted
  // (a bound), with the line.
  Expected<Rendered> render(const std::vector<Variable>& variables, std::chrono::system_clock::time_point now) const;

 private:
  struct Tree;
  Template(std::unique_ptr<Tree> tree, std::string name);
  std::unique_ptr<Tree> tree_;
  std::string name_;
};

}  // namespace ktc::text::jinja
