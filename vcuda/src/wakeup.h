/* wakeup.h: the helper's long pause, which others end. */
#ifndef VCUDA_WAKEUP_H
#define VCUDA_WAKEUP_H

#include <stdint.h>

/* The helper has something to look at: ends its long pause, or keeps it from the next one once. Cheap while it is at work. */
void wakeup_send(void);
/* The same, and no pause begins any more: a helper that is on its way into one would miss the request to end. */
void wakeup_end(void);
/* By the helper: for so long (less than a second), or until it is woken; not at all where it was sent something since the last. */
void wakeup_wait(uint64_t ns);
/* Before the first pause of a process, and in the child of a fork. */
void wakeup_begin(void);

#endif
