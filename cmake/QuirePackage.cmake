# Programs that run on older systems than this one: linked with the glibc of QUIRE_SYSROOT (packaging/sysroot.py), whose
# versions of functions they ask for at run time. Everything else is this system's: compiler, headers, archives. What
# those ask for and the older glibc lacks is in packaging/glibc_compat.c.
if(NOT QUIRE_STATIC OR NOT QUIRE_CUDA)
  message(FATAL_ERROR "QUIRE_SYSROOT is for programs whose only shared library is glibc: presets `cuda`, `package`")
endif()
set(libraries ${QUIRE_SYSROOT}/usr/lib/x86_64-linux-gnu)
if(NOT EXISTS ${libraries}/libc.so)
  message(FATAL_ERROR "${QUIRE_SYSROOT} has no glibc: run packaging/sysroot.py ${QUIRE_SYSROOT}")
endif()
# Compiled here, and first among the archives: glibc's names in it are taken before the sysroot's are looked at.
add_library(quire_older_glibc OBJECT ${CMAKE_SOURCE_DIR}/packaging/glibc_compat.c)
target_compile_options(quire_older_glibc PRIVATE -O2 -Wall -Wextra -Werror)
target_link_options(quire_older_glibc INTERFACE --sysroot=${QUIRE_SYSROOT} -B${libraries} -L${libraries}
                                                -L${QUIRE_SYSROOT}/lib/x86_64-linux-gnu -Wl,--as-needed)
target_link_libraries(quire_older_glibc INTERFACE -lrt -lpthread -ldl)
