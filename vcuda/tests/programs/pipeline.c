/* pipeline.c: one stage of a pipeline of stages. The receive of the next batch is posted before this one is computed, and a
 * peer, here a thread, answers it a while after the stage has sent; what is computed waits for what is received.
 *     pipeline BATCHES
 */
#include "program.h"

#define FORWARD 4
#define ANSWER_US 300 /* from one of the peer's sends to the next, if it has all that it needs */

#define MOST 2048

static uint32_t *received[MOST], *sent[MOST];
static int batches, ended; /* `ended`: atomic */

/* Its kernels run on another GPU: it sends the next batch when it has what this stage made of the one before the last. */
static void *peer(void *unused)
{
    for (int i = 0; i < batches; i++) {
        while (i > 1 && __atomic_load_n(sent[i - 2], __ATOMIC_ACQUIRE) == 0)
            pause_us(20);
        pause_us(ANSWER_US);
        __atomic_store_n(received[i], 1, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&ended, 1, __ATOMIC_RELEASE);
    return unused;
}

static void CUDA_CB send(void *to)
{
    __atomic_store_n((uint32_t *)to, 1, __ATOMIC_RELEASE);
}

int main(int count, char **arguments)
{
    pthread_t thread;
    batches = count > 1 && atoi(arguments[1]) < MOST ? atoi(arguments[1]) : 64;
    begin();
    CUstream computes = stream(CU_STREAM_NON_BLOCKING), receives = stream(CU_STREAM_NON_BLOCKING);
    CUstream sends = stream(CU_STREAM_NON_BLOCKING);
    CUfunction flag = kernel("flag"), work = kernel("spin_us_500");
    CUevent came = event(), made = event();
    for (int i = 0; i < batches; i++) {
        received[i] = word();
        sent[i] = word();
    }
    uint64_t from = now_us();
    pthread_create(&thread, NULL, peer, NULL);
    launch(flag, receives, (void *[]){&received[0]});
    for (int i = 0; i < batches; i++) {
        order(receives, computes, came);
        if (i + 1 < batches)
            launch(flag, receives, (void *[]){&received[i + 1]}); /* posted ahead */
        for (int j = 0; j < FORWARD; j++)
            launch(work, computes, NULL);
        order(computes, sends, made);
        must(CU(cuLaunchHostFunc)(sends, send, sent[i]));
        if (i % 16 == 15)
            wait_for(sends, LONG_US); /* a step ends */
    }
    wait_for(sends, LONG_US);
    uint64_t took = now_us() - from;
    while (__atomic_load_n(&ended, __ATOMIC_ACQUIRE) == 0)
        pause_us(20);
    pthread_join(thread, NULL);
    done(CUDA_SUCCESS, took);
}
