#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "actor.h"

#define SHAREABLE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

/* NAME holds the handle, NAME@ the address. */
static CUdeviceptr *address_of(const char *name)
{
    char address[32];
    snprintf(address, sizeof address, "%s@", name);
    return place(address);
}

static CUresult created(struct line *line, CUmemLocationType where)
{
    CUmemAllocationProp how = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location.type = where, .requestedHandleTypes = SHAREABLE};
    return CU(cuMemCreate)((CUmemGenericAllocationHandle *)place(line->name), line->one, &how, 0);
}

static CUresult create(struct line *line)
{
    return created(line, CU_MEM_LOCATION_TYPE_DEVICE);
}

/* In the first part of the first device. */
static CUresult createpart(struct line *line)
{
    return created(line, CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN);
}

static CUresult createhost(struct line *line)
{
    return created(line, CU_MEM_LOCATION_TYPE_HOST_NUMA);
}

static CUresult drop(struct line *line)
{
    return CU(cuMemRelease)(*place(line->name));
}

static CUresult map(struct line *line)
{
    CUdeviceptr *address = address_of(line->name);
    CUresult result = CU(cuMemAddressReserve)(address, 2 * line->one, 0, 0, 0); /* also for "mapagain" */
    return result != CUDA_SUCCESS ? result : CU(cuMemMap)(*address, line->one, 0, *place(line->name), 0);
}

static CUresult unmap(struct line *line)
{
    return CU(cuMemUnmap)(*address_of(line->name), line->one);
}

static CUresult exported(struct line *line)
{
    int descriptor = -1;
    CUresult result = CU(cuMemExportToShareableHandle)(&descriptor, *place(line->name), SHAREABLE, 0);
    line->a = (size_t)descriptor;
    return result;
}

static CUresult import(struct line *line)
{
    int file = descriptor_at(line->text);
    CUresult result = CU(cuMemImportFromShareableHandle)((CUmemGenericAllocationHandle *)place(line->name),
                                                         (void *)(size_t)file, SHAREABLE);
    close(file);
    return result;
}

static CUresult closed(struct line *line)
{
    return (CUresult)close(atoi(line->name));
}

static CUresult tile(struct line *line)
{
    CUDA_ARRAY3D_DESCRIPTOR sparse = {
        .Width = 64, .Height = 64, .NumChannels = 4, .Format = CU_AD_FORMAT_FLOAT, .Flags = CUDA_ARRAY3D_SPARSE};
    CUarrayMapInfo how = {.resourceType = CU_RESOURCE_TYPE_ARRAY,
                          .memOperationType = CU_MEM_OPERATION_TYPE_MAP,
                          .memHandle.memHandle = *place(line->name)};
    CUresult result = CU(cuArray3DCreate_v2)(&how.resource.array, &sparse);
    return result != CUDA_SUCCESS ? result : CU(cuMemMapArrayAsync)(&how, 1, NULL);
}

static const CUmulticastObjectProp of_one = {.numDevices = 1, .size = 2ul << 20};

static CUresult object(struct line *line)
{
    CUresult result = CU(cuMulticastCreate)((CUmemGenericAllocationHandle *)place(line->name), &of_one);
    return result != CUDA_SUCCESS ? result : CU(cuMulticastAddDevice)(*place(line->name), 0);
}

static CUresult bind(struct line *line)
{
    return CU(cuMulticastBindMem)(*place(line->text), 0, *place(line->name), 0, 2ul << 20, 0);
}

static CUresult bindat(struct line *line)
{
    return CU(cuMulticastBindAddr)(*place(line->text), 0, *address_of(line->name), 2ul << 20, 0);
}

static CUresult retain(struct line *line)
{
    CUmemGenericAllocationHandle handle;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < line->one && result == CUDA_SUCCESS; i++)
        result = CU(cuMemRetainAllocationHandle)(&handle, (void *)*address_of(line->name));
    return result;
}

static CUresult mapagain(struct line *line)
{
    return CU(cuMemMap)(*address_of(line->name) + line->one, line->one, 0, *place(line->name), 0);
}

/* Behind as many bytes as the other has mapped. */
static CUresult mapbehind(struct line *line)
{
    return CU(cuMemMap)(*address_of(line->text) + line->two, line->two, 0, *place(line->name), 0);
}

static CUresult unbind(struct line *line)
{
    return CU(cuMulticastUnbind)(*place(line->name), 0, 0, 2ul << 20);
}

static CUresult granularity(struct line *line)
{
    return CU(cuMulticastGetGranularity)(&line->a, &of_one, CU_MULTICAST_GRANULARITY_RECOMMENDED);
}

const struct verb virtual_verbs[] = {
    {"createhost", createhost}, {"createpart", createpart}, {"create", create}, {"drop", drop},     {"map", map},   {"unmap", unmap},   {"export", exported},         {"import", import},
    {"close", closed},  {"tile", tile},     {"object", object}, {"bind", bind}, {"unbind", unbind},
    {"granularity", granularity}, {"bindat", bindat}, {"retain", retain}, {"mapagain", mapagain}, {"mapbehind", mapbehind}, {NULL, NULL},
};
