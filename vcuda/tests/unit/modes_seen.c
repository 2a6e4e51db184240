/* modes_seen.c: says in which capture mode the shim makes those of the driver's calls that a capture may forbid, and which calls
 * of the program's come to the driver in another mode than the program's.
 *
 * It is the simulated driver's tool (SIMGPU_TOOL), which is called on the way into each of the driver's functions. The caller is
 * the first beyond the driver on the stack. A call is the shim's own, and not the program's that it hands on, where no function of
 * the shim's on the stack has its name. Each line is printed once.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FRAMES 64
#define LINES 256

void simgpu_called(const char *name);

/* What the driver may refuse while a stream captures, or may wait for a stream in. Allocations, plain frees and modules are not of
 * them: the shim calls those where the program's own call of that kind has just been accepted, in the same mode. */
static const char *const unsafe[] = {"cuEventQuery",   "cuEventElapsedTime", "cuEventSynchronize",  "cuEventCreate",   "cuEventRecord",
                                     "cuEventDestroy", "cuStreamQuery",      "cuStreamSynchronize", "cuCtxSynchronize", "cuMemPoolTrimTo",
                                     "cuPointerGetAttributes"};

static int is_unsafe(const char *name)
{
    for (size_t i = 0; i < sizeof unsafe / sizeof *unsafe; i++)
        if (strncmp(name, unsafe[i], strlen(unsafe[i])) == 0)
            return 1;
    return 0;
}

static void say(const char *name, const char *what)
{
    static const char *said[LINES][2]; /* atomic; both are constants */
    char line[128];
    for (int i = 0; i < LINES; i++) {
        const char *none = NULL;
        if (__atomic_load_n(&said[i][0], __ATOMIC_ACQUIRE) == name && said[i][1] == what)
            return;
        if (__atomic_load_n(&said[i][1], __ATOMIC_ACQUIRE) == NULL &&
            __atomic_compare_exchange_n(&said[i][1], &none, what, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            __atomic_store_n(&said[i][0], name, __ATOMIC_RELEASE);
            break;
        }
    }
    int length = snprintf(line, sizeof line, "%s %s\n", name, what);
    if (write(STDERR_FILENO, line, (size_t)length) != length)
        _exit(4);
}

/* Of this thread. */
static CUstreamCaptureMode mode_now(void)
{
    static __typeof__(cuThreadExchangeStreamCaptureMode) *exchange; /* atomic */
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    __typeof__(exchange) found = __atomic_load_n(&exchange, __ATOMIC_RELAXED);
    if (found == NULL) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *named = dlsym(driver, "cuThreadExchangeStreamCaptureMode");
        memcpy(&found, &named, sizeof found);
        __atomic_store_n(&exchange, found, __ATOMIC_RELAXED);
    }
    found(&mode);
    CUstreamCaptureMode now = mode;
    found(&mode);
    return now;
}

/* Who calls: whether it is the shim, and that for itself. */
static void look(const char *name, int *is_shim, int *is_own)
{
    void *frames[FRAMES];
    Dl_info info;
    int count = backtrace(frames, FRAMES), caller = 0;
    *is_shim = *is_own = 0;
    for (int i = 1; i < count; i++) {
        if (dladdr(frames[i], &info) == 0 || (caller == 0 && strstr(info.dli_fname, "libcuda.so") != NULL))
            continue;
        if (strstr(info.dli_fname, "modes_seen") != NULL)
            continue;
        int shims = strstr(info.dli_fname, "libvcuda") != NULL;
        if (caller++ == 0)
            *is_shim = *is_own = shims;
        if (shims && info.dli_sname != NULL && strcmp(info.dli_sname, name) == 0)
            *is_own = 0;
    }
}

void simgpu_called(const char *name)
{
    int is_shim, is_own;
    if (strncmp(name, "cuInit", 6) == 0 || strncmp(name, "cuGet", 5) == 0 || strncmp(name, "cuThread", 8) == 0)
        return;
    look(name, &is_shim, &is_own);
    if (is_own && is_unsafe(name))
        say(name, mode_now() == CU_STREAM_CAPTURE_MODE_RELAXED ? "relaxed" : "not relaxed");
    else if (!is_own && mode_now() != CU_STREAM_CAPTURE_MODE_GLOBAL)
        say(name, is_shim ? "handed on in another mode" : "in another mode");
}
