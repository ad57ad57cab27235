# One static library per folder of src/. Files are found by name, and the name says how they are built:
#   *_avxvnni.cpp, *_avx512.cpp, *_amx.cpp  kernels of x86-64, compiled for that instruction set, called behind a CPU check
#   *_dotprod.cpp, *_i8mm.cpp, *_bfmmla.cpp  the same of ARM
#   *_x86.cpp, *_arm.cpp                  what else one kind of CPU has
#   *_avx2.cpp                            kernels in AVX2's intrinsics, which core/m256.h has for ARM as well
#   test.cpp (under src/ops)              conformance cases, part of the library: `quire test-ops` runs them
#   bench.cpp (under src/ops)             operator benchmarks, built as programs under bench/
#   *.cu.in, instances.cmake              CUDA sources that are made of templates: QuireInstances.cmake
#   main.cpp, cpu_check.cpp               compiled for plain x86-64, so that an old CPU gets a message, not SIGILL; a
#                                         layer's main.cpp is that of a program, and no part of the library
# Everything else is compiled for the oldest CPU that Quire supports: x86-64-v3 (AVX2, FMA, F16C), Armv8.0-A.
# Layers that compute nothing (OPTIMISE 1), but for files that do (BUT, a regular expression), are compiled with -O1:
# what -O3 takes longer to compile them is never won back.
# Most files are compiled several at a time: QuireBatch.cmake.
# -ffp-contract=off: a compiler free to fuse a*b+c may fuse it in a vector loop and not in its tail; rows would differ.

include(QuireBatch)
include(QuireInstances)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(QUIRE_ON_ARM ON)
  set(QUIRE_ISA_BASE -march=armv8-a)
  set(QUIRE_OTHER_CPUS "_(avxvnni|avx512|amx|x86)\\.cpp$")
else()
  set(QUIRE_ON_ARM OFF)
  set(QUIRE_ISA_BASE -march=x86-64-v3)
  set(QUIRE_OTHER_CPUS "_(dotprod|i8mm|bfmmla|arm)\\.cpp$")
endif()

add_library(quire_flags INTERFACE)
set(QUIRE_CXX_FLAGS -Wall -Wextra -Wshadow -Wpointer-arith -Werror -Wno-missing-field-initializers
                    -ffp-contract=off -fno-math-errno)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND QUIRE_CXX_FLAGS -Wno-subobject-linkage)  # takes the files of a batch for headers
  list(APPEND QUIRE_CXX_FLAGS -Wno-restrict -Wno-stringop-overflow)  # false in GCC 12 (PR105329, fmt)
endif()
if(QUIRE_ON_ARM)  # char as on x86-64, where everything is tested; nothing about calls that GCC 9 made in another way
  set(QUIRE_ARM_FLAGS -fsigned-char -Wno-psabi)
  list(APPEND QUIRE_CXX_FLAGS ${QUIRE_ARM_FLAGS})
