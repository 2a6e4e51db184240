/* helper.h: the one thread that the shim has in a process with a context. */
#ifndef VCUDA_HELPER_H
#define VCUDA_HELPER_H

/* Starts it in this process if it is not there (after a fork it is not). */
void helper_start(void);

#endif
