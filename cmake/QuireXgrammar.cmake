# XGrammar, which turns schemas and grammars into masks over the vocabulary, as a target `xgrammar` of ours. There is
# none, and constrained output is refused, where its sources were not fetched (scripts/setup.sh) and none is installed.
set(QUIRE_XGRAMMAR "${CMAKE_SOURCE_DIR}/third_party/xgrammar" CACHE PATH
    "XGrammar with cmake/xgrammar.patch: its sources, or where it is installed; empty: none")

if(EXISTS "${QUIRE_XGRAMMAR}/cpp/grammar_compiler.cc")
  # Its own CMakeLists.txt asks for -Werror, link-time optimisation and Python.
  file(GLOB_RECURSE xgrammar_sources ${QUIRE_XGRAMMAR}/cpp/*.cc)
  list(FILTER xgrammar_sources EXCLUDE REGEX "/tvm_ffi/")
  quire_batch(xgrammar_sources xgrammar ${QUIRE_XGRAMMAR}/cpp 5)
  add_library(xgrammar STATIC ${xgrammar_sources})
  target_include_directories(xgrammar PRIVATE ${QUIRE_XGRAMMAR}/cpp)
  target_include_directories(xgrammar SYSTEM PUBLIC ${QUIRE_XGRAMMAR}/include ${QUIRE_XGRAMMAR}/3rdparty/picojson
                                                    ${QUIRE_XGRAMMAR}/3rdparty/dlpack/include)
  target_compile_definitions(xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0
                                              XGRAMMAR_LOG_CUSTOMIZE=1)  # constraint/xgrammar.cpp hears what it logs
  target_compile_options(xgrammar PRIVATE -w)
  set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17)
  target_link_libraries(xgrammar PUBLIC Threads::Threads)
  if(QUIRE_SANITIZE)
    string(REPLACE ",undefined" "" xgrammar_sanitize ${QUIRE_SANITIZE})  # what it does there is not ours to judge
    target_compile_options(xgrammar PRIVATE -fsanitize=${xgrammar_sanitize} -fno-omit-frame-pointer)
  endif()
elseif(EXISTS "${QUIRE_XGRAMMAR}/include/xgrammar/xgrammar.h")
  if(NOT EXISTS "${QUIRE_XGRAMMAR}/include/xgrammar/work_limit.h")
    message(FATAL_ERROR "QUIRE_XGRAMMAR: ${QUIRE_XGRAMMAR} holds an XGrammar without cmake/xgrammar.patch, which bounds "
                        "what compiling a grammar may take")
  endif()
  find_library(XGRAMMAR_LIBRARY xgrammar HINTS ${QUIRE_XGRAMMAR}/lib NO_DEFAULT_PATH REQUIRED)
  add_library(xgrammar STATIC IMPORTED)
  set_target_properties(xgrammar PROPERTIES IMPORTED_LOCATION ${XGRAMMAR_LIBRARY}
                                            INTERFACE_INCLUDE_DIRECTORIES ${QUIRE_XGRAMMAR}/include)
else()
  message(STATUS "No XGrammar in '${QUIRE_XGRAMMAR}' (scripts/setup.sh fetches it): requests for constrained output "
                 "will be refused")
endif()
