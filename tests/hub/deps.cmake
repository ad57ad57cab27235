# The hub of tests: within test_hub, and as a program for tests and measurements that are not in C++.
add_library(fake_hub_server STATIC ${CMAKE_SOURCE_DIR}/tests/hub/fake_hub.cpp)
quire_set_isa(${CMAKE_SOURCE_DIR}/tests/hub/fake_hub.cpp)
target_link_libraries(fake_hub_server PUBLIC quire_hub)
target_include_directories(fake_hub_server PUBLIC ${CMAKE_SOURCE_DIR}/tests)
add_executable(fake_hub ${CMAKE_SOURCE_DIR}/tests/hub/fake_hub_main.cpp)
quire_set_isa(${CMAKE_SOURCE_DIR}/tests/hub/fake_hub_main.cpp)
target_link_libraries(fake_hub PRIVATE fake_hub_server)
target_link_libraries(test_hub PRIVATE fake_hub_server)
add_dependencies(test_hub quire)
# Beside huggingface_hub itself, where docs/testing.md's environment is; 77, "no such library", is a skip.
find_package(Python3 COMPONENTS Interpreter REQUIRED)
set(hub_python ${CMAKE_SOURCE_DIR}/build/hub-venv/bin/python)
if(NOT EXISTS ${hub_python})
  set(hub_python ${Python3_EXECUTABLE})
endif()
add_test(NAME huggingface_hub COMMAND ${hub_python} ${CMAKE_SOURCE_DIR}/tests/hub/huggingface_hub_test.py
                                      $<TARGET_FILE:quire> $<TARGET_FILE:fake_hub>)
set_tests_properties(huggingface_hub PROPERTIES LABELS hub SKIP_RETURN_CODE 77 TIMEOUT 300)
