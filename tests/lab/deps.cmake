target_link_libraries(test_lab PRIVATE quire_lab)
target_compile_definitions(test_lab PRIVATE QUIRE_LAB="$<TARGET_FILE:quire-lab>")
add_dependencies(test_lab quire quire-lab)
