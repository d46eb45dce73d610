// Python's operators and subscripts on template values. All fail with a message that names the types.
#pragma once

#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/value.h"

namespace ktc::text::jinja {

Value apply_unary(Op op, const Value& value);
Value apply_binary(Op op, const Value& left, const Value& right, Meter& meter);
bool apply_comparison(Op op, const Value& left, const Value& right, Meter& meter);
bool contains(const Value& container, const Value& item, Meter& meter);  // item in container

// value.name: a method or attribute, else the item of a dict; value[key]: the other way round. Undefined where there is
// none.
Value get_attribute(const Value& value, std::string_view name, Meter& meter);
Value get_item(const Value& value, const Value& key, Meter& meter);
// value[begin:end:step]; undefined bounds are left out.
Value get_slice(const Value& value, const Value* begin, const Value* end, const Value* step, Meter& meter);

std::int64_t length(const Value& value);  // len()

}  // namespace ktc::text::jinja
