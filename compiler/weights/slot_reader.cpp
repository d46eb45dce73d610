#include "compiler/weights/slot_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "compiler/weights/pack.h"

namespace ktc::compiler {
namespace {

Status read_exactly(int descriptor, std::span<std::byte> out, std::uint64_t offset, const std::string& file) {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = pread(descriptor, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return make_error(StatusCode::io_error, {.place = file, .what = "read failed", .found = std::strerror(errno)});
    if (n == 0)
      return make_error(StatusCode::data_corrupt, {.place = file,
                                                   .what = "the file became shorter while it was read",
                                                   .found = fmt::format("end at byte {}", offset + done),
                                                   .expected = fmt::format("{} bytes more", out.size() - done),
                                                   .remedy = "download the file again"});
    done += static_cast<std::size_t>(n);
  }
  return {};
}

}  // namespace

models::TensorType SlotReader::row_type(const models::WeightSlot& slot) {
  return slot.type == models::TensorType::f8_e4m3 ? models::TensorType::f32 : slot.type;
}

Expected<std::unique_ptr<SlotReader>> SlotReader::open(const models::ModelDesc& model) {
  std::unique_ptr<SlotReader> reader(new SlotReader(model));
  reader->descriptors_.assign(model.shards.size(), -1);
  for (const models::WeightSlot& slot : model.slots)
    for (const models::TensorPiece& piece : slot.pieces)
      for (const std::uint32_t tensor : {piece.tensor, piece.scales}) {
        if (tensor == UINT32_MAX) continue;
        int& descriptor = reader->descriptors_[model.tensors[tensor].shard];
        if (descriptor >= 0) continue;
        const std::filesystem::path& path = model.shards[model.tensors[tensor].shard];
        descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (descriptor < 0)
          return make_error(StatusCode::io_error,
                            {.place = path.string(), .what = "cannot open shard", .found = std::strerror(errno)});
        posix_fadvise(descriptor, 0, 0, POSIX_FADV_SEQUENTIAL);
      }
  return reader;
}

SlotReader::~SlotReader() {
  for (int descriptor : descriptors_)
    if (descriptor >= 0) ::close(descriptor);
}

// One rounding, of the product: codes and scales are exact.
Status SlotReader::read_fp8(const models::TensorPiece& piece, std::uint64_t columns, std::uint64_t row, std::uint64_t rows,
                            std::span<std::byte> out) const {
  const models::Tensor &codes = model_.tensors[piece.tensor], &scales = model_.tensors[piece.scales];
  std::vector<std::byte> bytes(rows * columns);
  KTC_RETURN_IF_ERROR(read_exactly(descriptors_[codes.shard], bytes, codes.offset + row * columns,
                                   model_.shards[codes.shard].string()));
  const std::uint64_t per_row = (columns + piece.scale_columns - 1) / piece.scale_columns;
  const std::uint64_t first = row / piece.scale_rows, last = (row + rows - 1) / piece.scale_rows;
  std::vector<float> factors((last - first + 1) * per_row);
  KTC_RETURN_IF_ERROR(read_exactly(descriptors_[scales.shard], std::as_writable_bytes(std::span(factors)),
                                   scales.offset + first * per_row * 4, model_.shards[scales.shard].string()));
  for (std::uint64_t r = 0; r < rows; ++r) {
    const float* factor = factors.data() + ((row + r) / piece.scale_rows - first) * per_row;
    for (std::uint64_t c = 0; c < columns; ++c) {
      const float value = load_element(models::TensorType::f8_e4m3, bytes.data(), r * columns + c) * factor[c / piece.scale_columns];
      std::memcpy(out.data() + (r * columns + c) * 4, &value, 4);
    }
  }
  return {};
}

Status SlotReader::read_rows(std::uint32_t slot_index, std::uint64_t batch, std::uint64_t row, std::uint64_t rows,
                             std::span<std::byte> out) const {
  const models::WeightSlot& slot = model_.slots[slot_index];
  const std::uint64_t row_bytes = slot.columns * static_cast<std::uint64_t>(models::tensor_type_bytes(row_type(slot)));
  std::uint64_t done = 0;
  while (done < rows) {
    const std::uint64_t at = row + done;
    bool found = false;
    for (const models::TensorPiece& piece : slot.pieces) {
      const models::Tensor& tensor = model_.tensors[piece.tensor];
      const std::uint64_t elements = tensor.bytes / static_cast<std::uint64_t>(models::tensor_type_bytes(tensor.type));
      const std::uint64_t piece_batch = tensor.shape.size() == 3 ? tensor.shape[0] : 1;
      const std::uint64_t piece_rows = elements / slot.columns / piece_batch;
      if (batch < piece.batch_begin || batch >= piece.batch_begin + piece_batch) continue;
      if (at < piece.row_begin || at >= piece.row_begin + piece_rows) continue;
      const std::uint64_t inside = at - piece.row_begin;
      const std::uint64_t take = std::min(rows - done, piece_rows - inside);
      if (slot.type == models::TensorType::f8_e4m3) {
        KTC_RETURN_IF_ERROR(read_fp8(piece, slot.columns, inside, take, out.subspan(done * row_bytes, take * row_bytes)));
        done += take;
        found = true;
        break;
      }
      const std::uint64_t offset = tensor.offset + ((batch - piece.batch_begin) * piece_rows + inside) * row_bytes;
      KTC_RETURN_IF_ERROR(read_exactly(descriptors_[tensor.shard], out.subspan(done * row_bytes, take * row_bytes), offset,
                                       model_.shards[tensor.shard].string()));
      done += take;
      found = true;
      break;
    }
    if (!found)
      return make_error(StatusCode::internal, {.place = slot.name,
                                               .what = fmt::format("no tensor holds row {} of matrix {}", at, batch),
                                               .remedy = "please report this with the model"});
  }
  return {};
}

}  // namespace ktc::compiler
