#include "runtime/base/status.h"

namespace ktc {

const char* to_string(StatusCode code) {
  switch (code) {
    case StatusCode::ok: return "ok";
    case StatusCode::invalid_argument: return "invalid argument";
    case StatusCode::not_found: return "not found";
    case StatusCode::data_corrupt: return "data corrupt";
    case StatusCode::incompatible: return "incompatible";
    case StatusCode::resource_exhausted: return "resource exhausted";
    case StatusCode::io_error: return "input/output error";
    case StatusCode::unsupported: return "unsupported";
    case StatusCode::cancelled: return "cancelled";
    case StatusCode::unavailable: return "unavailable";
    case StatusCode::internal: return "internal error";
  }
  return "unknown status";
}

Status Status::with_context(std::string_view context) const {
  if (ok()) return *this;
  return Status(code_, std::string(context) + ": " + message_);
}

Status make_error(StatusCode code, const ErrorParts& parts) {
  std::string text;
  auto separate = [&text](const char* separator) {
    if (!text.empty()) text += separator;
  };
  if (!parts.place.empty()) text += parts.place;
  if (!parts.what.empty()) {
    separate(": ");
    text += parts.what;
  }
  if (!parts.found.empty()) {
    separate(": ");
    text += "found " + parts.found;
  }
  if (!parts.expected.empty()) {
    separate(parts.found.empty() ? ": " : ", ");
    text += "expected " + parts.expected;
  }
  if (!parts.remedy.empty()) {
    separate("; ");
    text += parts.remedy;
  }
  for (char& c : text)  // the promise of one line holds whatever was quoted from the input
    if (c == '\n' || c == '\r') c = ' ';
  return Status(code, std::move(text));
}

}  // namespace ktc
