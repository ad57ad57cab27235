// fmt's library, from its headers: for programs without shared libraries (QUIRE_STATIC).
#include <fmt/format-inl.h>
