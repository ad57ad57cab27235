# gRPC and the code that is generated from src/localai/backend.proto, as a target `quire_localai_proto`. Where Debian's
# packages (scripts/setup.sh) are not installed there is none, and quire-localai is not built.
find_program(PROTOC protoc)
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin)
pkg_check_modules(GRPC QUIET grpc++ protobuf)
if(NOT PROTOC OR NOT GRPC_CPP_PLUGIN OR NOT GRPC_FOUND)
  message(STATUS "No quire-localai: libgrpc++-dev, libprotobuf-dev, protobuf-compiler and protobuf-compiler-grpc are "
                 "not all installed (scripts/setup.sh installs them)")
  return()
endif()

set(grpc_libraries ${GRPC_LINK_LIBRARIES})
if(QUIRE_STATIC)  # what the shared libraries bring along, the archives do not: some 60 more
  set(grpc_libraries "")
  list(REMOVE_DUPLICATES GRPC_STATIC_LIBRARIES)
  list(REMOVE_ITEM GRPC_STATIC_LIBRARIES ssl crypto dl rt m atomic pthread)  # OpenSSL below, and the system's own
  foreach(library ${GRPC_STATIC_LIBRARIES})
    find_library(GRPC_ARCHIVE_${library} ${library} REQUIRED)
    list(APPEND grpc_libraries ${GRPC_ARCHIVE_${library}})
  endforeach()
  # They need each other in circles.
  set(grpc_libraries -Wl,--start-group ${grpc_libraries} -Wl,--end-group OpenSSL::SSL OpenSSL::Crypto)
endif()

set(proto_folder ${CMAKE_BINARY_DIR}/localai)
set(proto_files ${proto_folder}/backend.pb.cc ${proto_folder}/backend.grpc.pb.cc)
add_custom_command(
  OUTPUT ${proto_files} ${proto_folder}/backend.pb.h ${proto_folder}/backend.grpc.pb.h
  COMMAND ${CMAKE_COMMAND} -E make_directory ${proto_folder}
  COMMAND ${PROTOC} --proto_path=${CMAKE_SOURCE_DIR}/src/localai --cpp_out=${proto_folder} --grpc_out=${proto_folder}
          --plugin=protoc-gen-grpc=${GRPC_CPP_PLUGIN} backend.proto
  DEPENDS ${CMAKE_SOURCE_DIR}/src/localai/backend.proto)
add_library(quire_localai_proto STATIC ${proto_files})
target_compile_options(quire_localai_proto PRIVATE -w)
target_include_directories(quire_localai_proto SYSTEM PUBLIC ${proto_folder} ${GRPC_INCLUDE_DIRS})
target_link_libraries(quire_localai_proto PUBLIC ${grpc_libraries} Threads::Threads)
if(QUIRE_SANITIZE)
  string(REPLACE ",undefined" "" grpc_sanitize ${QUIRE_SANITIZE})
  target_compile_options(quire_localai_proto PRIVATE -fsanitize=${grpc_sanitize} -fno-omit-frame-pointer)
endif()
