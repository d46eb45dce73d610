# FlashInfer's headers, for the attention of prompts on a GPU. Nothing is downloaded here: cmake/fetch_flashinfer.sh does that, and
# bootstrap.sh calls it. Without them, or where they do not compile, our own kernels serve and a message says so.
#
# ktc_external_flashinfer exists where they are used; the licence is copied beside the tools that contain the kernels.
set(KTC_FLASHINFER_INCLUDE "auto" CACHE STRING
  "folder that holds flashinfer/attention/prefill.cuh; auto: build/third_party of the sources; empty: own attention kernels alone")
set(KTC_FLASHINFER_VERSION 0.7.2.post1)

set(ktc_flashinfer ${KTC_FLASHINFER_INCLUDE})
if(ktc_flashinfer STREQUAL "auto")
  set(ktc_flashinfer ${PROJECT_SOURCE_DIR}/build/third_party/flashinfer-${KTC_FLASHINFER_VERSION}/include)
endif()
if(NOT ktc_flashinfer)
  message(STATUS "attention on a GPU: own kernels alone (KTC_FLASHINFER_INCLUDE is empty)")
elseif(NOT EXISTS ${ktc_flashinfer}/flashinfer/attention/prefill.cuh)
  message(STATUS "attention on a GPU: own kernels alone; for FlashInfer's run cmake/fetch_flashinfer.sh and configure again")
else()
  # Its C++ interface is not promised to anybody: what we name of it must compile. The answer is kept per folder.
  string(MAKE_C_IDENTIFIER "KTC_FLASHINFER_WORKS_${ktc_flashinfer}" ktc_flashinfer_works)
  if(NOT DEFINED ${ktc_flashinfer_works})
    execute_process(
      COMMAND ${CMAKE_CUDA_COMPILER} -ccbin ${CMAKE_CUDA_HOST_COMPILER} -std=c++20 -arch=sm_80 --expt-relaxed-constexpr
        -I${PROJECT_SOURCE_DIR} -isystem ${ktc_flashinfer}
        -c ${PROJECT_SOURCE_DIR}/cmake/flashinfer_check.cu -o ${PROJECT_BINARY_DIR}/flashinfer_check.o
      RESULT_VARIABLE ktc_flashinfer_status OUTPUT_FILE ${PROJECT_BINARY_DIR}/flashinfer_check.log
      ERROR_FILE ${PROJECT_BINARY_DIR}/flashinfer_check.log)
    if(ktc_flashinfer_status EQUAL 0)
      set(${ktc_flashinfer_works} ON CACHE INTERNAL "the headers there compile")
    else()
      set(${ktc_flashinfer_works} OFF CACHE INTERNAL "the headers there do not compile")
    endif()
  endif()
  if(${ktc_flashinfer_works})
    message(STATUS "attention on a GPU: FlashInfer's kernels for prompts (${ktc_flashinfer})")
    ktc_external(flashinfer)
    target_include_directories(ktc_external_flashinfer SYSTEM INTERFACE ${ktc_flashinfer})
    foreach(file LICENSE NOTICE)
      if(EXISTS ${ktc_flashinfer}/../${file})
        configure_file(${ktc_flashinfer}/../${file} ${PROJECT_BINARY_DIR}/bin/licenses/flashinfer-${file} COPYONLY)
      endif()
    endforeach()
  else()
    message(WARNING "attention on a GPU: own kernels alone, FlashInfer's headers do not compile; see "
                    "${PROJECT_BINARY_DIR}/flashinfer_check.log")
  endif()
endif()
