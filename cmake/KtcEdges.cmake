# The one-way graph of the project: which target may use which (docs/architecture.md has the picture).
# ktc_library and ktc_tool refuse any edge that is not listed here, and test/edges_test.py refuses any #include across one.
#
# ktc_edge(TARGET may use these targets of ours and these external libraries)
macro(ktc_edge target)
  set(KTC_EDGES_${target} ${ARGN})
endmacro()

# the right half: lean, no MLIR, no YAML, no model families
ktc_edge(base fmt)
ktc_edge(formats base)
# the safetensors container, for both halves: checkpoints on the left, reference tensors and logits on the right
ktc_edge(safetensors base json)
ktc_edge(plan base formats flatbuffers xxhash)
ktc_edge(weights base formats plan)
ktc_edge(kernels_cpu base formats)
ktc_edge(kernels_cuda base formats cuda flashinfer)
ktc_edge(device base formats kernels_cuda cuda)
ktc_edge(exec base formats plan weights kernels_cpu kernels_cuda device tbb json)
ktc_edge(text base json pcre2 utf8proc)
ktc_edge(serve base exec text json)

# the left half: slow and clever
ktc_edge(models base formats safetensors json yaml)
ktc_edge(placement base formats models json yaml)
ktc_edge(dialect_kt base mlir)
ktc_edge(compiler_weights base formats safetensors models tbb xxhash)
ktc_edge(compiler base formats models placement plan dialect_kt compiler_weights mlir xxhash)

# the mains
ktc_edge(ktc base formats models placement compiler dialect_kt mlir cli weights kernels_cpu kernels_cuda device exec)
ktc_edge(ktc-opt base dialect_kt compiler mlir)
ktc_edge(ktc-bench base formats weights kernels_cpu kernels_cuda device exec json cli)
ktc_edge(ktc-plan base formats plan weights cli)
ktc_edge(ktc-run base formats safetensors plan weights exec text json cli)
