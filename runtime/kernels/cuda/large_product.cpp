#include "runtime/kernels/cuda/large_product.h"

#ifdef KTC_CUDA
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <mutex>
#endif

namespace ktc::gpu {

#ifdef KTC_CUDA
namespace {

#define KTC_BLAS_FUNCTIONS(X) \
  X(cublasLtCreate) X(cublasLtGetVersion) X(cublasLtMatmul) X(cublasLtMatmulAlgoGetHeuristic) X(cublasLtMatmulDescCreate) \
  X(cublasLtMatmulDescDestroy) X(cublasLtMatmulDescSetAttribute) X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy) \
  X(cublasLtMatmulPreferenceCreate) X(cublasLtMatmulPreferenceDestroy) X(cublasLtMatmulPreferenceSetAttribute)

constexpr const char* kName = "libcublasLt.so.13";
static_assert(CUBLAS_VER_MAJOR == 13);

struct Library {
  std::string missing;  // why it cannot be used; empty: it can
#define KTC_MEMBER(name) decltype(&::name) name = nullptr;
  KTC_BLAS_FUNCTIONS(KTC_MEMBER)
#undef KTC_MEMBER

  Library() {
    void* handle = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* why = dlerror();
      missing = why != nullptr ? why : "it cannot be opened";
      return;
    }
#define KTC_LOAD(name) \
  name = reinterpret_cast<decltype(name)>(dlsym(handle, #name)); \
  if (name == nullptr) missing = "it lacks " #name;
    KTC_BLAS_FUNCTIONS(KTC_LOAD)
#undef KTC_LOAD
  }
};

const Library& library() {
  static const Library kLibrary;  // never closed: kernels of it may be loaded
  return kLibrary;
}

Status missing(const std::string& why) {
  return make_error(StatusCode::unsupported,
                    {.place = kName, .what = "products of many rows cannot use it", .found = why, .remedy = "install cuBLAS 13 to use it"});
}

// One per device and process; cuBLASLt allows any number of threads to share it.
Expected<cublasLtHandle_t> handle_of(int device) {
  constexpr int kDevices = 64;
  static cublasLtHandle_t handles[kDevices] = {};
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (device < 0 || device >= kDevices || cudaSetDevice(device) != cudaSuccess) return missing("no such device");
  if (handles[device] == nullptr)
    if (const cublasStatus_t status = library().cublasLtCreate(&handles[device]); status != CUBLAS_STATUS_SUCCESS)
      return missing("status " + std::to_string(static_cast<int>(status)) + " of cublasLtCreate");
  return handles[device];
}

class Product final : public LargeProduct {
 public:
  explicit Product(const LargeShape& shape) : shape_(shape) {}
  ~Product() override {
    const Library& lt = library();
    if (operation_ != nullptr) lt.cublasLtMatmulDescDestroy(operation_);
    if (w_ != nullptr) lt.cublasLtMatrixLayoutDestroy(w_);
  }

