/* captures.h: which streams of this process capture, as far as its calls show. */
#ifndef VCUDA_CAPTURES_H
#define VCUDA_CAPTURES_H

#include "loading/driver.h"

/* `context`: the stream's; NULL: unknown. */
void captures_begin(CUstream stream, CUcontext context);
/* Nothing where the stream does not capture. */
void captures_end(CUstream stream);
/* The context has ended, and its streams with it. */
void captures_context_ended(CUcontext context);

/* Whether some stream captures; whether this one does, by the driver's word. */
bool captures_any(void);
bool captures_into(CUstream stream);

/* In the child of a fork, which has one thread: forgets all. */
void captures_begin_anew(void);

#endif
