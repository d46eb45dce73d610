// Files: reading headers and single tensors, writing small ones.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "runtime/safetensors/parse.h"
#include "runtime/safetensors/safetensors.h"

namespace ktc::safetensors {

namespace {

class InputFile {
 public:
  ~InputFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Status open(const std::filesystem::path& path) {
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) {
      const int error = errno;
      return make_error(
          error == ENOENT ? StatusCode::not_found : StatusCode::io_error,
          {path.string(), "cannot open", std::strerror(error), "", "check that the checkpoint is complete"});
    }
    struct stat status;
    if (::fstat(descriptor_, &status) != 0)
      return make_error(StatusCode::io_error, {path.string(), "cannot open", std::strerror(errno), "", ""});
    if (!S_ISREG(status.st_mode))
      return make_error(StatusCode::invalid_argument,
                        {path.string(), "cannot read", "no regular file", "a safetensors file", ""});
    bytes_ = static_cast<std::uint64_t>(status.st_size);
    return {};
  }
  std::uint64_t bytes() const { return bytes_; }

  Status read(std::uint64_t offset, std::span<std::byte> out, const std::filesystem::path& path) const {
    while (!out.empty()) {
      const ssize_t count = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0)
        return make_error(StatusCode::io_error, {path.string(), "cannot read at byte " + std::to_string(offset),
                                                 count == 0 ? "the end of the file" : std::strerror(errno), "", ""});
      offset += static_cast<std::uint64_t>(count);
      out = out.subspan(static_cast<std::size_t>(count));
    }
    return {};
  }

 private:
  int descriptor_ = -1;
  std::uint64_t bytes_ = 0;
};

Status write_error(const std::filesystem::path& path, int error) {
  return make_error(StatusCode::io_error,
                    {path.string(), "cannot write", std::strerror(error), "", "check the free space"});
}

Status check_output(const OutputTensor& tensor, const std::filesystem::path& path) {
  std::uint64_t bytes = dtype_bytes(tensor.dtype);
  if (bytes == 0)
    return make_error(StatusCode::invalid_argument, {tensor_place(path.string(), tensor.name), "dtype",
                                                     "\"" + tensor.dtype + "\"", "a safetensors dtype", ""});
  bool overflow = false;
  for (std::uint64_t dimension : tensor.shape) overflow |= __builtin_mul_overflow(bytes, dimension, &bytes);
  if (overflow || bytes != tensor.data.size())
    return make_error(StatusCode::invalid_argument,
                      {tensor_place(path.string(), tensor.name), "data", std::to_string(tensor.data.size()) + " bytes",
                       overflow ? "fewer than 2^64 bytes" : std::to_string(bytes) + " bytes for its shape", ""});
  if (tensor.name == "__metadata__")
    return make_error(StatusCode::invalid_argument,
                      {path.string(), "tensor name", "\"__metadata__\"", "another name", ""});
  return {};
}

}  // namespace

Expected<Header> read_header(const std::filesystem::path& path) {
  InputFile file;
  KTC_RETURN_IF_ERROR(file.open(path));
  const std::string name = path.string();
  std::vector<std::byte> head(std::min<std::uint64_t>(8, file.bytes()));
  KTC_RETURN_IF_ERROR(file.read(0, head, path));
  KTC_ASSIGN_OR_RETURN(const std::uint64_t length, header_bytes(head, file.bytes(), name));
  head.resize(8 + length);
  KTC_RETURN_IF_ERROR(file.read(8, std::span(head).subspan(8), path));
  return parse_header(head, file.bytes(), name);
}

Expected<std::vector<std::byte>> read_tensor(const std::filesystem::path& path, const TensorInfo& info) {
  InputFile file;
  KTC_RETURN_IF_ERROR(file.open(path));
  if (info.offset > file.bytes() ||
      info.bytes > file.bytes() - info.offset)  // the file changed since its header was read
    return make_error(StatusCode::data_corrupt,
                      {path.string(), "the file is cut short", std::to_string(file.bytes()) + " bytes",
                       std::to_string(info.bytes) + " bytes from byte " + std::to_string(info.offset) + " on",
                       "download the file again"});
  std::vector<std::byte> data(info.bytes);
  KTC_RETURN_IF_ERROR(file.read(info.offset, data, path));
  return data;
}

Status write_file(const std::filesystem::path& path, std::span<const OutputTensor> tensors) {
  std::vector<const OutputTensor*> sorted;
  for (const OutputTensor& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  std::string header = "{";
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const OutputTensor& tensor = *sorted[i];
    KTC_RETURN_IF_ERROR(check_output(tensor, path));
    if (i > 0 && sorted[i - 1]->name == tensor.name)
      return make_error(StatusCode::invalid_argument,
                        {tensor_place(path.string(), tensor.name), "the name occurs twice", "", "", ""});
    try {
      header += (i == 0 ? "" : ",") + nlohmann::json(tensor.name).dump() + ":{\"dtype\":\"" + tensor.dtype +
                "\",\"shape\":" + nlohmann::json(tensor.shape).dump() + ",\"data_offsets\":[" + std::to_string(offset) +
                "," + std::to_string(offset + tensor.data.size()) + "]}";
    } catch (const nlohmann::json::exception&) {
      return make_error(StatusCode::invalid_argument,
                        {tensor_place(path.string(), tensor.name), "name", "bytes that are not UTF-8", "UTF-8", ""});
    }
    offset += tensor.data.size();
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');  // data begin at a multiple of 8

  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return write_error(path, errno);
  std::byte length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
  bool good =
      std::fwrite(length, 1, 8, file) == 8 && std::fwrite(header.data(), 1, header.size(), file) == header.size();
  for (const OutputTensor* tensor : sorted)
    good = good && std::fwrite(tensor->data.data(), 1, tensor->data.size(), file) == tensor->data.size();
  const int error = errno;
  if (std::fclose(file) != 0) return write_error(path, errno);
  return good ? Status() : write_error(path, error);
}

}  // namespace ktc::safetensors
