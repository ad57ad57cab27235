# Cross-compiles for 64-bit ARM under Linux with Debian's compiler and libraries (scripts/setup.sh --aarch64). What is
# built runs here by an emulator of all levels; -cpu cortex-a76 has dotprod alone, cortex-a53 neither.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# -R: 16 GiB of addresses. Of all that was ever mapped the emulator keeps a table, and workspaces reserve 64 GiB each.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -R 0x400000000 -cpu max)
# Not the packages of the machine that compiles.
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)
# For the preset `cuda-aarch64`, nvcc of x86-64 with its headers, which are the same, and NVIDIA's runtime for ARM
# (scripts/fetch_cudart_aarch64.py).
set(CMAKE_CUDA_HOST_COMPILER aarch64-linux-gnu-g++)
set(QUIRE_CUDART ${CMAKE_CURRENT_LIST_DIR}/../third_party/cudart-aarch64)
set(CMAKE_CUDA_FLAGS_INIT "--target-directory=x86_64-linux -L${QUIRE_CUDART}")
set(CUDA_cudart_static_LIBRARY ${QUIRE_CUDART}/libcudart_static.a CACHE FILEPATH "CUDA's runtime for ARM")
