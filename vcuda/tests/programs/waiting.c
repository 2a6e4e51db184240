/* waiting.c: correct programs whose kernels wait for others that are launched later.
 *
 *     waiting legacy           two short kernels on the legacy stream; then on a blocking stream one that waits for one which
 *                              another blocking stream is given 20 ms later
 *     waiting ahead ROUNDS     a kernel waits on one stream until 30 short ones on another are done
 *     waiting pairs COUNT      pairs of kernels on two streams that wait for each other
 *     waiting warm COUNT       the same after one kernel of 10 ms
 *     waiting first            the first launch, while 16 other streams wait for the host
 *     waiting exit             a thread that has launched ends while this one captures in the strictest mode
 *     waiting free             plain memory is freed in the order of a stream that waits for the host, and
 *                              the driver refuses to destroy the primary context meanwhile
 *     waiting grow             memory that would pass the limit is asked for in such a stream; prints the answer
 *     waiting full pool        a thread allocates in the order of a stream whose queue is full and waits for the host, which comes
 *                              when this one has allocated, too
 *     waiting full graph       the same with graphs that allocate
 *     waiting deep COUNT       so many kernels behind a host function that goes on once they are all launched, by this thread; then
 *                              the same with kernels of known length, and on the thread's own default stream
 *     waiting deep COUNT KERNEL  the same while this kernel runs in another stream
 *     waiting held MS KERNEL   this kernel behind a host function that takes so long
 *     waiting late MS          the same of a kernel whose length is known, and of another stream's short one half way through
 *     waiting chain MS         the same of a short kernel, and of another stream's that comes after it
 *     waiting among MS         the same of a short kernel, and of more of another stream's than are admitted at one time
 *     waiting within MS CALL   a short kernel, then a wait of so long by this call, then another, all admitted at one time
 *     waiting bursts MS        two short kernels, each with a function of the host behind it that takes so long, and a third
 *     waiting crowded COUNT    so many short kernels, each behind a wait for another stream's event, which comes once they are all
 *                              launched, by this thread
 *     waiting beside KERNEL    this kernel while another stream waits for the host, which never comes
 *     waiting after KERNEL     this kernel, and in a stream that waits for its end as many of 1 ms as may be put there meanwhile;
 *                              prints how many instead of the microseconds
 *     waiting midway COUNT     the same as deep behind a kernel of 5 ms that was launched before the host function
 *     waiting green ROUNDS     a green context is made current for each launch, and is current to no other thread
 *     waiting fills ROUNDS     600 MiB are filled, and copied on the device
 *     waiting overlap ROUNDS   on two streams a kernel of 5 ms each, on a quarter of the GPU
 *     waiting collectives ROUNDS  on each of two GPUs a kernel of 1 ms and then one that waits for the other's
 *
 *     waiting rank GPU ROUNDS  the same on one GPU, beside another process that does so on the other
 *
 * Prints the CUresult and the microseconds of the longest round (overlap, collectives, rank: of all), or of the first launch.
 */
#include "program.h"

static CUcontext context;

static void pause_ms(long ms)
{
    pause_us(ms * 1000);
}

static uint64_t legacy(void)
{
    CUstream one = stream(CU_STREAM_DEFAULT), other = stream(CU_STREAM_DEFAULT);
    CUfunction shortest = kernel("spin_us_10"), meets = kernel("meet_1_2");
    launch(shortest, NULL, NULL);
    launch(shortest, NULL, NULL);
    launch(meets, one, NULL);
    pause_ms(20);
    uint64_t before = now_us();
    launch(meets, other, NULL);
    wait_for(one, LONG_US);
    return now_us() - before;
}

static uint64_t ahead(int rounds)
{
    CUstream waits = stream(CU_STREAM_NON_BLOCKING), works = stream(CU_STREAM_NON_BLOCKING);
    CUfunction flag = kernel("flag"), work = kernel("spin_us_100");
    uint64_t most = 0;
    for (int round = 0; round < rounds; round++) {
        uint32_t *done = word();
        uint64_t before = now_us();
        launch(flag, waits, (void *[]){&done});
        for (int i = 0; i < 30; i++)
            launch(work, works, NULL);
        wait_for(works, LONG_US);
        __atomic_store_n(done, 1, __ATOMIC_RELEASE);
        wait_for(waits, LONG_US);
        uint64_t took = now_us() - before;
        most = took > most ? took : most;
    }
    return most;
}

