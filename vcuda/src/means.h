/* means.h: whether a call failed for what the process lacks now and may have again. */
#ifndef VCUDA_MEANS_H
#define VCUDA_MEANS_H

#include <errno.h>
#include <stdbool.h>

/* Descriptors or memory: a program that has used up either is refused only until it has some. */
static inline bool lacks_means(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM;
}

#endif
