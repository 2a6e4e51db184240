#include "time/captures.h"

#include <pthread.h>
#include <stdlib.h>

/* Streams that the program let capture; `captures_lock` guards the list. */
static pthread_mutex_t captures_lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture {
    CUstream stream;
    CUcontext context;
    struct capture *next;
} *captures;
static uint32_t capture_count; /* of the list, read without the lock; atomic */

void captures_begin(CUstream stream, CUcontext context)
{
    struct capture *ours = malloc(sizeof *ours);
    if (ours == NULL)
        return;
    pthread_mutex_lock(&captures_lock);
    *ours = (struct capture){stream, context, captures};
    captures = ours;
    __atomic_add_fetch(&capture_count, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&captures_lock);
}

/* Under the lock. */
static void take_out(struct capture **at)
{
    struct capture *gone = *at;
    *at = gone->next;
    free(gone);
    __atomic_sub_fetch(&capture_count, 1, __ATOMIC_RELEASE);
}

void captures_end(CUstream stream)
{
    pthread_mutex_lock(&captures_lock);
    for (struct capture **at = &captures; *at != NULL; at = &(*at)->next)
        if ((*at)->stream == stream) {
            take_out(at);
            break;
        }
    pthread_mutex_unlock(&captures_lock);
}

void captures_context_ended(CUcontext context)
{
    pthread_mutex_lock(&captures_lock);
    for (struct capture **at = &captures; *at != NULL;)
        if ((*at)->context == context)
            take_out(at);
        else
            at = &(*at)->next;
    pthread_mutex_unlock(&captures_lock);
}

void captures_begin_anew(void)
{
    pthread_mutex_init(&captures_lock, NULL);
    captures = NULL;
    __atomic_store_n(&capture_count, 0, __ATOMIC_RELEASE);
}

bool captures_any(void)
{
    return __atomic_load_n(&capture_count, __ATOMIC_ACQUIRE) != 0;
}

/* Also a stream of which no hook knows may capture: it waited for an event of one that does. */
bool captures_into(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return REAL(cuStreamIsCapturing) != NULL &&
           (REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE);
}
