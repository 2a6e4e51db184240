#include <stdlib.h>
#include <stdio.h>

#include "actor.h"

static CUresult async(struct line *line)
{
    return CU(cuMemAllocAsync)(place(line->name), line->one, NULL);
}

static CUresult waited(struct line *line)
{
    (void)line;
    return CU(cuStreamSynchronize)(NULL);
}

static CUresult freeasync(struct line *line)
{
    CUresult result = CU(cuMemFreeAsync)(*place(line->name), NULL);
    return result != CUDA_SUCCESS ? result : waited(line);
}

static CUresult trim(struct line *line)
{
    CUmemoryPool pool;
    (void)line;
    return CU(cuDeviceGetMemPool)(&pool, 0) | CU(cuMemPoolTrimTo)(pool, 0);
}

static CUresult newpool(struct line *line)
{
    CUmemPoolProps how = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                          .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)line->one}};
    return CU(cuMemPoolCreate)((CUmemoryPool *)place(line->name), &how);
}

static CUresult managedpool(struct line *line)
{
    CUmemPoolProps how = {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED, .location = {.type = CU_MEM_LOCATION_TYPE_NONE}};
    return CU(cuMemPoolCreate)((CUmemoryPool *)place(line->name), &how);
}

/* In the first part of the first device. */
static CUresult partpool(struct line *line)
{
    CUmemPoolProps how = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN}};
    return CU(cuMemPoolCreate)((CUmemoryPool *)place(line->name), &how);
}

/* The driver's own. */
static CUresult hostpool(struct line *line)
{
    CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST};
    CUmemoryPool current;
    return CU(cuMemGetDefaultMemPool)((CUmemoryPool *)place(line->name), &host, CU_MEM_ALLOCATION_TYPE_PINNED) |
           CU(cuMemGetMemPool)(&current, &host, CU_MEM_ALLOCATION_TYPE_PINNED);
}

static CUresult setpool(struct line *line)
{
    return CU(cuDeviceSetMemPool)(0, (CUmemoryPool)*place(line->name));
}

static CUresult endpool(struct line *line)
{
    return CU(cuMemPoolDestroy)((CUmemoryPool)*place(line->name));
}

static CUresult from(struct line *line)
{
    char pool[24];
    snprintf(pool, sizeof pool, "%zu", line->two);
    return CU(cuMemAllocFromPoolAsync)(place(line->name), line->one, (CUmemoryPool)*place(pool), NULL);
}

static CUresult fromdefault(struct line *line)
{
    CUmemoryPool pool;
    return CU(cuDeviceGetDefaultMemPool)(&pool, (int)line->two) |
           CU(cuMemAllocFromPoolAsync)(place(line->name), line->one, pool, NULL);
}

static CUresult keep(struct line *line)
{
    cuuint64_t bytes = line->one;
    return CU(cuMemPoolSetAttribute)((CUmemoryPool)*place(line->name), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes);
}

static CUresult reserved(struct line *line)
{
    return CU(cuMemPoolGetAttribute)((CUmemoryPool)*place(line->name), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &line->a);
}

const struct verb pool_verbs[] = {
    {"async", async}, {"freeasync", freeasync}, {"trim", trim},         {"newpool", newpool}, {"endpool", endpool},
    {"from", from},   {"keep", keep},           {"reserved", reserved}, {"wait", waited},
    {"fromdefault", fromdefault}, {"managedpool", managedpool}, {"partpool", partpool}, {"hostpool", hostpool}, {"setpool", setpool}, {NULL, NULL},
};
