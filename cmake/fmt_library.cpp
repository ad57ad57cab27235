// fmt's library, from its headers: for programs without shared libraries (QUIRE_STATIC). The headers only
// declare these two templates to other files.
#include <fmt/format-inl.h>

template fmt::detail::thousands_sep_result<char> fmt::detail::thousands_sep_impl(fmt::detail::locale_ref);
template char fmt::detail::decimal_point_impl(fmt::detail::locale_ref);
