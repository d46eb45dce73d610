// Quantities as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace ktc {

std::string format_bytes(std::uint64_t bytes);  // "512 B", "1.5 KiB", "24.0 GiB": binary units, one decimal
std::string format_seconds(double seconds);     // "0.8 s", "42 s", "3 min 20 s", "2 h 5 min"

}  // namespace ktc
