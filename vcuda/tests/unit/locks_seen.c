/* locks_seen.c: says which of the driver's functions the shim calls while it holds a lock of its own.
 *
 * It lies before the C library (LD_PRELOAD), where it counts the locks that the shim holds in each thread, and is the simulated
 * driver's tool (SIMGPU_TOOL), which is called on the way into each of the driver's functions. Robust locks are the ledger's: one
 * of them each process holds for as long as it lives.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ROBUST 16 /* in glibc, of a mutex's kind */

void simgpu_called(const char *name);

static __thread int held __attribute__((tls_model("initial-exec")));

static int is_shims(const void *caller, const pthread_mutex_t *lock)
{
    Dl_info info;
    return (lock->__data.__kind & ROBUST) == 0 && dladdr(caller, &info) != 0 && strstr(info.dli_fname, "libvcuda") != NULL;
}

/* The next of that name, which is the C library's. */
static int (*real(const char *name))(pthread_mutex_t *)
{
    int (*found)(pthread_mutex_t *);
    void *next = dlsym(RTLD_NEXT, name);
    memcpy(&found, &next, sizeof found);
    return found;
}

int pthread_mutex_lock(pthread_mutex_t *lock)
{
    static int (*next)(pthread_mutex_t *);
    if (next == NULL)
        next = real("pthread_mutex_lock");
    int result = next(lock);
    if (result == 0 && is_shims(__builtin_return_address(0), lock))
        held++;
    return result;
}

int pthread_mutex_trylock(pthread_mutex_t *lock)
{
    static int (*next)(pthread_mutex_t *);
    if (next == NULL)
        next = real("pthread_mutex_trylock");
    int result = next(lock);
    if (result == 0 && is_shims(__builtin_return_address(0), lock))
        held++;
    return result;
}

int pthread_mutex_unlock(pthread_mutex_t *lock)
{
    static int (*next)(pthread_mutex_t *);
    if (next == NULL)
        next = real("pthread_mutex_unlock");
    if (is_shims(__builtin_return_address(0), lock))
        held--;
    return next(lock);
}

void simgpu_called(const char *name)
{
    char line[128];
    int length = held != 0 ? snprintf(line, sizeof line, "%s\n", name) : 0;
    if (length > 0 && write(STDERR_FILENO, line, (size_t)length) != length)
        _exit(4);
}
