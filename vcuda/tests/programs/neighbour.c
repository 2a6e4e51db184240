/* neighbour.c: keeps the GPU busy until it is killed, some milliseconds ahead. Writes "ready" behind its first kernel. */
#include "program.h"

int main(void)
{
    begin();
    CUstream works = stream(CU_STREAM_NON_BLOCKING);
    CUfunction work = kernel("spin_ms_1");
    launch(work, works, NULL);
    wait_for(works, LONG_US);
    puts("ready");
    fflush(stdout);
    for (;;) {
        for (int i = 0; i < 4; i++)
            launch(work, works, NULL);
        wait_for(works, LONG_US);
    }
}
