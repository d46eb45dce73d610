// A streaming reader: the container's structure is three levels deep, so a state machine over JSON events sees
// duplicate keys (which a tree would have merged), never nests deeper, and reads 60,000 tensors in tens of
// milliseconds.
#include "runtime/safetensors/parse.h"

#include <exception>
#include <nlohmann/json.hpp>

namespace ktc::safetensors {
namespace {

using nlohmann::json;

constexpr const char* kNotThisFormat = "the file is damaged or not a safetensors file; download it again";

class Reader : public json::json_sax_t {
 public:
  Reader(std::string_view file, Header& header) : file_(file), header_(header) {}

  Status take_status() { return std::move(status_); }

  bool null() override { return scalar("null"); }
  bool boolean(bool) override { return scalar("a boolean"); }
  bool number_integer(number_integer_t value) override { return number("the number " + std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { return number("the number " + cut(text)); }
  bool binary(binary_t&) override { return scalar("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::numbers) return scalar("the number " + std::to_string(value));
    if (key_ == Key::data_offsets && offsets_.size() == 2)
      return fail("data_offsets", "more than two numbers", "[begin, end]");
    (key_ == Key::shape ? tensor_->shape : offsets_).push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::metadata) {
      header_.metadata[metadata_key_] = std::move(value);
      return true;
    }
    if (state_ == State::tensor && key_ == Key::dtype) {
      tensor_->dtype = std::move(value);
      return true;
    }
    return scalar("the string \"" + cut(value) + "\"");
  }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::start: state_ = State::names; return true;
      case State::name_seen: state_ = is_metadata_ ? State::metadata : State::tensor; return true;
      default: return scalar("an object");
    }
  }

  bool end_object() override {
    if (state_ == State::tensor && !finish_tensor()) return false;
    state_ = state_ == State::names ? State::end : State::names;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ != State::tensor || key_ == Key::dtype) return scalar("an array");
    state_ = State::numbers;
    return true;
  }

  bool end_array() override {
    state_ = State::tensor;
    if (key_ == Key::data_offsets && offsets_.size() != 2)
      return fail("data_offsets", "fewer than two numbers", "[begin, end]");
    return true;
  }

  bool key(string_t& key) override {
    if (state_ == State::names) return start_name(key);
    if (state_ == State::metadata) {
      if (!header_.metadata.emplace(key, std::string()).second)
        return fail("key \"" + cut(key) + "\"", "it twice", "every key once");
      metadata_key_ = std::move(key);
      return true;
    }
    key_ = key == "dtype"          ? Key::dtype
           : key == "shape"        ? Key::shape
           : key == "data_offsets" ? Key::data_offsets
                                   : Key::none;
    if (key_ == Key::none) return fail("key", "\"" + cut(key) + "\"", "dtype, shape or data_offsets");
    const unsigned bit = 1u << static_cast<unsigned>(key_);
    if ((keys_seen_ & bit) != 0) return fail("key \"" + key + "\"", "it twice", "every key once");
    keys_seen_ |= bit;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& token, const nlohmann::detail::exception&) override {
    status_ = make_error(StatusCode::data_corrupt,
                         {std::string(file_), "header is not valid JSON",
                          "\"" + cut(token) + "\" at byte " + std::to_string(position + 8), "", kNotThisFormat});
    return false;
  }

 private:
  // names: between tensors; name_seen: its object must follow; numbers: inside shape or data_offsets
  enum class State { start, names, name_seen, tensor, metadata, numbers, end };
  enum class Key { dtype, shape, data_offsets, none };

  static std::string cut(std::string_view text) {
    return text.size() <= 80 ? std::string(text) : std::string(text.substr(0, 80)) + "...";
  }

  std::string place() const {
    if (state_ == State::start || state_ == State::end || (state_ == State::names && name_.empty()))
      return std::string(file_) + ": header";
    return is_metadata_ ? std::string(file_) + ": __metadata__" : tensor_place(file_, name_);
  }

  bool fail(std::string what, std::string found, std::string expected) {
    status_ = make_error(StatusCode::data_corrupt,
                         {place(), std::move(what), std::move(found), std::move(expected), kNotThisFormat});
    return false;
  }

  bool number(std::string found) {
    if (state_ == State::numbers)
      return fail(key_ == Key::shape ? "shape" : "data_offsets", std::move(found), "an integer of 0 to 2^64 - 1");
    return scalar(std::move(found));
  }

  // A value of a kind that may not stand here.
  bool scalar(std::string found) {
    switch (state_) {
      case State::start: return fail("header", std::move(found), "an object");
      case State::name_seen: return fail("value", std::move(found), "an object");
      case State::metadata: return fail("value of \"" + cut(metadata_key_) + "\"", std::move(found), "a string");
      case State::numbers: return fail(key_ == Key::shape ? "shape" : "data_offsets", std::move(found), "integers");
      default: break;
    }
    if (key_ == Key::dtype) return fail("dtype", std::move(found), "a string");
    return fail(key_ == Key::shape ? "shape" : "data_offsets", std::move(found), "an array of integers");
  }

  bool start_name(std::string& name) {
    is_metadata_ = name == "__metadata__";
    name_ = std::move(name);
    state_ = State::name_seen;
    if (is_metadata_) {
      if (std::exchange(metadata_seen_, true)) return fail("the name occurs twice", "", "every name once");
      return true;
    }
    const auto [position, inserted] = header_.tensors.emplace(name_, TensorInfo());
    if (!inserted) return fail("the name occurs twice", "", "every name once");
    tensor_ = &position->second;
    keys_seen_ = 0;
    offsets_.clear();
    return true;
  }

  bool finish_tensor() {
    static constexpr const char* kKeys[] = {"dtype", "shape", "data_offsets"};
    for (unsigned i = 0; i < 3; ++i)
      if ((keys_seen_ & (1u << i)) == 0) return fail(std::string("key \"") + kKeys[i] + "\" is missing", "", "");
    if (offsets_[0] > offsets_[1])
      return fail("data_offsets", "[" + std::to_string(offsets_[0]) + ", " + std::to_string(offsets_[1]) + "]",
                  "begin at most end");
    tensor_->offset = offsets_[0];
    tensor_->bytes = offsets_[1] - offsets_[0];
    return true;
  }

  std::string_view file_;
  Header& header_;
  Status status_;
  State state_ = State::start;
  Key key_ = Key::none;
  unsigned keys_seen_ = 0;
  bool is_metadata_ = false;
  bool metadata_seen_ = false;
  std::string name_;
  std::string metadata_key_;
  TensorInfo* tensor_ = nullptr;
  std::vector<std::uint64_t> offsets_;
};

}  // namespace

std::string tensor_place(std::string_view file, std::string_view tensor) {
  const bool long_name = tensor.size() > 200;
  return std::string(file) + ": tensor \"" + std::string(tensor.substr(0, 200)) + (long_name ? "...\"" : "\"");
}

Status parse_json(std::string_view text, std::string_view name, Header& header) {
  try {
    Reader reader(name, header);
    if (json::sax_parse(text.begin(), text.end(), &reader)) return {};
    return reader.take_status();
  } catch (const std::exception& error) {  // out of memory; the events above throw nothing else
    return make_error(StatusCode::resource_exhausted, {std::string(name), "header", error.what(), "", ""});
  }
}

}  // namespace ktc::safetensors
