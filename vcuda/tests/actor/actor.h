/* actor.h: what the actor's verbs share. */
#ifndef ACTOR_H
#define ACTOR_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stddef.h>

/* The driver's function, found by dlsym as runtimes find it; another of the same prototype where "as" said so. */
#define CU(name) ((__typeof__(name) *)symbol(#name))
void *symbol(const char *name);

/* Where what is called so is kept: pointer or handle; 0 when it is new. */
CUdeviceptr *place(const char *name);

/* A descriptor of what is open at /proc/PID/fd/NUMBER, -1 where it cannot be had. A device is not opened anew: the real
 * driver knows memory by the very file that it exported. */
int descriptor_at(const char *path);

/* One line of input, and what is answered besides the result. */
struct line {
    char verb[16], name[48], text[256];
    size_t one, two; /* the words after the name as numbers */
    size_t a, b;
};

struct verb {
    const char *name;
    CUresult (*act)(struct line *line);
};

/* The context of "newctx" and its kin. */
extern CUcontext own;

/* Each ends with a verb without a name. */
extern const struct verb context_verbs[], memory_verbs[], pool_verbs[], virtual_verbs[], sharing_verbs[], graph_verbs[],
    form_verbs[], nvml_verbs[];

#endif
