#include "runtime/text/byte_level.h"

#include <array>
#include <cstdint>

#include "runtime/text/unicode.h"

namespace ktc::text {
namespace {

struct Alphabet {
  std::array<std::uint16_t, 256> character{};  // of a byte
  std::array<std::int16_t, 324> byte{};        // of a character below U+0144; -1: none
};

constexpr Alphabet make_alphabet() {
  Alphabet a;
  for (auto& b : a.byte) b = -1;
  std::uint16_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    a.character[b] = printable ? static_cast<std::uint16_t>(b) : next++;
    a.byte[a.character[b]] = static_cast<std::int16_t>(b);
  }
  return a;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

void append_byte_level(std::string& out, std::string_view bytes) {
  for (char c : bytes) {
    const std::uint16_t code = kAlphabet.character[static_cast<unsigned char>(c)];
    if (code < 0x80)
      out += static_cast<char>(code);
    else {
      out += static_cast<char>(0xC0 | code >> 6);
      out += static_cast<char>(0x80 | (code & 0x3F));
    }
  }
}

void append_bytes_of_byte_level(std::string& out, std::string_view token) {
  const std::size_t before = out.size();
  for (std::size_t at = 0; at < token.size();) {
    const char32_t c = next_code_point(token, at);
    if (c >= kAlphabet.byte.size() || kAlphabet.byte[c] < 0) {
      out.resize(before);
      out += token;
      return;
    }
    out += static_cast<char>(kAlphabet.byte[c]);
  }
}

}  // namespace ktc::text
