// String operations with Python's meaning that keep track of what came from the conversation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/jinja/value.h"

namespace ktc::text::jinja {

bool is_python_space(char32_t c);  // str.isspace

TextPtr substring(const Text& text, std::size_t begin, std::size_t end, Meter& meter);  // bytes
TextPtr concatenate(const Text& a, const Text& b, Meter& meter);
TextPtr repeat(const Text& text, std::int64_t times, Meter& meter);

// `characters` null: white space.
TextPtr strip(const Text& text, const Text* characters, bool left, bool right, Meter& meter);
// str.split / str.rsplit; `separator` null: runs of white space; `limit` < 0: no limit. Fails for an empty separator.
std::vector<Value> split(const Text& text, const Text* separator, std::int64_t limit, bool from_right, Meter& meter);
std::vector<Value> split_lines(const Text& text, bool keep_ends, Meter& meter);
TextPtr replace(const Text& text, const Text& old, const Text& with, std::int64_t limit, Meter& meter);
TextPtr join(const Text& separator, const std::vector<TextPtr>& parts, Meter& meter);

enum class Case { upper, lower, swap, capitalize, title_words, title_filter };
// title_words is str.title; title_filter is Jinja's filter, which also starts words behind brackets.
TextPtr change_case(const Text& text, Case to, Meter& meter);

// Jinja's indent filter.
TextPtr indent(const Text& text, const Text& by, bool first, bool blank, Meter& meter);

// Byte offset of the n-th character, 0 <= n <= length.
std::size_t offset_of(std::string_view text, std::size_t n);

}  // namespace ktc::text::jinja
