# The oracles of the pre-tokenizers and of NFC; only this test program links PCRE2.
pkg_check_modules(PCRE2 REQUIRED libpcre2-32)
target_link_libraries(test_tokenizer PRIVATE ${PCRE2_LINK_LIBRARIES} ${UTF8PROC_LINK_LIBRARIES})