static uint64_t pairs(int count)
{
    CUstream one = stream(CU_STREAM_NON_BLOCKING), other = stream(CU_STREAM_NON_BLOCKING);
    uint64_t most = 0;
    for (int i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "meet_%d_2", i);
        CUfunction meets = kernel(name);
        uint64_t before = now_us();
        launch(meets, one, NULL);
        launch(meets, other, NULL);
        wait_for(one, LONG_US);
        wait_for(other, LONG_US);
        uint64_t took = now_us() - before;
        most = took > most ? took : most;
    }
    return most;
}

static uint64_t warm(int count)
{
    CUstream one = stream(CU_STREAM_NON_BLOCKING);
    launch(kernel("spin_ms_10"), one, NULL);
    wait_for(one, LONG_US);
    pause_ms(5);
    return pairs(count);
}

static int go; /* atomic */

static void CUDA_CB waits_for_go(void *unused)
{
    (void)unused;
    while (__atomic_load_n(&go, __ATOMIC_ACQUIRE) == 0)
        nanosleep(&(struct timespec){0, 100000}, NULL);
}

static uint64_t first(void)
{
    CUfunction work = kernel("spin_us_10");
    CUstream ours = stream(CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 16; i++)
        must(CU(cuLaunchHostFunc)(stream(CU_STREAM_NON_BLOCKING), waits_for_go, NULL));
    uint64_t before = now_us();
    launch(work, ours, NULL);
    uint64_t took = now_us() - before;
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    return took;
}

/* What must not wait for a stream that waits for the host is let go after so long, and has failed. */
static void *gives_up(void *unused)
{
    (void)unused;
    sleep(60);
    __atomic_store_n(&go, 2, __ATOMIC_RELEASE);
    return NULL;
}

static CUstream held_stream(void)
{
    CUstream held = stream(CU_STREAM_NON_BLOCKING);
    pthread_t thread;
    pthread_create(&thread, NULL, gives_up, NULL);
    must(CU(cuLaunchHostFunc)(held, waits_for_go, NULL));
    return held;
}

/* CUDA_ERROR_TIMEOUT where only giving up has let the program go on. */
static void let_go(CUstream held)
{
    int before = __atomic_exchange_n(&go, 1, __ATOMIC_ACQ_REL);
    must(CU(cuStreamSynchronize)(held));
    must(before == 0 ? CUDA_SUCCESS : CUDA_ERROR_TIMEOUT);
}

/* Stops after each step: the test then reads in the ledger whether the memory is there. */
static void say(const char *what)
{
    char answer[8];
    puts(what);
    fflush(stdout);
    if (fgets(answer, sizeof answer, stdin) == NULL)
        exit(1);
}

