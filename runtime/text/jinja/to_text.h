// Values as text: str(), repr() and json.dumps() of Python.
#pragma once

#include <string>

#include "runtime/text/jinja/value.h"

namespace ktc::text::jinja {

// What {{ value }} prints. Fails for what prints as an address in Python (generators, methods, macros).
TextPtr to_text(const Value& value, Meter& meter);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool indented = false;
  std::string indent;  // one level, when indented
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// Fails for values that JSON has no form for.
TextPtr to_json(const Value& value, const JsonStyle& style, Meter& meter);

std::string float_to_text(double x);  // repr(float): the shortest digits that read back

}  // namespace ktc::text::jinja