endif()
target_compile_options(quire_flags INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${QUIRE_CXX_FLAGS}>")
if(QUIRE_CUDA)
  # Kernels use intrinsics for what must not be contracted; --fmad stays on.
  set(QUIRE_CUDA_FLAGS --Werror=all-warnings -diag-suppress=2810,20208 --expt-relaxed-constexpr)
  foreach(flag -Wall -Wextra -Wno-missing-field-initializers ${QUIRE_ISA_BASE} ${QUIRE_ARM_FLAGS})
    list(APPEND QUIRE_CUDA_FLAGS -Xcompiler=${flag})
  endforeach()
  if(QUIRE_ON_ARM)  # nvcc's own parsers, for the host's code and the device's
    list(APPEND QUIRE_CUDA_FLAGS -Xcudafe=--signed_chars)
  endif()
  target_compile_options(quire_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${QUIRE_CUDA_FLAGS}>")
  # fmt 9 takes nvcc for a compiler without constexpr functions, and then fails in its own.
  target_compile_definitions(quire_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>")
  # C++ files include nothing of CUDA: they are compiled with the flags of the other presets, and ccache has them.
  target_link_libraries(quire_flags INTERFACE $<LINK_ONLY:CUDA::cudart_static>)
  target_include_directories(quire_flags SYSTEM INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:${CUDAToolkit_INCLUDE_DIRS}>)
endif()
target_include_directories(quire_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_compile_definitions(quire_flags INTERFACE QUIRE_VERSION="${PROJECT_VERSION}" SPDLOG_FMT_EXTERNAL)
if(QUIRE_SANITIZE)
  target_compile_options(quire_flags INTERFACE -fsanitize=${QUIRE_SANITIZE} -fno-omit-frame-pointer
                                               -fno-sanitize-recover=all)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC's manual: the sanitizers' instrumentation makes this warning report code that is right (std::variant here).
    target_compile_options(quire_flags INTERFACE -Wno-maybe-uninitialized)
  endif()
  if(QUIRE_SANITIZE MATCHES "thread")
    # ThreadSanitizer knows no fences, and locks order what they stand for.
    target_compile_definitions(quire_flags INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
  endif()
  target_link_options(quire_flags INTERFACE -fsanitize=${QUIRE_SANITIZE})
endif()
if(QUIRE_FUZZ)
  target_compile_options(quire_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

set(QUIRE_ISA_AVXVNNI ${QUIRE_ISA_BASE} -mavxvnni)
set(QUIRE_ISA_AVX512 -march=x86-64-v4 -mavx512bf16 -mavx512vbmi -mavx512vbmi2 -mavx512vnni -mprefer-vector-width=512)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND QUIRE_ISA_AVX512 -Wno-maybe-uninitialized -Wno-uninitialized)  # GCC 12 reports its own intrinsics (PR105593)
endif()
set(QUIRE_ISA_AMX ${QUIRE_ISA_AVX512} -mavx512fp16 -mamx-tile -mamx-bf16 -mamx-int8)

set(QUIRE_ISA_DOTPROD -march=armv8.2-a+dotprod)
set(QUIRE_ISA_I8MM -march=armv8.2-a+dotprod+i8mm)
set(QUIRE_ISA_BFMMLA -march=armv8.2-a+dotprod+i8mm+bf16)

function(quire_set_isa)
  foreach(file ${ARGN})
    if(file MATCHES "_amx\\.cpp$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${QUIRE_ISA_AMX}")
    elseif(file MATCHES "_avxvnni\\.cpp$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${QUIRE_ISA_AVXVNNI}")
    elseif(file MATCHES "_avx512\\.cpp$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${QUIRE_ISA_AVX512}")
    elseif(file MATCHES "_dotprod\\.cpp$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${QUIRE_ISA_DOTPROD}")
    elseif(file MATCHES "_i8mm\\.cpp$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${QUIRE_ISA_I8MM}")
    elseif(file MATCHES "_bfmmla\\.cpp$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${QUIRE_ISA_BFMMLA}")
    elseif(NOT file MATCHES "/(main|cpu_check)\\.cpp$")
      set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${QUIRE_ISA_BASE}")
    endif()
  endforeach()
endfunction()

function(quire_layer name)
  cmake_parse_arguments(ARG "ALONE" "OPTIMISE;BUT" "DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/ops/[^/]+/bench\\.cpp$|/src/[^/]+/main\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "${QUIRE_OTHER_CPUS}")
  if(QUIRE_CUDA)
    file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cu)
    quire_cuda_instances(${name} cuda_sources)
    list(FILTER sources EXCLUDE REGEX "/none\\.cpp$")  # stands in for them otherwise
  endif()
  set(computing "")
  if(ARG_BUT)
    set(computing ${sources})
    list(FILTER computing INCLUDE REGEX ${ARG_BUT})
    list(FILTER sources EXCLUDE REGEX ${ARG_BUT})
  endif()
  if(NOT ARG_ALONE)
    quire_batch(sources ${name} ${CMAKE_SOURCE_DIR}/src 8)
    quire_batch(computing ${name}_computing ${CMAKE_SOURCE_DIR}/src 8)
  endif()
  add_library(quire_${name} STATIC ${sources} ${computing} ${cuda_sources})
  quire_set_isa(${sources} ${computing})
  target_link_libraries(quire_${name} PUBLIC quire_flags ${ARG_DEPS})
  if(ARG_BUT)
    set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS "$<$<CONFIG:Release>:-O${ARG_OPTIMISE}>")
  elseif(ARG_OPTIMISE)
    target_compile_options(quire_${name} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O${ARG_OPTIMISE}>)
  endif()
endfunction()

# A text file, with the parts beside it that it names, becomes part of a layer, as a constant of its namespace:
# src/server/page/page.html -> kChatPage.
function(quire_embed layer namespace text name)
  get_filename_component(folder ${CMAKE_SOURCE_DIR}/${text} DIRECTORY)
  file(GLOB parts CONFIGURE_DEPENDS ${folder}/*.css ${folder}/*.js)
  set(source ${CMAKE_BINARY_DIR}/embedded/${name}.cpp)
  add_custom_command(OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} -DTEXT=${CMAKE_SOURCE_DIR}/${text} -DNAME=${name} -DNAMESPACE=${namespace}
            -DSOURCE=${source} -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${CMAKE_SOURCE_DIR}/${text} ${parts} ${CMAKE_SOURCE_DIR}/cmake/embed.cmake VERBATIM)
  target_sources(quire_${layer} PRIVATE ${source})
  quire_set_isa(${source})
endfunction()

# A program of a layer's commands: src/cli/main.cpp -> build/release/quire.
function(quire_program name layer)
  add_executable(${name} ${CMAKE_SOURCE_DIR}/src/${layer}/main.cpp)
  target_link_libraries(${name} PRIVATE quire_${layer})
  if(QUIRE_STATIC AND QUIRE_CUDA)
    # The driver is opened at run time: glibc stays shared.
    target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc)
  elseif(QUIRE_STATIC)
    target_link_options(${name} PRIVATE -static)
  endif()
  if(QUIRE_SYSROOT)
    target_link_libraries(${name} PRIVATE quire_older_glibc)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
endfunction()

# One gtest program per folder of tests/: tests/gguf/*_test.cpp -> test_gguf. It links all layers but the commands: they
# take long to compile, the more so under sanitizers. A folder's deps.cmake, if it has one, says what else its program
# needs, and how ctest cuts it (`shards`).
function(quire_tests)
  if(NOT BUILD_TESTING)
    return()
  endif()
  find_package(GTest REQUIRED)
  # What tests of several folders share: tests/support/*.cpp.
  file(GLOB support CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/support/*.cpp)
  list(FILTER support EXCLUDE REGEX "/main\\.cpp$")
  add_library(test_support STATIC ${support})
  quire_set_isa(${support})
  target_link_libraries(test_support PUBLIC quire_eval quire_convert quire_vision GTest::gtest)
  target_include_directories(test_support PUBLIC ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(test_support PRIVATE QUIRE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_library(test_main OBJECT ${CMAKE_SOURCE_DIR}/tests/support/main.cpp)
  target_link_libraries(test_main PUBLIC quire_core GTest::gmock)
  file(GLOB folders CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/*)
  foreach(folder ${folders})
    file(GLOB sources CONFIGURE_DEPENDS ${folder}/*_test.cpp)
    if(NOT sources)
      continue()
    endif()
    get_filename_component(name ${folder} NAME)
    if(name STREQUAL "localai" AND NOT TARGET quire_localai_proto)
      continue()
    endif()
    if(QUIRE_SANITIZE AND NOT QUIRE_SANITIZE_ALL AND EXISTS ${folder}/sanitized.cmake)
      include(${folder}/sanitized.cmake)
      list(TRANSFORM sanitized REPLACE "(.+)" "${folder}/\\1_test.cpp" OUTPUT_VARIABLE sources)
    endif()
    # Small programs whose files have vocabularies of their own are compiled file by file.
    if(NOT name MATCHES "^(cache|constraint|jinja|ops|quant|sampling)$")
      quire_batch(sources test_${name} ${CMAKE_SOURCE_DIR}/tests 6)
    endif()
    add_executable(test_${name} ${sources})
    quire_set_isa(${sources})
    target_link_libraries(test_${name} PRIVATE test_main test_support GTest::gmock)
    target_compile_definitions(test_${name} PRIVATE QUIRE_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                                                    QUIRE_PROGRAM="$<TARGET_FILE:quire>")
    # Tests spend their time in the libraries: what -O3 takes longer to compile them is not won back.
    target_compile_options(test_${name} PRIVATE -O1)
    set(shards "")
    include(${folder}/deps.cmake OPTIONAL)
    quire_add_tests(${name} ${shards})
  endforeach()
endfunction()

# A test program as one test of ctest: models and reference logits that its tests share are loaded and computed once per
# process. What is too long for that is cut: each further argument NAME=FILTER makes a test <program>.NAME of what the
# GoogleTest filter matches, and <program>.rest holds what none of them does, so that no test can fall out. The label is
# the program's: `ctest -L golden`. Of tests that pass, only what they print is shown.
function(quire_add_tests name)
  set(tests "")
  set(others "")
  foreach(shard ${ARGN})
    if(NOT shard MATCHES "^([a-z0-9_]+)=(.+)$")
      message(FATAL_ERROR "tests/${name}/deps.cmake: a shard is NAME=FILTER, not '${shard}'")
    endif()
    add_test(NAME ${name}.${CMAKE_MATCH_1} COMMAND test_${name} --gtest_brief=1 --gtest_filter=${CMAKE_MATCH_2})
    list(APPEND tests ${name}.${CMAKE_MATCH_1})
    list(APPEND others ${CMAKE_MATCH_2})
  endforeach()
  if(tests)
    set_tests_properties(${tests} PROPERTIES COST 100)  # long: begun first
  endif()
  if(others)
    string(REPLACE ";" ":" others "${others}")
    add_test(NAME ${name}.rest COMMAND test_${name} --gtest_brief=1 --gtest_filter=-${others})
    list(APPEND tests ${name}.rest)
  else()
    add_test(NAME ${name} COMMAND test_${name} --gtest_brief=1)
    list(APPEND tests ${name})
  endif()
  set_tests_properties(${tests} PROPERTIES LABELS ${name} TIMEOUT 1800)
endfunction()

# The one program that needs a GPU: tests/cuda/*.cu -> cuda_checks. Not part of ctest: the machine that builds has no
# GPU. `cuda_checks` runs the tests, `cuda_checks --bench` the benchmarks.
function(quire_cuda_checks)
  if(NOT QUIRE_CUDA OR NOT BUILD_TESTING)
    return()
  endif()
  find_package(Python3 COMPONENTS Interpreter REQUIRED)
  add_test(NAME fp4_code COMMAND Python3::Interpreter ${CMAKE_SOURCE_DIR}/tools/check_fp4_code.py
                                 --nvcc ${CMAKE_CUDA_COMPILER})
  set_tests_properties(fp4_code PROPERTIES LABELS style TIMEOUT 600)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/cuda/*.cu)
  if(NOT sources)
    return()
  endif()
  add_executable(cuda_checks ${sources})
  target_link_libraries(cuda_checks PRIVATE test_support GTest::gtest)
  target_include_directories(cuda_checks PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  set_target_properties(cuda_checks PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  target_link_options(cuda_checks PRIVATE -static-libstdc++ -static-libgcc)
endfunction()

# A test in Python: `script` with ARGS, the program first. VENV: the folder build/NAME-venv, where docs/testing.md puts
# what the script imports; the system's Python without it. 77, "something that it needs is not there", is a skip.
function(quire_python_check name script)
  cmake_parse_arguments(PARSE_ARGV 2 check "" "VENV;TIMEOUT" "ARGS")
  if(NOT BUILD_TESTING)
    return()
  endif()
  find_package(Python3 COMPONENTS Interpreter REQUIRED)
  set(python ${CMAKE_SOURCE_DIR}/build/${check_VENV}-venv/bin/python)
  if(NOT check_VENV OR NOT EXISTS ${python})
    set(python ${Python3_EXECUTABLE})
  endif()
  add_test(NAME ${name} COMMAND ${python} ${CMAKE_SOURCE_DIR}/${script} $<TARGET_FILE:quire> ${check_ARGS})
  set_tests_properties(${name} PROPERTIES LABELS ${name} SKIP_RETURN_CODE 77 TIMEOUT ${check_TIMEOUT})
endfunction()

# What the scripts a newcomer runs are made of.
function(quire_script_checks)
  if(NOT BUILD_TESTING)
    return()
  endif()
  add_test(NAME scripts COMMAND ${CMAKE_SOURCE_DIR}/tests/scripts/progress_test.sh)
  set_tests_properties(scripts PROPERTIES LABELS scripts TIMEOUT 60)
  add_test(NAME m256_arm COMMAND ${CMAKE_SOURCE_DIR}/tests/core/m256_arm.sh)
  set_tests_properties(m256_arm PROPERTIES LABELS core TIMEOUT 300 SKIP_RETURN_CODE 77)
endfunction()

# Checks of the sources themselves; `ctest -L style`. The formatting check needs clang-format and a git checkout.
function(quire_style_checks)
  if(NOT BUILD_TESTING)
    return()
  endif()
  find_package(Python3 COMPONENTS Interpreter REQUIRED)
  add_test(NAME style.layers COMMAND Python3::Interpreter ${CMAKE_SOURCE_DIR}/tools/check_layers.py)
  add_test(NAME style.layers_test COMMAND Python3::Interpreter ${CMAKE_SOURCE_DIR}/tools/check_layers_test.py)
  set(tests style.layers style.layers_test)
  find_program(CLANG_FORMAT clang-format)
  if(CLANG_FORMAT AND EXISTS ${CMAKE_SOURCE_DIR}/.git)
    add_test(NAME style.format COMMAND ${CMAKE_COMMAND} -E env CLANG_FORMAT=${CLANG_FORMAT}
                                       ${CMAKE_SOURCE_DIR}/tools/check_format.sh)
    list(APPEND tests style.format)
  endif()
  set_tests_properties(${tests} PROPERTIES LABELS style)
endfunction()

# Operator benchmarks: src/ops/<op>/bench.cpp -> bench_<op>, against Google Benchmark.
function(quire_benches)
  if(NOT BUILD_TESTING OR CMAKE_CROSSCOMPILING)  # an emulator's timings say nothing
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

# What fuzz targets need. What parses hostile bytes stands below the operators, so no kernel is built for them.
function(quire_fuzz_libraries)
  # What the server reads from the network, without the engine behind it.
  file(GLOB protocol CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/server/protocol/*.cpp
       ${CMAKE_SOURCE_DIR}/src/server/tools/*.cpp)
  list(APPEND protocol ${CMAKE_SOURCE_DIR}/src/server/answer_events.cpp ${CMAKE_SOURCE_DIR}/src/server/answer_parser.cpp
       ${CMAKE_SOURCE_DIR}/src/server/random_id.cpp ${CMAKE_SOURCE_DIR}/src/lab/load/url.cpp
       ${CMAKE_SOURCE_DIR}/src/lab/load/workload.cpp ${CMAKE_SOURCE_DIR}/src/ops/sampling/params.cpp)
  quire_batch(protocol fuzz_protocol ${CMAKE_SOURCE_DIR}/src 8)
  add_library(fuzz_protocol STATIC ${protocol})
  quire_set_isa(${protocol})
  target_compile_options(fuzz_protocol PRIVATE $<$<CONFIG:Release>:-O1>)
  target_link_libraries(fuzz_protocol PUBLIC quire_constraint quire_hub Boost::headers)
  # The caches' books, and the files that keep them.
  file(GLOB cache CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cache/*.cpp)
  quire_batch(cache fuzz_cache ${CMAKE_SOURCE_DIR}/src 8)
  add_library(fuzz_cache STATIC ${cache})
  quire_set_isa(${cache})
  target_link_libraries(fuzz_cache PUBLIC quire_core)
endfunction()

# libFuzzer targets: tests/fuzz/fuzz_<name>.cpp -> fuzz_<name>.
function(quire_fuzzers)
  quire_fuzz_libraries()
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_*.cpp)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    quire_set_isa(${source})
    target_link_libraries(${name} PRIVATE fuzz_protocol fuzz_cache quire_convert quire_hub quire_image)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    list(APPEND fuzzers ${name})
  endforeach()
  add_custom_target(fuzzers DEPENDS ${fuzzers})
endfunction()

# All of them in one program, without libFuzzer (tests/fuzz/replay.cpp): the function of each has its target's name.
function(quire_fuzz_replay)
  if(NOT BUILD_TESTING)
    return()
  endif()
  quire_fuzz_libraries()
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_*.cpp)
  set(rows "")
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    set_source_files_properties(${source} PROPERTIES COMPILE_DEFINITIONS LLVMFuzzerTestOneInput=${name})
    string(REGEX REPLACE "^fuzz_" "" name ${name})
    string(APPEND rows "QUIRE_FUZZ_TARGET(${name})\n")
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/fuzz/fuzz_targets.inc CONTENT "${rows}" @ONLY)
  add_executable(test_fuzz ${CMAKE_SOURCE_DIR}/tests/fuzz/replay.cpp ${sources})
  quire_set_isa(${CMAKE_SOURCE_DIR}/tests/fuzz/replay.cpp ${sources})
  target_include_directories(test_fuzz PRIVATE ${CMAKE_BINARY_DIR}/fuzz)
  target_compile_options(test_fuzz PRIVATE -O1)
  target_link_libraries(test_fuzz PRIVATE fuzz_protocol fuzz_cache quire_convert quire_hub quire_image)
  add_test(NAME fuzz COMMAND test_fuzz ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus)
  set_tests_properties(fuzz PROPERTIES LABELS fuzz TIMEOUT 600)
endfunction()
