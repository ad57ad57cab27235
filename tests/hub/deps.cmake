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
# Beside huggingface_hub itself.
quire_python_check(huggingface_hub tests/hub/huggingface_hub_test.py VENV hub TIMEOUT 300 ARGS $<TARGET_FILE:fake_hub>)
