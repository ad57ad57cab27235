target_link_libraries(test_cli PRIVATE quire_cli quire_lab)
target_compile_definitions(test_cli PRIVATE QUIRE_LAB="$<TARGET_FILE:quire-lab>")
add_dependencies(test_cli quire quire-lab)
