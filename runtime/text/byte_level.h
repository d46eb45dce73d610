// The byte-level alphabet: every byte has one printable character, so that a vocabulary of texts can hold any bytes.
// Bytes that are printable in Latin-1 stand for themselves; the n-th other byte is U+0100 + n.
#pragma once

#include <string>
#include <string_view>

namespace ktc::text {

// The characters of `bytes`.
void append_byte_level(std::string& out, std::string_view bytes);
// The bytes of a token; a token with a character outside the alphabet (an added token, say) is its own bytes.
void append_bytes_of_byte_level(std::string& out, std::string_view token);

}  // namespace ktc::text
