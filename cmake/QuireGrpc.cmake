# gRPC and the code that is generated from src/localai/backend.proto, as a target `quire_localai_proto`. There is none,
# and `quire localai` says what is missing, where Debian's packages (scripts/setup.sh) are not installed. A program
# without shared libraries goes without it too: gRPC's some 60 archives would double its size.
set(QUIRE_GRPC_MISSING "")
find_program(PROTOC protoc)
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin)
pkg_check_modules(GRPC QUIET grpc++ protobuf)
if(QUIRE_STATIC)
  set(QUIRE_GRPC_MISSING "gRPC is left out of programs without shared libraries; the preset `release` has it")
elseif(NOT PROTOC OR NOT GRPC_CPP_PLUGIN OR NOT GRPC_FOUND)
  set(QUIRE_GRPC_MISSING "gRPC was not there when this program was built: libgrpc++-dev, libprotobuf-dev, \
protobuf-compiler and protobuf-compiler-grpc (scripts/setup.sh installs them)")
endif()

if(QUIRE_GRPC_MISSING)
  message(STATUS "No `quire localai`: ${QUIRE_GRPC_MISSING}")
else()
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
  target_link_libraries(quire_localai_proto PUBLIC ${GRPC_LINK_LIBRARIES} Threads::Threads)
  if(QUIRE_SANITIZE)
    string(REPLACE ",undefined" "" grpc_sanitize ${QUIRE_SANITIZE})
    target_compile_options(quire_localai_proto PRIVATE -fsanitize=${grpc_sanitize} -fno-omit-frame-pointer)
  endif()
endif()
