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

Status SlotReader::read_scales(const models::TensorPiece& piece, std::uint64_t columns, std::uint64_t row,
                               std::uint64_t rows, std::vector<float>& out) const {
  const models::Tensor& scales = model_.tensors[piece.scales];
  const std::uint64_t per_row = (columns + piece.scale_columns - 1) / piece.scale_columns;
  const std::uint64_t first = row / piece.scale_rows, last = (row + rows - 1) / piece.scale_rows;
  out.resize((last - first + 1) * per_row);
  return read_exactly(descriptors_[scales.shard], std::as_writable_bytes(std::span(out)), scales.offset + first * per_row * 4,
                      model_.shards[scales.shard].string());
}

// One rounding, of the product: codes and scales are exact.
Status SlotReader::read_decoded(const models::TensorPiece& piece, std::uint64_t columns, std::uint64_t row, std::uint64_t rows,
                                std::span<std::byte> out) const {
  const models::Tensor& codes = model_.tensors[piece.tensor];
  std::vector<std::byte> bytes(rows * columns);
  KTC_RETURN_IF_ERROR(read_exactly(descriptors_[codes.shard], bytes, codes.offset + row * columns,
                                   model_.shards[codes.shard].string()));
  std::vector<float> factors;
  KTC_RETURN_IF_ERROR(read_scales(piece, columns, row, rows, factors));
  const std::uint64_t per_row = (columns + piece.scale_columns - 1) / piece.scale_columns;
  for (std::uint64_t r = 0; r < rows; ++r) {
    const float* factor = factors.data() + ((row + r) / piece.scale_rows - row / piece.scale_rows) * per_row;
    for (std::uint64_t c = 0; c < columns; ++c) {
      const float value = load_element(models::TensorType::f8_e4m3, bytes.data(), r * columns + c) * factor[c / piece.scale_columns];
      std::memcpy(out.data() + (r * columns + c) * 4, &value, 4);
    }
  }
  return {};
}

Status SlotReader::for_pieces(std::uint32_t slot_index, std::uint64_t batch, std::uint64_t row, std::uint64_t rows,
                              const PieceBody& body) const {
  const models::WeightSlot& slot = model_.slots[slot_index];
  for (std::uint64_t done = 0; done < rows;) {
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
      KTC_RETURN_IF_ERROR(body(piece, (batch - piece.batch_begin) * piece_rows + inside, take, done));
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

Status SlotReader::read_rows(std::uint32_t slot_index, std::uint64_t batch, std::uint64_t row, std::uint64_t rows,
                             std::span<std::byte> out) const {
  const models::WeightSlot& slot = model_.slots[slot_index];
  const std::uint64_t row_bytes = slot.columns * static_cast<std::uint64_t>(models::tensor_type_bytes(row_type(slot)));
  return for_pieces(slot_index, batch, row, rows,
                    [&](const models::TensorPiece& piece, std::uint64_t from, std::uint64_t take, std::uint64_t done) {
                      const auto to = out.subspan(done * row_bytes, take * row_bytes);
                      if (slot.type == models::TensorType::f8_e4m3) return read_decoded(piece, slot.columns, from, take, to);
                      const models::Tensor& tensor = model_.tensors[piece.tensor];
                      return read_exactly(descriptors_[tensor.shard], to, tensor.offset + from * row_bytes,
                                          model_.shards[tensor.shard].string());
                    });
}

bool SlotReader::has_codes(std::uint32_t slot_index, std::uint32_t group) const {
  const models::WeightSlot& slot = model_.slots[slot_index];
  return slot.type == models::TensorType::f8_e4m3 &&
         std::all_of(slot.pieces.begin(), slot.pieces.end(), [&](const models::TensorPiece& piece) {
           return piece.scale_columns >= slot.columns || (group != 0 && piece.scale_columns % group == 0);
         });
}

Status SlotReader::read_codes(std::uint32_t slot_index, std::uint64_t batch, std::uint64_t row, std::uint64_t rows,
                              std::uint32_t group, std::span<std::byte> codes, std::span<float> scales) const {
  const models::WeightSlot& slot = model_.slots[slot_index];
  const std::uint64_t columns = slot.columns, groups = group == 0 ? 1 : (columns + group - 1) / group;
  std::vector<float> factors;
  return for_pieces(
      slot_index, batch, row, rows,
      [&](const models::TensorPiece& piece, std::uint64_t from, std::uint64_t take, std::uint64_t done) -> Status {
        const models::Tensor& tensor = model_.tensors[piece.tensor];
        KTC_RETURN_IF_ERROR(read_exactly(descriptors_[tensor.shard], codes.subspan(done * columns, take * columns),
                                         tensor.offset + from * columns, model_.shards[tensor.shard].string()));
        KTC_RETURN_IF_ERROR(read_scales(piece, columns, from, take, factors));
        const std::uint64_t per_row = (columns + piece.scale_columns - 1) / piece.scale_columns;
        for (std::uint64_t r = 0; r < take; ++r) {
          const float* factor = factors.data() + ((from + r) / piece.scale_rows - from / piece.scale_rows) * per_row;
          for (std::uint64_t g = 0; g < groups; ++g) scales[(done + r) * groups + g] = factor[g * group / piece.scale_columns];
        }
        return {};
      });
}

}  // namespace ktc::compiler
