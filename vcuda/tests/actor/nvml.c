#include <dlfcn.h>
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#include <stdlib.h>

#include "actor.h"

#define NVML(name) ((__typeof__(name) *)dlsym(library(), #name))

static void *library(void)
{
    static void *nvml;
    if (nvml == NULL) {
        nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        NVML(nvmlInit_v2)();
    }
    return nvml;
}

static int device(const struct line *line, nvmlDevice_t *found)
{
    return (int)NVML(nvmlDeviceGetHandleByIndex_v2)((unsigned int)atoi(line->name), found);
}

static CUresult memory(struct line *line)
{
    nvmlDevice_t which;
    nvmlMemory_t memory = {0};
    int result = device(line, &which);
    if (result == 0)
        result = (int)NVML(nvmlDeviceGetMemoryInfo)(which, &memory);
    line->a = memory.used;
    line->b = memory.total;
    return (CUresult)result;
}

static CUresult processes(struct line *line)
{
    nvmlDevice_t which;
    nvmlProcessInfo_t list[64];
    unsigned int count = 64;
    int result = device(line, &which);
    if (result == 0)
        result = (int)NVML(nvmlDeviceGetComputeRunningProcesses_v3)(which, &count, list);
    line->a = count;
    line->b = result == 0 && count != 0 ? list[0].pid : 0;
    return (CUresult)result;
}

static CUresult devices(struct line *line)
{
    unsigned int count = 0;
    int result = (int)NVML(nvmlDeviceGetCount_v2)(&count);
    line->a = count;
    return (CUresult)result;
}

const struct verb nvml_verbs[] = {{"nvml", memory}, {"processes", processes}, {"devices", devices}, {NULL, NULL}};
