// What this build checks besides: tests that would take minutes then do less, and those that provoke a fault stay out.
#pragma once

namespace quire::test {

#ifdef __SANITIZE_THREAD__
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
inline constexpr bool kSlow = kThreadSanitizer || kAddressSanitizer;

}  // namespace quire::test
