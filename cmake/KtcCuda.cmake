# The CUDA half: which cards the kernels are compiled for, and with what. Included when KTC_CUDA is on.
#
# The list has real code for the cards that people have and PTX for later ones; each entry costs compile time and bytes, so CI
# and the presets narrow it. runtime/device refuses a card that no entry serves, with the remedy.
set(KTC_CUDA_ARCHITECTURES "80-real;86-real;89-real;90-real;120-real;90-virtual" CACHE STRING
  "compute capabilities, as in CMAKE_CUDA_ARCHITECTURES")
set(architectures ${KTC_CUDA_ARCHITECTURES})
# Code for compute capability 9.0 may use all that these cards have (warp groups), which PTX for later ones may not.
if("90" IN_LIST architectures)
  list(REMOVE_ITEM architectures 90)
  list(APPEND architectures 90a-real 90-virtual)
endif()
list(TRANSFORM architectures REPLACE "^90-real$" "90a-real")
set(CMAKE_CUDA_ARCHITECTURES "${architectures}")
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)  # a program starts, and says so, where no driver is
set(CMAKE_CUDA_COMPILER "${KTC_NVCC}")
if(NOT CMAKE_CUDA_HOST_COMPILER)
  find_program(KTC_CUDA_HOST_COMPILER NAMES g++-12 g++)
  set(CMAKE_CUDA_HOST_COMPILER "${KTC_CUDA_HOST_COMPILER}")
endif()
if(KTC_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${KTC_CCACHE})
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc can do it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
endif()
find_package(CUDAToolkit 13.0 REQUIRED)
# cuBLASLt is 540 MB and is opened when the first product wants it; only its headers are used here
ktc_external(cuda CUDA::cudart_static ${CMAKE_DL_LIBS})
target_include_directories(ktc_external_cuda SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
set(KTC_CUDA_FLAGS --expt-relaxed-constexpr --expt-extended-lambda -Xfatbin=-compress-all -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter
  -Xcompiler=-ffile-prefix-map=${PROJECT_SOURCE_DIR}/= --diag-suppress=128,177,20012)
