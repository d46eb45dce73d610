// "did you mean ...": the candidate that is closest to a misspelled name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ktc {

// The candidate with the smallest edit distance (insert, delete, replace, swap of neighbours), if that distance is at
// most a third of the longer name's length; empty otherwise. The first of equally close candidates.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace ktc
