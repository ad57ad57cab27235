# For comparisons with other programs' towers.
add_executable(tower_tool ${CMAKE_SOURCE_DIR}/tests/vision/tower_tool.cpp)
quire_set_isa(${CMAKE_SOURCE_DIR}/tests/vision/tower_tool.cpp)
target_link_libraries(tower_tool PRIVATE quire_engine)
quire_python_check(llama_cpp_pictures tests/vision/llama_cpp_test.py VENV llama-cpp TIMEOUT 300
                   ARGS $<TARGET_FILE:tower_tool>)
