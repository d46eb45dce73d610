// What owns the memory of a Block or MappedBlock: each kind of device derives its own.
#pragma once

#include "runtime/device/device.h"

namespace ktc::device {

struct Block::Impl {
  virtual ~Impl() = default;
};
struct MappedBlock::Impl {
  virtual ~Impl() = default;
};

}  // namespace ktc::device
