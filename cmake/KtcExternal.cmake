# External libraries, each as one interface target ktc_external_NAME so that cmake/KtcEdges.cmake can name it.
# docs/architecture.md says which need each one serves; a missing one is reported with the Debian package that has it.

function(ktc_external name)
  add_library(ktc_external_${name} INTERFACE)
  if(ARGN)
    target_link_libraries(ktc_external_${name} INTERFACE ${ARGN})
  endif()
endfunction()

# A header-only library: found by one of its headers.
function(ktc_external_header name header package)
  find_path(KTC_${name}_INCLUDE ${header})
  if(NOT KTC_${name}_INCLUDE)
    message(FATAL_ERROR "missing ${header}: install ${package}, or run ./bootstrap.sh build")
  endif()
  add_library(ktc_external_${name} INTERFACE)
  target_include_directories(ktc_external_${name} SYSTEM INTERFACE ${KTC_${name}_INCLUDE})
endfunction()

# A library with a header, static where `lib` names an archive.
function(ktc_external_library name header lib package)
  ktc_external_header(${name} ${header} ${package})
  find_library(KTC_${name}_LIBRARY NAMES ${lib})
  if(NOT KTC_${name}_LIBRARY)
    message(FATAL_ERROR "missing ${lib}: install ${package}, or run ./bootstrap.sh build")
  endif()
  target_link_libraries(ktc_external_${name} INTERFACE ${KTC_${name}_LIBRARY})
endfunction()

find_package(Threads REQUIRED)

ktc_external_header(fmt fmt/format.h libfmt-dev)
target_compile_definitions(ktc_external_fmt INTERFACE FMT_HEADER_ONLY=1)
ktc_external_header(json nlohmann/json.hpp nlohmann-json3-dev)
ktc_external_header(flatbuffers flatbuffers/flatbuffers.h libflatbuffers-dev)
ktc_external_header(xxhash xxhash.h libxxhash-dev)
target_compile_definitions(ktc_external_xxhash INTERFACE XXH_INLINE_ALL=1)
ktc_external_header(cli CLI/CLI.hpp libcli11-dev)
ktc_external_library(pcre2 pcre2.h libpcre2-8.a libpcre2-dev)
target_compile_definitions(ktc_external_pcre2 INTERFACE PCRE2_CODE_UNIT_WIDTH=8)
ktc_external_library(utf8proc utf8proc.h libutf8proc.a libutf8proc-dev)
find_package(TBB REQUIRED)
ktc_external(tbb TBB::tbb Threads::Threads)

if(KTC_COMPILER)
  ktc_external_library(yaml yaml-cpp/yaml.h libyaml-cpp.a libyaml-cpp-dev)
  include(${CMAKE_CURRENT_LIST_DIR}/KtcMlir.cmake)
endif()

if(KTC_CUDA)
  include(${CMAKE_CURRENT_LIST_DIR}/KtcCuda.cmake)
  include(${CMAKE_CURRENT_LIST_DIR}/KtcFlashInfer.cmake)
endif()
