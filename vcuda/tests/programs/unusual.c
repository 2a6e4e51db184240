/* unusual.c: programs that are correct and do what few do.
 *
 *     unusual last              a thread launches in the last pass over its keys' destructors; then its stream ends
 *     unusual stack             a thread launches, allocates, frees and captures; prints how many bytes of its stack were written
 *                               in place of the time
 *     unusual capture COUNT     a context ends while a stream of it captures; then so many launches in another context
 */
#include "program.h"

static CUcontext context;
static CUfunction work;
static CUstream works;
static pthread_key_t key;
static struct crew crew;

static void *thread_ended(void *argument)
{
    __atomic_add_fetch(&crew.ended, 1, __ATOMIC_RELEASE);
    return argument;
}

/* A destructor that sets its key again is called again, PTHREAD_DESTRUCTOR_ITERATIONS times in all. */
static void launches_at_last(void *passes)
{
    if ((uintptr_t)passes < 4)
        pthread_setspecific(key, (char *)passes + 1);
    else
        launch(work, works, NULL);
}

static void *with_a_key(void *unused)
{
    must(CU(cuCtxPushCurrent_v2)(context));
    launch(work, works, NULL);
    pthread_setspecific(key, (char *)1);
    return thread_ended(unused);
}

/* Its stack is larger than what the C library keeps of stacks of threads that have ended: what lay there is gone with it. */
static void last(void)
{
    pthread_attr_t large;
    must(pthread_attr_init(&large) != 0);
    must(pthread_attr_setstacksize(&large, 256u << 20) != 0);
    launch(work, works, NULL); /* the shim's own key comes before the program's */
    must(pthread_key_create(&key, launches_at_last) != 0);
    crew.count = 1;
    must(pthread_create(&crew.threads[0], &large, with_a_key, NULL) != 0);
    crew_wait(&crew);
    must(CU(cuStreamDestroy_v2)(works));
}

static void *on_its_own_stack(void *unused)
{
    CUdeviceptr memory;
    CUgraph graph;
    size_t free_bytes, total;
    must(CU(cuCtxPushCurrent_v2)(context));
    for (int i = 0; i < 200; i++) {
        launch(work, works, NULL);
        pause_us(500); /* the node writes a new page meanwhile */
    }
    must(CU(cuMemAlloc_v2)(&memory, 4 << 20));
    must(CU(cuMemFree_v2)(memory));
    must(CU(cuMemAllocAsync)(&memory, 4 << 20, works));
    must(CU(cuMemFreeAsync)(memory, works));
    must(CU(cuMemGetInfo_v2)(&free_bytes, &total));
    must(CU(cuStreamBeginCapture_v2)(works, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch(work, works, NULL);
    must(CU(cuStreamEndCapture)(works, &graph));
    must(CU(cuGraphDestroy)(graph));
    must(CU(cuStreamDestroy_v2)(works));
    return thread_ended(unused);
}

#define STACK (256u << 10)
#define UNTOUCHED 0xA5

/* How far down its stack the thread wrote. */
static uint64_t stack(void)
{
    static _Alignas(65536) unsigned char bytes[STACK];
    pthread_attr_t attributes;
    size_t left = 0;
    memset(bytes, UNTOUCHED, sizeof bytes);
    must(pthread_attr_init(&attributes) != 0);
    must(pthread_attr_setstack(&attributes, bytes, sizeof bytes) != 0);
    crew.count = 1;
    must(pthread_create(&crew.threads[0], &attributes, on_its_own_stack, NULL) != 0);
    crew_wait(&crew);
    while (left < sizeof bytes && bytes[left] == UNTOUCHED)
        left++;
    return sizeof bytes - left;
}

static void capture(int count)
{
    CUcontext other;
    must(CU(cuCtxCreate_v2)(&other, 0, 0));
    must(CU(cuStreamBeginCapture_v2)(stream(CU_STREAM_NON_BLOCKING), CU_STREAM_CAPTURE_MODE_RELAXED));
    must(CU(cuCtxDestroy_v2)(other));
    must(CU(cuCtxSetCurrent)(context));
    for (int i = 0; i < count; i++)
        launch(work, works, NULL);
    wait_for(works, LONG_US);
}

int main(int count, char **arguments)
{
    if (count < 2)
        return 2;
    context = begin();
    work = kernel("spin_us_10");
    works = stream(CU_STREAM_NON_BLOCKING);
    uint64_t from = now_us();
    if (strcmp(arguments[1], "last") == 0)
        last();
    else if (strcmp(arguments[1], "stack") == 0)
        done(CUDA_SUCCESS, stack());
    else if (count == 3 && strcmp(arguments[1], "capture") == 0)
        capture(atoi(arguments[2]));
    else
        return 2;
    done(CUDA_SUCCESS, now_us() - from);
}
