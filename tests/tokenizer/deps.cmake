# The oracle of the pre-tokenizers; only this test program links it.
pkg_check_modules(PCRE2 REQUIRED libpcre2-32)
target_link_libraries(test_tokenizer PRIVATE ${PCRE2_LINK_LIBRARIES})
