# One static library per folder of src/. Files are found by name, and the name says how they are built:
#   *_avx2.cpp, *_avx512.cpp, *_amx.cpp   kernels, compiled for that instruction set, called behind a CPU check
#   test.cpp (under src/ops)              conformance cases, part of the library: `quire test-ops` runs them
#   bench.cpp (under src/ops)             operator benchmarks, built as programs under bench/
#   main.cpp, cpu_check.cpp               compiled for plain x86-64, so that an old CPU gets a message, not SIGILL
# Everything else is compiled for x86-64-v3 (AVX2, FMA, F16C): the oldest CPU that Quire supports.
# -ffp-contract=off: a compiler free to fuse a*b+c may fuse it in a vector loop and not in its tail; rows would differ.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

add_library(quire_flags INTERFACE)
target_compile_options(quire_flags INTERFACE -Wall -Wextra -Wshadow -Wpointer-arith -Werror -ffp-contract=off
                                             -fno-math-errno)
target_include_directories(quire_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_compile_definitions(quire_flags INTERFACE QUIRE_VERSION="${PROJECT_VERSION}" SPDLOG_FMT_EXTERNAL)
if(QUIRE_SANITIZE)
  target_compile_options(quire_flags INTERFACE -fsanitize=${QUIRE_SANITIZE} -fno-omit-frame-pointer
                                               -fno-sanitize-recover=all)
  target_link_options(quire_flags INTERFACE -fsanitize=${QUIRE_SANITIZE})
endif()
if(QUIRE_FUZZ)
  target_compile_options(quire_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

set(QUIRE_ISA_BASE -march=x86-64-v3)
set(QUIRE_ISA_AVX512 -march=x86-64-v4 -mavx512bf16 -mavx512vbmi -mavx512vnni -mprefer-vector-width=512)
set(QUIRE_ISA_AMX ${QUIRE_ISA_AVX512} -mavx512fp16 -mamx-tile -mamx-bf16 -mamx-int8)

function(quire_set_isa)
  foreach(file ${ARGN})
    if(file MATCHES "_amx\\.cpp$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${QUIRE_ISA_AMX}")
    elseif(file MATCHES "_avx512\\.cpp$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${QUIRE_ISA_AVX512}")
    elseif(NOT file MATCHES "/(main|cpu_check)\\.cpp$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${QUIRE_ISA_BASE}")
    endif()
  endforeach()
endfunction()

function(quire_layer name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/bench\\.cpp$")
  add_library(quire_${name} STATIC ${sources})
  quire_set_isa(${sources})
  target_link_libraries(quire_${name} PUBLIC quire_flags ${ARG_DEPS})
endfunction()

# The program: src/cli, one file per command.
function(quire_program)
  find_package(CLI11 REQUIRED)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cli/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  add_library(quire_cli STATIC ${sources})
  quire_set_isa(${sources})
  target_link_libraries(quire_cli PUBLIC quire_engine CLI11::CLI11)
  add_executable(quire ${CMAKE_SOURCE_DIR}/src/cli/main.cpp)
  target_link_libraries(quire PRIVATE quire_cli)
  if(QUIRE_STATIC)
    target_link_options(quire PRIVATE -static)
  endif()
  set_target_properties(quire PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
endfunction()

# One gtest program per folder of tests/: tests/gguf/*.cpp -> test_gguf, linked to the whole program's libraries.
function(quire_tests)
  if(NOT BUILD_TESTING)
    return()
  endif()
  find_package(GTest REQUIRED)
  include(GoogleTest)
  file(GLOB folders CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/*)
  foreach(folder ${folders})
    file(GLOB sources CONFIGURE_DEPENDS ${folder}/*_test.cpp)
    if(NOT sources)
      continue()
    endif()
    get_filename_component(name ${folder} NAME)
    add_executable(test_${name} ${sources})
    quire_set_isa(${sources})
    target_link_libraries(test_${name} PRIVATE quire_cli GTest::gtest_main GTest::gmock)
    target_include_directories(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_compile_definitions(test_${name} PRIVATE QUIRE_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                                                    QUIRE_PROGRAM="$<TARGET_FILE:quire>")
    gtest_discover_tests(test_${name} PROPERTIES LABELS ${name} TIMEOUT 900 DISCOVERY_TIMEOUT 60)
  endforeach()
endfunction()

# Operator benchmarks: src/ops/<op>/bench.cpp -> bench_<op>, against Google Benchmark.
function(quire_benches)
  if(NOT BUILD_TESTING)
    return()
  endif()
  find_package(benchmark REQUIRED)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/ops/*/bench.cpp)
  foreach(source ${sources})
    get_filename_component(folder ${source} DIRECTORY)
    get_filename_component(name ${folder} NAME)
    add_executable(bench_${name} ${source})
    quire_set_isa(${source})
    target_link_libraries(bench_${name} PRIVATE quire_ops benchmark::benchmark)
  endforeach()
endfunction()

# libFuzzer targets: tests/fuzz/fuzz_<name>.cpp -> fuzz_<name>.
function(quire_fuzzers)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_*.cpp)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    quire_set_isa(${source})
    target_link_libraries(${name} PRIVATE quire_model)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  endforeach()
endfunction()