  Status open(int device) {
    const Library& lt = library();
    KTC_ASSIGN_OR_RETURN(handle_, handle_of(device));
    // Columns first, as the library sees it: out^T [n, rows] = w [k, n]^T x [k, rows].
    const cublasOperation_t turned = CUBLAS_OP_T;
    const cublasLtEpilogue_t epilogue = shape_.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    bool good = lt.cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
                set(CUBLASLT_MATMUL_DESC_TRANSA, turned) && set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue) &&
                lt.cublasLtMatrixLayoutCreate(&w_, CUDA_R_16BF, shape_.k, shape_.n, static_cast<std::int64_t>(shape_.w_stride)) == CUBLAS_STATUS_SUCCESS;
    cublasLtMatmulPreference_t preference = nullptr;
    good = good && lt.cublasLtMatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS;
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      good = good && lt.cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
    };
    const std::uint64_t no_workspace = 0;
    const std::uint32_t no_split = CUBLASLT_REDUCTION_SCHEME_NONE, aligned = 16;
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, no_workspace);
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, no_split);
    for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                 CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(attribute, aligned);
    cublasLtMatmulHeuristicResult_t found = {};
    int count = 0;
    if (good) {
      Layouts layouts(*this, shape_.most_rows);
      good = layouts.good() && lt.cublasLtMatmulAlgoGetHeuristic(handle_, operation_, w_, layouts.x, layouts.out, layouts.out, preference, 1,
                                                                 &found, &count) == CUBLAS_STATUS_SUCCESS;
    }
    if (preference != nullptr) lt.cublasLtMatmulPreferenceDestroy(preference);
    if (!good || count == 0 || found.state != CUBLAS_STATUS_SUCCESS || found.workspaceSize != 0)
      return missing("no algorithm for " + std::to_string(shape_.n) + " x " + std::to_string(shape_.k));
    algorithm_ = found.algo;
    return {};
  }

  int run(const void* x, const void* w, const float* bias, float* out, std::uint32_t rows, void* stream) const override {
    const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
    if (!aligned(x) || !aligned(w) || !aligned(out) || (bias != nullptr) != shape_.bias) return cudaErrorNotSupported;
    Layouts layouts(*this, rows);
    if (!layouts.good() || (shape_.bias && !set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias))) return cudaErrorNotSupported;
    const float one = 1, zero = 0;
    const cublasStatus_t status =
        library().cublasLtMatmul(handle_, operation_, &one, w, w_, x, layouts.x, &zero, out, layouts.out, out, layouts.out, &algorithm_, nullptr, 0,
                                 static_cast<cudaStream_t>(stream));
    if (status == CUBLAS_STATUS_SUCCESS) return 0;
    return status == CUBLAS_STATUS_EXECUTION_FAILED ? cudaErrorLaunchFailure : cudaErrorNotSupported;
  }

 private:
  // What depends on the number of rows.
  struct Layouts {
    cublasLtMatrixLayout_t x = nullptr, out = nullptr;
    Layouts(const Product& p, std::uint64_t rows) {
      const Library& lt = library();
      if (lt.cublasLtMatrixLayoutCreate(&x, CUDA_R_16BF, p.shape_.k, rows, static_cast<std::int64_t>(p.shape_.x_stride)) != CUBLAS_STATUS_SUCCESS)
        x = nullptr;
      if (lt.cublasLtMatrixLayoutCreate(&out, CUDA_R_32F, p.shape_.n, rows, static_cast<std::int64_t>(p.shape_.out_stride)) != CUBLAS_STATUS_SUCCESS)
        out = nullptr;
    }
    ~Layouts() {
      if (x != nullptr) library().cublasLtMatrixLayoutDestroy(x);
      if (out != nullptr) library().cublasLtMatrixLayoutDestroy(out);
    }
    Layouts(const Layouts&) = delete;
    Layouts& operator=(const Layouts&) = delete;
    bool good() const { return x != nullptr && out != nullptr; }
  };
  template <typename T>
  bool set(cublasLtMatmulDescAttributes_t attribute, const T& value) const {
    return library().cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
  }

  LargeShape shape_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_ = {};
};

}  // namespace

Expected<std::unique_ptr<LargeProduct>> open_large_product(int ordinal, const LargeShape& shape) {
  if (!library().missing.empty()) return missing(library().missing);
  if (shape.x_stride % 8 != 0 || shape.w_stride % 8 != 0 || shape.out_stride % 4 != 0) return missing("rows that are not aligned");
  auto product = std::make_unique<Product>(shape);
  KTC_RETURN_IF_ERROR(product->open(ordinal));
  return std::unique_ptr<LargeProduct>(std::move(product));
}

Expected<std::string> large_products_version() {
  if (!library().missing.empty()) return missing(library().missing);
  const std::size_t version = library().cublasLtGetVersion();  // 130100: 13.1.0
  return "cuBLASLt " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." + std::to_string(version % 100);
}

#else

Expected<std::unique_ptr<LargeProduct>> open_large_product(int, const LargeShape&) {
  return Status(StatusCode::unsupported, "products of many rows: this build has no CUDA");
}
Expected<std::string> large_products_version() { return Status(StatusCode::unsupported, "cuBLASLt: this build has no CUDA"); }

#endif

}  // namespace ktc::gpu
