target_link_libraries(test_snapshot PRIVATE quire_lab)
target_compile_definitions(test_snapshot PRIVATE QUIRE_LAB="$<TARGET_FILE:quire-lab>")
add_dependencies(test_snapshot quire quire-lab)
# The page, and what two snapshots differ by.
quire_python_check(snapshot_tools tests/snapshot/tools_test.py TIMEOUT 600)
