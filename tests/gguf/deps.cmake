# How `quire inspect` shows text of a file.
target_link_libraries(test_gguf PRIVATE quire_cli)
