/* ipc_events.c: two processes whose streams wait for each other's kernels by events that both know.
 *
 *     ipc_events ROUNDS        in each round a kernel of the one, and one of the other behind it; neither host waits for the GPU
 *
 * Prints the CUresult and the microseconds that all took.
 */
#include <sys/wait.h>

#include "program.h"

/* The other process: what comes from it, and what goes there. */
struct peer {
    int from, to;
};

static void read_all(int file, void *to, size_t size)
{
    for (size_t got = 0; got < size;) {
        ssize_t more = read(file, (char *)to + got, size - got);
        if (more <= 0)
            done(CUDA_ERROR_UNKNOWN, 0); /* the other one has failed */
        got += (size_t)more;
    }
}

static void write_all(int file, const void *from, size_t size)
{
    if (write(file, from, size) != (ssize_t)size)
        done(CUDA_ERROR_UNKNOWN, 0);
}

/* Gives the other one an event of this one's, and gets one of its. */
static void exchange(const struct peer *peer, CUevent *ours, CUevent *theirs)
{
    CUipcEventHandle handle;
    must(CU(cuEventCreate)(ours, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    must(CU(cuIpcGetEventHandle)(&handle, *ours));
    write_all(peer->to, &handle, sizeof handle);
    read_all(peer->from, &handle, sizeof handle);
    must(CU(cuIpcOpenEventHandle)(theirs, handle));
}

static void play(const struct peer *peer, int rounds, bool first)
{
    CUevent ours, theirs;
    char turn = 0;
    begin();
    CUstream works = stream(CU_STREAM_NON_BLOCKING);
    CUfunction work = kernel("spin_us_500");
    exchange(peer, &ours, &theirs);
    for (int round = 0; round < rounds; round++) {
        if (!first || round != 0) {
            read_all(peer->from, &turn, 1);
            must(CU(cuStreamWaitEvent)(works, theirs, 0));
        }
        launch(work, works, NULL);
        must(CU(cuEventRecord)(ours, works));
        write_all(peer->to, &turn, 1);
    }
    if (first)
        read_all(peer->from, &turn, 1);
    must(CU(cuEventSynchronize)(theirs));
    must(CU(cuEventQuery)(theirs));
    must(CU(cuStreamSynchronize)(works));
    write_all(peer->to, &turn, 1); /* an event that others wait for has to be there */
    read_all(peer->from, &turn, 1);
    must(CU(cuEventDestroy_v2)(theirs));
    must(CU(cuEventDestroy_v2)(ours));
}

int main(int count, char **arguments)
{
    int there[2], back[2], status = 1;
    if (count != 2 || pipe(there) != 0 || pipe(back) != 0)
        return 2;
    uint64_t from = now_us();
    pid_t other = fork(); /* before either makes a call */
    if (other < 0)
        return 3;
    if (other == 0) {
        play(&(struct peer){there[0], back[1]}, atoi(arguments[1]), false);
        _exit(0);
    }
    play(&(struct peer){back[0], there[1]}, atoi(arguments[1]), true);
    waitpid(other, &status, 0);
    done(status == 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN, now_us() - from);
}
