/*
 * What a stream has the host do in its turn: functions, and values in the host's memory to write or to wait for. A thread of
 * the driver's own does it, as in a real one; no signal is ever delivered to it.
 */
#include <signal.h>
#include <stdlib.h>

#include "capture.h"
#include "sim_clock.h"

struct task {
    struct task *next;
    CUstream stream;
    CUcontext context;
    uint64_t life;
    uint32_t channel;
    uint64_t position;
    CUhostFn function;
    CUstreamCallback callback;
    void *data;
    volatile uint32_t *word; /* to be written or waited for, when there is no function */
    uint32_t value;
    unsigned int compare; /* CU_STREAM_WAIT_VALUE_*, or WRITES */
};

enum { WRITES = 255 };

#define LOOK_NS 20000ULL

static struct task *tasks; /* oldest first; guarded by lock */
static struct task **last = &tasks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t added = PTHREAD_COND_INITIALIZER;
static pthread_once_t started = PTHREAD_ONCE_INIT;

static int satisfied(const struct task *task)
{
    if (task->word == NULL || task->compare == WRITES) {
        return 1;
    }
    uint32_t now = __atomic_load_n(task->word, __ATOMIC_ACQUIRE);
    switch (task->compare) {
    case CU_STREAM_WAIT_VALUE_EQ:
        return now == task->value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (now & task->value) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
        return ~(now | task->value) != 0;
    default:
        return (int32_t)(now - task->value) >= 0;
    }
}

static int due(const struct task *task)
{
    struct sim_view view = sim_lock(&sim_seat, task->context->device);
    uint64_t head = view.device->contexts[task->context->index].channels[task->channel].head;
    sim_unlock(&view);
    return head == task->position - 1 && satisfied(task);
}

static void perform(const struct task *task)
{
    if (task->word != NULL && task->compare == WRITES) {
        __atomic_store_n(task->word, task->value, __ATOMIC_RELEASE);
    }
    if (task->function != NULL) {
        task->function(task->data);
    }
    if (task->callback != NULL) {
        task->callback(task->stream, CUDA_SUCCESS, task->data);
    }
    sim_release_op(task->context, task->channel, task->position);
}

static int gone(const struct task *task)
{
    return !task->context->alive || task->context->life != task->life;
}

/* Takes the first task that is due, or was lost with its context, out of the list; the caller holds the lock. */
static struct task *take(void)
{
    for (struct task **link = &tasks; *link != NULL; link = &(*link)->next) {
        struct task *task = *link;
        if (gone(task) || due(task)) {
            *link = task->next;
            if (last == &task->next) {
                last = link;
            }
            return task;
        }
    }
    return NULL;
}

static void *serve(void *unused)
{
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (tasks == NULL) {
            pthread_cond_wait(&added, &lock);
        }
        struct task *task = take();
        pthread_mutex_unlock(&lock);
        if (task == NULL) {
            sim_spin_until(sim_real_ns() + LOOK_NS * 4);
            continue;
        }
        if (!gone(task)) {
            perform(task);
        }
        free(task);
    }
    return NULL;
}

static void start_thread(void)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, serve, NULL) == 0) {
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static CUresult queue(CUstream handle, struct task wanted)
{
    CUstream stream = NULL;
    CUresult result = sim_stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct sim_op op = {.kind = OP_HOST};
    if (sim_capturing(stream)) {
        struct sim_op none = {.kind = OP_WAIT}; /* a graph's host work is left out */
        return sim_capture_add(stream, &none);
    }
    struct task *task = malloc(sizeof *task);
    if (task == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *task = wanted;
    task->stream = handle;
    task->context = stream->context;
    task->life = stream->context->life;
    task->channel = stream->channel;
    pthread_once(&started, start_thread);
    result = sim_submit(stream, &op, &task->position);
    if (result != CUDA_SUCCESS) {
        free(task);
        return result;
    }
    pthread_mutex_lock(&lock);
    task->next = NULL;
    *last = task;
    last = &task->next;
    pthread_cond_signal(&added);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static struct task on_word(CUdeviceptr address, uint32_t value, unsigned int compare)
{
    return (struct task){.word = (volatile uint32_t *)(uintptr_t)address, .value = value, .compare = compare};
}

SIM_TWINS(cuLaunchHostFunc, _ptsz, COST_EVENT, (CUstream stream, CUhostFn function, void *data),
          function == NULL ? CUDA_ERROR_INVALID_VALUE
                           : queue(stream, (struct task){.function = function, .data = data}))
SIM_TWINS(cuStreamAddCallback, _ptsz, COST_EVENT,
          (CUstream stream, CUstreamCallback callback, void *data, unsigned int flags),
          ((void)flags, callback == NULL ? CUDA_ERROR_INVALID_VALUE
                                         : queue(stream, (struct task){.callback = callback, .data = data})))
SIM_TWINS(cuStreamWaitValue32_v2, _ptsz, COST_EVENT,
          (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags),
          queue(stream, on_word(address, value, flags & 3)))
SIM_TWINS(cuStreamWriteValue32_v2, _ptsz, COST_EVENT,
          (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags),
          ((void)flags, queue(stream, on_word(address, value, WRITES))))

static CUresult batch(CUstream stream, unsigned int count, const CUstreamBatchMemOpParams *operations)
{
    CUresult result = operations == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    for (unsigned int i = 0; result == CUDA_SUCCESS && i < count; i++) {
        const CUstreamBatchMemOpParams *each = &operations[i];
        if (each->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32) {
            result = queue(stream, on_word(each->waitValue.address, each->waitValue.value, each->waitValue.flags & 3));
        } else if (each->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32) {
            result = queue(stream, on_word(each->writeValue.address, each->writeValue.value, WRITES));
        } else {
            result = CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    return result;
}

SIM_TWINS(cuStreamBatchMemOp_v2, _ptsz, COST_EVENT,
          (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *operations, unsigned int flags),
          ((void)flags, batch(stream, count, operations)))
