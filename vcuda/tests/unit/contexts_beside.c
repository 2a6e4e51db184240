/* contexts_beside.c: a process has a context of its own, and beside it three that are parts of one primary context, and all want work.
 *
 *     contexts_beside    prints how many contexts each of the first two shares the GPU with, in the eyes of the shim
 */
#include <stdio.h>

#include "clock.h"
#include "state.h"
#include "time/spans.h"

#define PRIMARY ((CUcontext)0x9000)

int main(void)
{
    struct queue *queues[4];
    if (!active())
        return 2;
    for (uintptr_t i = 0; i < 4; i++) {
        queues[i] = spans_queue((CUcontext)(0x1000 * (i + 1)), 0);
        queues[i]->for_all = i == 0 ? queues[i]->context : PRIMARY;
        queues[i]->wanted_ns = clock_ns();
    }
    for (int i = 0; i < 2; i++)
        printf("%u\n", spans_contexts_beside(queues[i], 1));
    return 0;
}
