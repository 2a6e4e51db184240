/* nvml_library.h: the real NVML's functions, and ours in their place (nvml_hooks.def). */
#ifndef VCUDA_NVML_LIBRARY_H
#define VCUDA_NVML_LIBRARY_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS /* keeps nvml.h from renaming what we define */
#include <nvml.h>
#include <stdbool.h>

struct nvml_library {
#define HOOK(name) __typeof__(name) *name;
#define USE(name) __typeof__(name) *name;
#include "hooks/nvml_hooks.def"
};

/* Written once, before any hook can be reached (nvml_bind). */
extern struct nvml_library nvml_library;
#define NVML(name) (nvml_library.name)

/* As driver_bind and hook_named, for libnvidia-ml.so.1. */
bool nvml_bind(void *handle);
void *nvml_hook_named(const char *name);

/* The real function's own answer unless the shim is active. */
#define NVML_PASS_UNLESS_ACTIVE(name, ...)          \
    do {                                            \
        if (!nvml_bind(NULL) || NVML(name) == NULL) \
            return NVML_ERROR_FUNCTION_NOT_FOUND;   \
        if (!active())                              \
            return NVML(name)(__VA_ARGS__);         \
    } while (0)

/* Index in the config of an NVML device; -1 when it was not given to the container. */
int nvml_device_index(nvmlDevice_t device);

#endif
