/* ended_before_the_pause.c: prints the microseconds of a pause of the helper that was asked to end before. */
#include <stdio.h>

#include "clock.h"
#include "wakeup.h"

int main(void)
{
    wakeup_begin();
    wakeup_end();
    uint64_t began = clock_ns();
    wakeup_wait(900000000);
    printf("%llu\n", (unsigned long long)(clock_ns() - began) / 1000);
    return 0;
}
