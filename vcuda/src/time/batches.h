/* batches.h: the batches of all threads: opened by the pacer, closed when they are used up, go quiet or lose their stream. */
#ifndef VCUDA_BATCHES_H
#define VCUDA_BATCHES_H

#include "time/pacer.h"
#include "time/spans.h"

/* Makes this thread's batches known to the others. When it ends, nobody records their ends: no driver call is made by a
 * thread that ends. */
void batches_register_thread(void);

/* Ends a batch, whose launches become `part`: true where there are any, and the caller then sees to their end. */
bool batches_take(struct batch *batch, struct part *part);
/* Ends a batch that is older than `older_ns` without recording an event. True if it is left open. */
bool batches_let_be(struct batch *batch, uint64_t older_ns);
/* Ends those of a queue, so that what was granted and is not used counts no more as in flight. Not those of one launch, which
 * end by themselves. */
void batches_let_be_all_of(const struct queue *queue);

/* Whether some stream of this process captures; whether this one does. */
bool batches_any_captures(void);
bool batches_capturing(CUstream stream);

#endif
