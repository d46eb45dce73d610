// A device that leaves everything to another one: tests replace what they are about.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "runtime/device/device.h"

namespace ktc::test {

class WrappedDevice : public device::Device {
 public:
  explicit WrappedDevice(std::unique_ptr<device::Device> inner) : inner_(std::move(inner)) {}
  const device::DeviceInfo& info() const override { return inner_->info(); }
  const gpu::KernelSet& kernels() const override { return inner_->kernels(); }
  Expected<device::Block> allocate(std::uint64_t bytes, std::string name) override { return inner_->allocate(bytes, std::move(name)); }
  Expected<device::MappedBlock> allocate_mapped(std::uint64_t bytes, std::string name) override {
    return inner_->allocate_mapped(bytes, std::move(name));
  }
  Status register_host(std::byte* data, std::uint64_t bytes) override { return inner_->register_host(data, bytes); }
  device::Stream& compute() override { return inner_->compute(); }
  device::Stream& copies() override { return inner_->copies(); }
  device::Stream& values() override { return inner_->values(); }
  Expected<std::unique_ptr<device::Event>> create_event() override { return inner_->create_event(); }
  Status reach(device::Device& peer) override { return inner_->reach(peer); }
  std::uint64_t allocated() const override { return inner_->allocated(); }
  Expected<std::uint64_t> free_bytes() override { return inner_->free_bytes(); }

 private:
  std::unique_ptr<device::Device> inner_;
};

// An emulated device whose kernels are the test's.
class DeviceWithKernels : public WrappedDevice {
 public:
  DeviceWithKernels(std::unique_ptr<device::Device> inner, const gpu::KernelSet& kernels)
      : WrappedDevice(std::move(inner)), info_(WrappedDevice::info()), kernels_(kernels) {
    info_.emulated = false;  // or the executor would take its own kernels
  }
  const device::DeviceInfo& info() const override { return info_; }
  const gpu::KernelSet& kernels() const override { return kernels_; }

 private:
  device::DeviceInfo info_;
  gpu::KernelSet kernels_;
};

}  // namespace ktc::test
