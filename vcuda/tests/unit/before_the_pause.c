/* before_the_pause.c: prints the microseconds of two of the helper's pauses, not the first ones: right before them it was asked to
 * end ("end") or to look again ("send"). */
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "wakeup.h"

static unsigned long pause_us(void)
{
    uint64_t began = clock_ns();
    wakeup_wait(900000000);
    return (unsigned long)((clock_ns() - began) / 1000);
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    wakeup_begin();
    pause_us();
    if (strcmp(arguments[1], "end") == 0)
        wakeup_end();
    else
        wakeup_send();
    unsigned long first = pause_us();
    printf("%lu %lu\n", first, pause_us());
    return 0;
}
