// Kernels of an emulated GPU: the reference set (runtime/kernels/cuda), with the CPU's kernels where an operation is a product in f32
// or an attention, so that a model of some layers runs in seconds. Sums have another order than the reference's, as any set may.
#pragma once

#include "runtime/kernels/cuda/gpu_kernels.h"

namespace ktc::exec {

const gpu::KernelSet& emulated_kernels();

}  // namespace ktc::exec
