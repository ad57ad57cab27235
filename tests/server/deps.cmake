target_link_libraries(test_server PRIVATE quire_server)
add_dependencies(test_server quire quire-lab)
# What many clients are told is compared with what each is told alone: half a minute for each model.
set(shards exactness=*Exactness*)
# GCC 12 takes the empty map of biases within DemoServer::Options for one that is not initialised.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(test_server PRIVATE -Wno-maybe-uninitialized)
endif()
target_link_libraries(test_server PRIVATE fake_hub_server)
