# Under sanitizers the program is not built: those of its tests that run it are left out (scripts/sanitize.sh).
if(NOT QUIRE_SANITIZE)
  add_dependencies(test_convert quire)
endif()
