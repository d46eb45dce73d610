// Status: the outcome of an operation that can fail. Expected<T>: a value or the Status that explains why there is none.
//
// No exception crosses a library edge and nothing aborts: whatever can fail returns one of these two. A message is one line
// and says four things where they exist: the place, what was found, what was expected, what to do (make_error builds it).
// Threading: plain values, safe to copy between threads.
#pragma once

#include <cassert>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace ktc {

enum class StatusCode : std::uint8_t {
  ok,
  invalid_argument,    // the caller's or user's input is wrong: flags, YAML, JSON, a prompt
  not_found,           // a named thing (file, tensor, key) does not exist
  data_corrupt,        // bytes contradict themselves: digest, length, structure
  incompatible,        // well formed, but made for another version or another machine
  resource_exhausted,  // memory, pages, slots: a smaller request could succeed
  io_error,            // the operating system refused: open, read, write, map
  unsupported,         // a legal request that this build does not serve
  cancelled,           // the caller withdrew the request
  unavailable,         // a device or helper is gone for good: nothing more can be asked of it
  internal,            // a bug of ours; the message asks for a report
};

const char* to_string(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::ok; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same failure seen from further up: "context: message". Does nothing to an ok status.
  Status with_context(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_;
};

// The four parts of a diagnostic; empty ones are left out.
// Rendered on one line: "PLACE: WHAT: found FOUND, expected EXPECTED; REMEDY".
struct ErrorParts {
  std::string place = {};   // file, file:line:column, tensor or flag
  std::string what = {};    // the rule that is broken, in a few words
  std::string found = {};
  std::string expected = {};
  std::string remedy = {};  // an instruction the user can follow
};
Status make_error(StatusCode code, const ErrorParts& parts);

template <typename T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : state_(std::move(value)) {}
  Expected(Status status) : state_(std::move(status)) {
    assert(!std::get<Status>(state_).ok() && "an Expected without a value needs a failed Status");
  }

  bool ok() const { return std::holds_alternative<T>(state_); }
  explicit operator bool() const { return ok(); }

  T& value() & { return std::get<T>(state_); }
  const T& value() const& { return std::get<T>(state_); }
  T&& value() && { return std::get<T>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // The failure, or an ok Status when there is a value.
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace ktc

// Returns from the enclosing function when `expr` (a Status) failed.
#define KTC_RETURN_IF_ERROR(expr)                       \
  do {                                                  \
    ::ktc::Status ktc_status_ = (expr);                 \
    if (!ktc_status_.ok()) return ktc_status_;          \
  } while (false)

#define KTC_CONCAT_INNER_(a, b) a##b
#define KTC_CONCAT_(a, b) KTC_CONCAT_INNER_(a, b)

// `KTC_ASSIGN_OR_RETURN(auto x, f())`: binds the value, or returns the failure from the enclosing function.
#define KTC_ASSIGN_OR_RETURN(decl, expr) KTC_ASSIGN_OR_RETURN_(KTC_CONCAT_(ktc_expected_, __LINE__), decl, expr)
#define KTC_ASSIGN_OR_RETURN_(tmp, decl, expr) \
  auto tmp = (expr);                           \
  if (!tmp.ok()) return tmp.status();          \
  decl = std::move(tmp).value()
