// SPDX-License-Identifier: Apache-2.0
//
// Tells the compiler that these functions have vector forms: glibc's libmvec, which the linker finds by itself beside
// libm. They are within 4 units in the last place. Include it before anything else.
#pragma once

#include <features.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define MIXGRAD_VECTOR_FORM(name)                                    \
  __attribute__((simd("notinbranch"))) double name(double) noexcept; \
  __attribute__((simd("notinbranch"))) float name##f(float) noexcept;
extern "C" {
MIXGRAD_VECTOR_FORM(sin)
MIXGRAD_VECTOR_FORM(cos)
MIXGRAD_VECTOR_FORM(exp)
MIXGRAD_VECTOR_FORM(log)
#if __GLIBC_PREREQ(2, 35)
__attribute__((simd("notinbranch"))) double hypot(double, double) noexcept;
__attribute__((simd("notinbranch"))) float hypotf(float, float) noexcept;
MIXGRAD_VECTOR_FORM(sinh)
MIXGRAD_VECTOR_FORM(cosh)
#endif
__attribute__((simd("notinbranch"))) double pow(double, double) noexcept;
__attribute__((simd("notinbranch"))) float powf(float, float) noexcept;
}
#undef MIXGRAD_VECTOR_FORM
#endif
