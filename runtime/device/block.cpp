#include "runtime/device/block_impl.h"

namespace ktc::device {

Block::Block() = default;
Block::Block(std::byte* data, std::uint64_t bytes, std::unique_ptr<Impl> impl)
    : data_(data), bytes_(bytes), impl_(std::move(impl)) {}
Block::Block(Block&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)), impl_(std::move(other.impl_)) {}
Block& Block::operator=(Block&& other) noexcept {
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  impl_ = std::move(other.impl_);
  return *this;
}
Block::~Block() = default;

MappedBlock::MappedBlock() = default;
MappedBlock::MappedBlock(std::byte* host, std::byte* device, std::uint64_t bytes, std::unique_ptr<Impl> impl)
    : host_(host), device_(device), bytes_(bytes), impl_(std::move(impl)) {}
MappedBlock::MappedBlock(MappedBlock&& other) noexcept
    : host_(std::exchange(other.host_, nullptr)), device_(std::exchange(other.device_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)), impl_(std::move(other.impl_)) {}
MappedBlock& MappedBlock::operator=(MappedBlock&& other) noexcept {
  host_ = std::exchange(other.host_, nullptr);
  device_ = std::exchange(other.device_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  impl_ = std::move(other.impl_);
  return *this;
}
MappedBlock::~MappedBlock() = default;

}  // namespace ktc::device
