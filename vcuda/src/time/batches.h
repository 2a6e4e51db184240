/* batches.h: the batches of all threads: opened by the pacer, closed when they are used up, go quiet or lose their stream. */
#ifndef VCUDA_BATCHES_H
#define VCUDA_BATCHES_H

#include "pacer.h"

/* Makes this thread's batches known to the others; closes them when it ends. */
void batches_register_thread(void);

/* Ends a batch that is older than `older_ns`: its launches become a span. True if it is left open. */
bool batches_close(struct batch *batch, uint64_t older_ns);
/* Ends those of a queue, so that what was granted and is not used counts no more as in flight. Not those of one launch, which
 * end by themselves, nor those on a thread's own default stream, on which nobody else can record. */
void batches_close_all_of(const struct queue *queue);

/* Whether some stream of this process captures; whether this one does (asked of the driver only while any does). */
bool batches_any_captures(void);
bool batches_capturing(CUstream stream);

#endif
