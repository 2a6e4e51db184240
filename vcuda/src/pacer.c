#include "pacer.h"

void pacer_context_made(int index)
{
    (void)index;
}

void pacer_context_ends(CUcontext context)
{
    (void)context;
}