static uint64_t freed_in_order(void)
{
    CUdeviceptr large, small;
    must(CU(cuMemAlloc_v2)(&large, 64 << 20));
    must(CU(cuMemAlloc_v2)(&small, 1000));
    CUstream held = held_stream();
    must(CU(cuMemFreeAsync)(large, held));
    must(CU(cuMemFreeAsync)(small, held));
    CUresult refused = CU(cuCtxDestroy_v2)(context);
    must(refused == CUDA_ERROR_INVALID_CONTEXT ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
    say("held");
    let_go(held);
    say("freed");
    return 0;
}

static uint64_t grown_past_the_limit(void)
{
    CUdeviceptr large, small, pooled;
    must(CU(cuMemAllocAsync)(&small, 120 << 20, NULL));
    must(CU(cuMemAlloc_v2)(&large, 522 << 20));
    CUstream held = held_stream();
    CUresult result = CU(cuMemAllocAsync)(&pooled, 10 << 20, held);
    let_go(held);
    say(result == CUDA_ERROR_OUT_OF_MEMORY ? "refused" : "granted");
    return 0;
}

/* A GPU's queues hold about a thousand operations, and a call into a full one comes back when there is room. */
#define NEARLY_FULL 900
#define ALLOCATIONS 130
#define ALLOCATED ((size_t)2 << 20)

static CUgraphExec allocating(CUfunction work)
{
    CUgraph graph;
    CUgraphExec made;
    CUdeviceptr pooled;
    CUstream captured = stream(CU_STREAM_NON_BLOCKING);
    must(CU(cuStreamBeginCapture_v2)(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    must(CU(cuMemAllocAsync)(&pooled, ALLOCATED, captured));
    launch(work, captured, NULL);
    must(CU(cuMemFreeAsync)(pooled, captured));
    must(CU(cuStreamEndCapture)(captured, &graph));
    must(CU(cuGraphInstantiateWithFlags)(&made, graph, 0));
    must(CU(cuStreamDestroy_v2)(captured));
    return made;
}

struct full {
    CUfunction work;
    CUstream stream;
    CUgraphExec graphs[ALLOCATIONS]; /* NULL: a pool's memory is allocated */
    int calls;                       /* that have come back; atomic */
};

static void allocate_in_order(CUgraphExec graph, CUstream in)
{
    CUdeviceptr pooled;
    must(graph != NULL ? CU(cuGraphLaunch)(graph, in) : CU(cuMemAllocAsync)(&pooled, ALLOCATED, in));
}

static void *allocates_until_the_stream_is_full(void *argument)
{
    struct full *full = argument;
    must(CU(cuCtxPushCurrent_v2)(context));
    must(CU(cuLaunchHostFunc)(full->stream, waits_for_go, NULL));
    for (int i = 0; i < NEARLY_FULL; i++)
        launch(full->work, full->stream, NULL);
    for (int i = 0; i < ALLOCATIONS; i++) {
        allocate_in_order(full->graphs[i], full->stream);
        __atomic_add_fetch(&full->calls, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static uint64_t allocated_beside_a_full_stream(bool graphs)
{
    struct full full = {.work = kernel("spin_us_1"), .stream = stream(CU_STREAM_NON_BLOCKING)};
    CUstream other = stream(CU_STREAM_NON_BLOCKING);
    CUgraphExec graph = graphs ? allocating(full.work) : NULL;
    pthread_t thread;
    for (int i = 0; i < ALLOCATIONS; i++)
        full.graphs[i] = graphs ? allocating(full.work) : NULL;
    pthread_create(&thread, NULL, allocates_until_the_stream_is_full, &full);
    for (int before = -1, calls = 0; calls == 0 || calls != before;) { /* until it stands still, in a call */
        before = calls;
        pause_ms(20);
        calls = __atomic_load_n(&full.calls, __ATOMIC_ACQUIRE);
    }
    uint64_t before = now_us();
    allocate_in_order(graph, other);
    uint64_t took = now_us() - before;
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    must(CU(cuStreamSynchronize)(full.stream));
    return took;
}

static uint64_t launched_before_the_host_goes_on(int count, bool midway)
{
    CUfunction work = kernel("spin_us_1");
    CUstream streams[] = {stream(CU_STREAM_NON_BLOCKING), stream(CU_STREAM_NON_BLOCKING), CU_STREAM_PER_THREAD};
    uint64_t longest = 0;
    for (int i = 0; i < 3; i++) {
        uint64_t before = now_us();
        __atomic_store_n(&go, 0, __ATOMIC_RELEASE);
        if (midway)
            launch(kernel("spin_ms_5"), streams[i], NULL);
        must(CU(cuLaunchHostFunc)(streams[i], waits_for_go, NULL));
        for (int j = 0; j < count; j++)
            launch(work, streams[i], NULL);
        __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
        must(CU(cuStreamSynchronize)(streams[i]));
        uint64_t took = now_us() - before;
        longest = took > longest ? took : longest;
        work = kernel("spin_us_600");
        launch(work, streams[i], NULL);
        must(CU(cuStreamSynchronize)(streams[i]));
    }
    return longest;
}

static uint64_t deep(int count, const char *beside)
{
    if (beside != NULL)
        launch(kernel(beside), stream(CU_STREAM_NON_BLOCKING), NULL);
    pause_ms(beside != NULL ? 20 : 0);
    return launched_before_the_host_goes_on(count, false);
}

static void CUDA_CB takes_its_time(void *ms)
{
    pause_ms((long)(intptr_t)ms);
}

static uint64_t held_by_the_host(int ms, const char *name)
{
    CUstream waits = stream(CU_STREAM_NON_BLOCKING);
    CUfunction work = kernel(name);
    uint64_t before = now_us();
    must(CU(cuLaunchHostFunc)(waits, takes_its_time, (void *)(intptr_t)ms));
    launch(work, waits, NULL);
    must(CU(cuStreamSynchronize)(waits));
    return now_us() - before;
}

static uint64_t late(int ms)
{
    CUstream waits = stream(CU_STREAM_NON_BLOCKING), works = stream(CU_STREAM_NON_BLOCKING);
    CUfunction work = kernel("spin_us_10");
    for (int i = 0; i < 100; i++)
        launch(work, waits, NULL);
    must(CU(cuStreamSynchronize)(waits));
    pause_ms(20); /* what comes now is measured by itself */
    uint64_t before = now_us();
    must(CU(cuLaunchHostFunc)(waits, takes_its_time, (void *)(intptr_t)ms));
    launch(work, waits, NULL);
    pause_ms(ms / 2);
    launch(work, works, NULL);
    must(CU(cuStreamSynchronize)(works));
    must(CU(cuStreamSynchronize)(waits));
    return now_us() - before;
}

static uint64_t chain(int ms)
{
    CUstream waits = stream(CU_STREAM_NON_BLOCKING), follows = stream(CU_STREAM_NON_BLOCKING);
    CUfunction work = kernel("spin_us_10");
    uint64_t before = now_us();
    must(CU(cuLaunchHostFunc)(waits, takes_its_time, (void *)(intptr_t)ms));
    launch(work, waits, NULL);
    order(waits, follows, event());
    launch(work, follows, NULL);
    must(CU(cuStreamSynchronize)(follows));
    return now_us() - before;
}

#define MORE_THAN_A_BATCH 300

static uint64_t among(int ms)
{
    CUstream waits = stream(CU_STREAM_NON_BLOCKING), works = stream(CU_STREAM_NON_BLOCKING);
    CUfunction work = kernel("spin_us_10");
    for (int i = 0; i < 100; i++)
        launch(work, waits, NULL);
    must(CU(cuStreamSynchronize)(waits));
    pause_ms(20);
    launch(work, waits, NULL); /* it is measured by itself: the next one is not */
    must(CU(cuStreamSynchronize)(waits));
    uint64_t before = now_us();
    must(CU(cuLaunchHostFunc)(waits, takes_its_time, (void *)(intptr_t)ms));
    launch(work, waits, NULL);
    for (int i = 0; i < MORE_THAN_A_BATCH; i++)
        launch(work, works, NULL);
    must(CU(cuStreamSynchronize)(works));
    must(CU(cuStreamSynchronize)(waits));
    return now_us() - before;
}

static void CUDA_CB calls_back(CUstream in, CUresult result, void *ms)
{
    (void)in;
    must(result);
    pause_ms((long)(intptr_t)ms);
}

struct later {
    uint32_t *word;
    int ms;
};

static void CUDA_CB sets_later(void *argument)
{
    const struct later *later = argument;
    pause_ms(later->ms);
    __atomic_store_n(later->word, 1, __ATOMIC_RELEASE);
}

/* In the stream, for a function of the host, or for another stream's. */
static void wait_in(CUstream waits, int ms, const char *call)
{
    static struct later later;
    void *function = function_named(call);
    if (strncmp(call, "cuLaunchHostFunc", 16) == 0) {
        must(((__typeof__(cuLaunchHostFunc) *)function)(waits, takes_its_time, (void *)(intptr_t)ms));
        return;
    }
    if (strncmp(call, "cuStreamAddCallback", 19) == 0) {
        must(((__typeof__(cuStreamAddCallback) *)function)(waits, calls_back, (void *)(intptr_t)ms, 0));
        return;
    }
    CUstream other = stream(CU_STREAM_NON_BLOCKING);
    CUevent between = event();
    later = (struct later){word(), ms};
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)later.word;
    CUstreamBatchMemOpParams operation = {
        .waitValue = {
            .operation = CU_STREAM_MEM_OP_WAIT_VALUE_32, .address = address, .value = 1, .flags = CU_STREAM_WAIT_VALUE_EQ}};
    must(CU(cuLaunchHostFunc)(other, sets_later, &later));
    must(CU(cuEventRecord)(between, other));
    if (strncmp(call, "cuStreamWaitEvent", 17) == 0)
        must(((__typeof__(cuStreamWaitEvent) *)function)(waits, between, 0));
    else if (strncmp(call, "cuStreamWaitValue32", 19) == 0)
        must(((__typeof__(cuStreamWaitValue32) *)function)(waits, address, 1, CU_STREAM_WAIT_VALUE_EQ));
    else
        must(((__typeof__(cuStreamBatchMemOp) *)function)(waits, 1, &operation, 0));
}

/* The length of its kernels is known, and the next launch is not measured by itself. */
static void warm_up(CUstream works, CUfunction work)
{
    for (int i = 0; i < 100; i++)
        launch(work, works, NULL);
    must(CU(cuStreamSynchronize)(works));
    pause_ms(20);
    launch(work, works, NULL); /* it is measured by itself */
    must(CU(cuStreamSynchronize)(works));
}

static uint64_t within(int ms, const char *call)
{
    CUstream waits = stream(CU_STREAM_NON_BLOCKING);
    CUfunction work = kernel("spin_us_10");
    warm_up(waits, work);
    uint64_t before = now_us();
    launch(work, waits, NULL);
    wait_in(waits, ms, call);
    launch(work, waits, NULL);
    must(CU(cuStreamSynchronize)(waits));
    return now_us() - before;
}

static uint64_t bursts(int ms)
{
    CUstream waits = stream(CU_STREAM_NON_BLOCKING);
    CUfunction work = kernel("spin_us_10");
    warm_up(waits, work);
    uint64_t before = now_us();
    for (int i = 0; i < 2; i++) {
        launch(work, waits, NULL);
        must(CU(cuLaunchHostFunc)(waits, takes_its_time, (void *)(intptr_t)ms));
    }
    launch(work, waits, NULL);
    must(CU(cuStreamSynchronize)(waits));
    return now_us() - before;
}

static uint64_t crowded(int count)
{
    CUstream waits = stream(CU_STREAM_NON_BLOCKING), held = stream(CU_STREAM_NON_BLOCKING);
    CUfunction work = kernel("spin_us_10");
    CUevent between = event();
    warm_up(waits, work);
    uint64_t before = now_us();
    must(CU(cuLaunchHostFunc)(held, waits_for_go, NULL));
    must(CU(cuEventRecord)(between, held));
    for (int i = 0; i < count; i++) {
        must(CU(cuStreamWaitEvent)(waits, between, 0));
        launch(work, waits, NULL);
        pause_us(200); /* as a program that computes something for each */
    }
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    must(CU(cuStreamSynchronize)(waits));
    return now_us() - before;
}

static uint64_t beside_a_held_stream(const char *name)
{
    CUstream waits = stream(CU_STREAM_NON_BLOCKING), works = stream(CU_STREAM_NON_BLOCKING);
    CUfunction work = kernel(name);
    uint64_t before = now_us();
    must(CU(cuLaunchHostFunc)(waits, waits_for_go, NULL));
    launch(kernel("spin_us_10"), waits, NULL);
    pause_ms(20);
    launch(work, works, NULL);
    must(CU(cuStreamSynchronize)(works));
    return now_us() - before;
}

/* Counts the launches that came back while the kernel in `first` went on: it looks after each, however late it gets to run. */
static uint64_t launched_until_the_end_of(CUstream first, CUfunction work, CUstream follows)
{
    uint64_t launched = 0;
    CUresult result;
    launch(work, follows, NULL);
    for (; (result = CU(cuStreamQuery)(first)) == CUDA_ERROR_NOT_READY; launched++)
        launch(work, follows, NULL);
    must(result);
    return launched;
}

static uint64_t launched_after(const char *name)
{
    CUstream first = stream(CU_STREAM_NON_BLOCKING), follows = stream(CU_STREAM_NON_BLOCKING);
    CUfunction short_one = kernel("spin_ms_1"), work = kernel(name);
    for (int i = 0; i < 20; i++)
        launch(short_one, follows, NULL);
    must(CU(cuStreamSynchronize)(follows));
    launch(work, first, NULL);
    order(first, follows, event());
    uint64_t launched = launched_until_the_end_of(first, short_one, follows);
    must(CU(cuStreamSynchronize)(follows));
    return launched;
}

static void *launches_and_ends(void *function)
{
    must(CU(cuCtxPushCurrent_v2)(context));
    CUstream own = stream(CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 20; i++)
        launch(function, own, NULL);
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&go, __ATOMIC_ACQUIRE) == 1)
        nanosleep(&(struct timespec){0, 20000}, NULL);
    return NULL;
}

static uint64_t thread_exit(void)
{
    CUfunction work = kernel("spin_us_10");
    CUstream captured = stream(CU_STREAM_NON_BLOCKING);
    CUgraph graph;
    pthread_t thread;
    uint64_t before = now_us();
    for (int round = 0; round < 5; round++) {
        __atomic_store_n(&go, 0, __ATOMIC_RELEASE);
        pthread_create(&thread, NULL, launches_and_ends, work);
        while (__atomic_load_n(&go, __ATOMIC_ACQUIRE) == 0)
            nanosleep(&(struct timespec){0, 20000}, NULL);
        must(CU(cuStreamBeginCapture_v2)(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
        __atomic_store_n(&go, 2, __ATOMIC_RELEASE);
        pthread_join(thread, NULL);
        launch(work, captured, NULL);
        must(CU(cuStreamEndCapture)(captured, &graph));
    }
    return now_us() - before;
}

static uint64_t green(int rounds)
{
    CUgreenCtx made;
    CUcontext part, popped;
    CUfunction work = kernel("spin_us_100");
    must(CU(cuGreenCtxCreate)(&made, NULL, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    must(CU(cuCtxFromGreenCtx)(&part, made));
    must(CU(cuCtxPushCurrent_v2)(part));
    CUstream works = stream(CU_STREAM_NON_BLOCKING);
    must(CU(cuCtxPopCurrent_v2)(&popped));
    uint64_t before = now_us();
    for (int i = 0; i < rounds; i++) {
        must(CU(cuCtxPushCurrent_v2)(part));
        launch(work, works, NULL);
        must(CU(cuCtxPopCurrent_v2)(&popped));
        nanosleep(&(struct timespec){0, 200000}, NULL);
    }
    wait_for(works, LONG_US);
    return now_us() - before;
}

static uint64_t fills(int rounds)
{
    CUdeviceptr memory;
    CUstream works = stream(CU_STREAM_NON_BLOCKING);
    must(CU(cuMemAlloc_v2)(&memory, 600 << 20));
    uint64_t before = now_us();
    for (int i = 0; i < rounds; i++) {
        must(CU(cuMemsetD8Async)(memory, 0, 600 << 20, works));
        must(CU(cuMemcpyDtoDAsync_v2)(memory, memory + (300 << 20), 300 << 20, works));
    }
    wait_for(works, LONG_US);
    return now_us() - before;
}

static uint64_t overlap(int rounds)
{
    CUstream one = stream(CU_STREAM_NON_BLOCKING), other = stream(CU_STREAM_NON_BLOCKING);
    CUfunction work = kernel("spin_us_5000_w25");
    uint64_t before = now_us();
    for (int i = 0; i < rounds; i++) {
        launch(work, one, NULL);
        launch(work, other, NULL);
    }
    wait_for(one, LONG_US);
    wait_for(other, LONG_US);
    return now_us() - before;
}

static uint64_t collectives(int rounds)
{
    CUcontext contexts[2];
    CUstream streams[2];
    CUfunction works[2], meets[2];
    for (int i = 0; i < 2; i++) {
        must(CU(cuDevicePrimaryCtxRetain)(&contexts[i], i));
        must(CU(cuCtxPushCurrent_v2)(contexts[i]));
        streams[i] = stream(CU_STREAM_NON_BLOCKING);
        works[i] = kernel("spin_ms_1");
        meets[i] = kernel("meet_1_2");
    }
    uint64_t before = now_us();
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < 2; i++) {
            must(CU(cuCtxSetCurrent)(contexts[i]));
            launch(works[i], streams[i], NULL);
            launch(meets[i], streams[i], NULL);
        }
        /* Each is asked in turn: time passes on a simulated GPU only when somebody asks about that one. */
        for (int done = 0; done != 2;) {
            done = 0;
            for (int i = 0; i < 2; i++) {
                must(CU(cuCtxSetCurrent)(contexts[i]));
                done += CU(cuStreamQuery)(streams[i]) == CUDA_SUCCESS;
            }
            nanosleep(&(struct timespec){0, 20000}, NULL);
        }
    }
    return now_us() - before;
}

static uint64_t rank(int gpu, int rounds)
{
    CUcontext own;
    must(CU(cuDevicePrimaryCtxRetain)(&own, gpu));
    must(CU(cuCtxPushCurrent_v2)(own));
    CUstream works = stream(CU_STREAM_NON_BLOCKING);
    CUfunction work = kernel("spin_ms_1"), meets = kernel("meet_1_2");
    uint64_t before = now_us();
    for (int round = 0; round < rounds; round++) {
        launch(work, works, NULL);
        launch(meets, works, NULL);
        wait_for(works, LONG_US);
    }
    return now_us() - before;
}

int main(int count, char **arguments)
{
    const char *what = count > 1 ? arguments[1] : "";
    int number = count > 2 ? atoi(arguments[2]) : 0;
    uint64_t took = 0;
    context = begin();
    if (strcmp(what, "legacy") == 0)
        took = legacy();
    else if (strcmp(what, "ahead") == 0)
        took = ahead(number);
    else if (strcmp(what, "pairs") == 0)
        took = pairs(number);
    else if (strcmp(what, "warm") == 0)
        took = warm(number);
    else if (strcmp(what, "first") == 0)
        took = first();
    else if (strcmp(what, "exit") == 0)
        took = thread_exit();
    else if (strcmp(what, "free") == 0)
        took = freed_in_order();
    else if (strcmp(what, "grow") == 0)
        took = grown_past_the_limit();
    else if (strcmp(what, "full") == 0)
        took = allocated_beside_a_full_stream(count > 2 && strcmp(arguments[2], "graph") == 0);
    else if (strcmp(what, "deep") == 0)
        took = deep(number, count > 3 ? arguments[3] : NULL);
    else if (strcmp(what, "held") == 0)
        took = held_by_the_host(number, count > 3 ? arguments[3] : "spin_us_10");
    else if (strcmp(what, "late") == 0)
        took = late(number);
    else if (strcmp(what, "chain") == 0)
        took = chain(number);
    else if (strcmp(what, "among") == 0)
        took = among(number);
    else if (strcmp(what, "within") == 0)
        took = within(number, count > 3 ? arguments[3] : "cuLaunchHostFunc");
    else if (strcmp(what, "bursts") == 0)
        took = bursts(number);
    else if (strcmp(what, "crowded") == 0)
        took = crowded(number);
    else if (strcmp(what, "beside") == 0 && count > 2)
        took = beside_a_held_stream(arguments[2]);
    else if (strcmp(what, "after") == 0 && count > 2)
        took = launched_after(arguments[2]);
    else if (strcmp(what, "midway") == 0)
        took = launched_before_the_host_goes_on(number, true);
    else if (strcmp(what, "green") == 0)
        took = green(number);
    else if (strcmp(what, "fills") == 0)
        took = fills(number);
    else if (strcmp(what, "overlap") == 0)
        took = overlap(number);
    else if (strcmp(what, "collectives") == 0)
        took = collectives(number);
    else if (strcmp(what, "rank") == 0)
        took = rank(number, count > 3 ? atoi(arguments[3]) : 1);
    else
        return 2;
    done(CUDA_SUCCESS, took);
}
