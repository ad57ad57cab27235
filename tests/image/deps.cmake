target_link_libraries(test_image PRIVATE quire_image quire_hub)
# For comparisons with PIL and transformers themselves.
add_executable(image_tool ${CMAKE_SOURCE_DIR}/tests/image/image_tool.cpp)
quire_set_isa(${CMAKE_SOURCE_DIR}/tests/image/image_tool.cpp)
target_include_directories(image_tool PRIVATE ${CMAKE_SOURCE_DIR}/tests)
target_link_libraries(image_tool PRIVATE quire_image)
quire_python_check(images tests/image/compare_test.py VENV transformers TIMEOUT 900 ARGS $<TARGET_FILE:image_tool>)
