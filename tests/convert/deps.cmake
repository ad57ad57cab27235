add_dependencies(test_convert quire)
