/* capturing.c: each token is captured by a thread of its own that launches, captures in the strictest mode and ends, while others
 * do the same by turns, as Ollama's runners come and go.      capturing TOKENS
 */
#include "program.h"

static CUcontext context;
static CUfunction work;
static struct crew crew;

static void *token(void *unused)
{
    CUgraph graph;
    CUgraphExec executable;
    must(CU(cuCtxPushCurrent_v2)(context));
    CUstream own = stream(CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 10; i++)
        launch(work, own, NULL); /* the prompt */
    must(CU(cuStreamBeginCapture_v2)(own, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < 10; i++)
        launch(work, own, NULL);
    must(CU(cuStreamEndCapture)(own, &graph));
    must(CU(cuGraphInstantiateWithFlags)(&executable, graph, 0));
    must(CU(cuGraphLaunch)(executable, own));
    wait_for(own, LONG_US);
    must(CU(cuGraphExecDestroy)(executable));
    must(CU(cuGraphDestroy)(graph));
    must(CU(cuStreamDestroy_v2)(own));
    __atomic_store_n(&crew.ended, 1, __ATOMIC_RELEASE);
    return unused;
}

int main(int count, char **arguments)
{
    int tokens = count > 1 ? atoi(arguments[1]) : 20;
    context = begin();
    work = kernel("spin_us_100");
    uint64_t from = now_us();
    for (int i = 0; i < tokens; i++) {
        crew = (struct crew){.count = 1};
        pthread_create(&crew.threads[0], NULL, token, NULL);
        crew_wait(&crew);
    }
    done(CUDA_SUCCESS, now_us() - from);
}
