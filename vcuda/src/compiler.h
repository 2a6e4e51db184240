/* compiler.h: hints for the compiler about functions and branches. */
#ifndef VCUDA_COMPILER_H
#define VCUDA_COMPILER_H

#define EXPORT __attribute__((visibility("default")))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#endif
