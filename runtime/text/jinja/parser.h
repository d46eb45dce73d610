// Tokens to a syntax tree. Whatever this folder cannot evaluate is refused here, with its line, so that a template
// either loads and renders as in Hugging Face's set-up or does not load.
#pragma once

#include <string_view>

#include "runtime/text/jinja/ast.h"

namespace ktc::text::jinja {

// Throws Failure with a line.
Body parse_template(std::string_view source);

}  // namespace ktc::text::jinja
