/* driver.h: the real driver's functions, under the names of hooks.def. */
#ifndef VCUDA_DRIVER_H
#define VCUDA_DRIVER_H

#define __CUDA_API_VERSION_INTERNAL /* keeps cuda.h from renaming what we define */
#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

#include "compiler.h"

struct driver {
#define HOOK(name) __typeof__(name) *name;
#define USE(name) __typeof__(name) *name;
#include "hooks/hooks.def"
};

/* Written once, before any hook can be reached (driver_bind), and only read afterwards. */
extern struct driver driver;

/* The driver's own function; NULL where the installed driver lacks it. */
#define REAL(name) (driver.name)

/* Finds the driver: the library behind `handle`, or libcuda.so.1 as the loader finds it when handle is NULL.
 * Safe to call from several threads; the first success counts. Returns whether a driver is bound. */
bool driver_bind(void *handle);

/* Every hook reached by linking rather than by dlsym must bind first. One load once bound. */
extern _Bool driver_bound;
static inline bool driver_ready(void)
{
    return likely(__atomic_load_n(&driver_bound, __ATOMIC_ACQUIRE)) || driver_bind(NULL);
}

/* Whether the address lies in the driver that is bound, and what that driver has under a name; NULL if nothing. */
bool driver_owns(const void *address);
void *driver_symbol(const char *name);

/* The hook that stands for the driver's function at this address; NULL if there is none. */
void *driver_hook_at(const void *address);

/* The hook exported under this name; NULL if there is none. */
void *hook_named(const char *name);

#endif
