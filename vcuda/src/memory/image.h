/* image.h: how much device memory the variables of a module take, as its image says. Pure. */
#ifndef VCUDA_IMAGE_H
#define VCUDA_IMAGE_H

#include <stddef.h>
#include <stdint.h>

#define IMAGE_ENDS_ITSELF SIZE_MAX /* the length of an image in memory: its own headers say it, or a NUL behind text */

/* Bytes of the variables that lie in global memory; of a fat binary those of the image that has most. 0 where the image does
 * not say it: parts of a fat binary that are compressed, and code for the linker. UINT64_MAX: more than a number can say. */
uint64_t image_variables(const void *image, size_t size);

#endif
