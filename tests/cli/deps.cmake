target_link_libraries(test_cli PRIVATE quire_cli)
add_dependencies(test_cli quire)
