/* refusing_driver.c: a driver that refuses every call that the shim stands before (1, "invalid value"), looks at none of its
 * arguments, and remembers them. It answers what the shim asks it for itself: there is one device, and one context, which is current.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define REFUSED 1
#define CONTEXT 16
#define POOL 80
#define ARGUMENTS 12

const long *arguments_of(const char *name);

static int put(long to, uint64_t value, size_t size)
{
    memcpy((void *)to, &value, size);
    return 0;
}

static int is(const char *name, const char *begins)
{
    return strncmp(name, begins, strlen(begins)) == 0;
}

static int answer(const char *name, const long *a)
{
    if (is(name, "cuInit") || is(name, "cuCtxPush") || is(name, "cuThreadExchange"))
        return 0;
    if (is(name, "cuDeviceGetUuid"))
        return memcpy((void *)a[0], "SIMGPU\0\0\0\0\0\0\0\0\0", 16) == NULL;
    if (is(name, "cuDeviceGetCount") || is(name, "cuDeviceGetAttribute"))
        return put(a[0], 1, sizeof(int));
    if (strcmp(name, "cuDeviceGet") == 0 || is(name, "cuCtxGetDevice"))
        return put(a[0], 0, sizeof(int));
    if (is(name, "cuDriverGetVersion"))
        return put(a[0], 13000, sizeof(int));
    if (is(name, "cuCtxGetCurrent") || is(name, "cuCtxPop"))
        return put(a[0], CONTEXT, sizeof(void *));
    if (is(name, "cuStreamGetCtx"))
        return put(a[1], CONTEXT, sizeof(void *));
    if (is(name, "cuStreamIsCapturing"))
        return put(a[1], 0, sizeof(int));
    if (is(name, "cuDevicePrimaryCtxGetState"))
        return put(a[1], 0, sizeof(int)) + put(a[2], 0, sizeof(int));
    if (is(name, "cuDeviceGetMemPool") || is(name, "cuDeviceGetDefaultMemPool"))
        return put(a[0], POOL, sizeof(void *));
    if (is(name, "cuMemPoolGetAttribute"))
        return put(a[2], 0, sizeof(uint64_t));
    return REFUSED;
}

#define CALL(name)                                                                                           \
    static long given_to_##name[ARGUMENTS];                                                                  \
    static int called_##name;                                                                                \
    int name(long, long, long, long, long, long, long, long, long, long, long, long);                        \
    int name(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, long l) \
    {                                                                                                        \
        long given[ARGUMENTS] = {a, b, c, d, e, f, g, h, i, j, k, l};                                        \
        memcpy(given_to_##name, given, sizeof given);                                                        \
        called_##name = 1;                                                                                   \
        return answer(#name, given);                                                                         \
    }
#define HOOK(name) CALL(name)
#define USE(name) CALL(name)
#include "hooks/hooks.def"

/* Of the call's last time, which is forgotten; NULL: it was not called. */
const long *arguments_of(const char *name)
{
#define HOOK(known)                                     \
    if (strcmp(name, #known) == 0 && called_##known) {  \
        called_##known = 0;                             \
        return given_to_##known;                        \
    }
#include "hooks/hooks.def"
    return NULL;
}
