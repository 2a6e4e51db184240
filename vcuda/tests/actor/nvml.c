#include <dlfcn.h>
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#include <stdio.h>
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

static CUresult memory2(struct line *line)
{
    nvmlDevice_t which;
    nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
    int result = device(line, &which);
    if (result == 0)
        result = (int)NVML(nvmlDeviceGetMemoryInfo_v2)(which, &memory);
    line->a = memory.used;
    line->b = memory.total - memory.free - memory.used + memory.reserved;
    return (CUresult)result;
}

/* Each form of a list into room for so many. */
#define LISTS(verb, name, type)                                      \
    static CUresult verb(struct line *line)                          \
    {                                                                \
        nvmlDevice_t which;                                          \
        type list[64] = {{0}};                                       \
        unsigned int count = (unsigned int)line->one;                \
        int result = device(line, &which);                           \
        if (result == 0)                                             \
            result = (int)NVML(name)(which, &count, list);           \
        line->a = count;                                             \
        line->b = list[0].pid;                                       \
        return (CUresult)result;                                     \
    }

LISTS(compute1, nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
LISTS(compute2, nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
LISTS(compute3, nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)
LISTS(graphics1, nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
LISTS(graphics2, nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
LISTS(graphics3, nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
LISTS(mps1, nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
LISTS(mps2, nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
LISTS(mps3, nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

static CUresult detail(struct line *line)
{
    nvmlDevice_t which;
    nvmlProcessDetail_v1_t list[64] = {{0}};
    nvmlProcessDetailList_t all = {.version = nvmlProcessDetailList_v1,
                                   .mode = (unsigned int)line->two,
                                   .numProcArrayEntries = (unsigned int)line->one,
                                   .procArray = list};
    int result = device(line, &which);
    if (result == 0)
        result = (int)NVML(nvmlDeviceGetRunningProcessDetailList)(which, &all);
    line->a = all.numProcArrayEntries;
    line->b = list[0].pid;
    return (CUresult)result;
}

static CUresult samples(struct line *line)
{
    nvmlDevice_t which;
    nvmlProcessUtilizationSample_t list[64];
    unsigned int count = 64;
    int result = device(line, &which);
    if (result == 0)
        result = (int)NVML(nvmlDeviceGetProcessUtilization)(which, list, &count, 0);
    line->a = count;
    return (CUresult)result;
}

static CUresult samples2(struct line *line)
{
    nvmlDevice_t which;
    nvmlProcessUtilizationInfo_v1_t list[64];
    nvmlProcessesUtilizationInfo_t all = {
        .version = nvmlProcessesUtilizationInfo_v1, .processSamplesCount = 64, .procUtilArray = list};
    int result = device(line, &which);
    if (result == 0)
        result = (int)NVML(nvmlDeviceGetProcessesUtilizationInfo)(which, &all);
    line->a = all.processSamplesCount;
    return (CUresult)result;
}

static CUresult rates(struct line *line)
{
    nvmlDevice_t which;
    nvmlUtilization_t rates = {0};
    int result = device(line, &which);
    if (result == 0)
        result = (int)NVML(nvmlDeviceGetUtilizationRates)(which, &rates);
    line->a = rates.gpu;
    line->b = rates.memory;
    return (CUresult)result;
}

static CUresult by_uuid(struct line *line)
{
    nvmlDevice_t which;
    return (CUresult)NVML(nvmlDeviceGetHandleByUUID)(line->text, &which);
}

static CUresult by_uuid_of_a_version(struct line *line)
{
    nvmlDevice_t which;
    nvmlUUID_t uuid = {.version = nvmlUUID_v1, .type = NVML_UUID_TYPE_ASCII};
    snprintf(uuid.value.str, sizeof uuid.value.str, "%.40s", line->text);
    return (CUresult)NVML(nvmlDeviceGetHandleByUUIDV)(&uuid, &which);
}

static CUresult by_bus(struct line *line)
{
    nvmlDevice_t which;
    return (CUresult)NVML(nvmlDeviceGetHandleByPciBusId_v2)(line->text, &which);
}

static CUresult devices(struct line *line)
{
    unsigned int count = 0;
    int result = (int)NVML(nvmlDeviceGetCount_v2)(&count);
    line->a = count;
    return (CUresult)result;
}

const struct verb nvml_verbs[] = {
    {"nvml", memory},         {"processes", processes}, {"devices", devices},       {"nvml2", memory2},   {"compute1", compute1},
    {"compute2", compute2},   {"compute3", compute3},   {"graphics1", graphics1},   {"mps1", mps1},       {"graphics2", graphics2},
    {"mps2", mps2},           {"graphics3", graphics3}, {"mps3", mps3},             {"detail", detail},   {"samples", samples},
    {"samples2", samples2},   {"rates", rates},         {"byuuid", by_uuid},        {"bybus", by_bus},    {"byuuidv", by_uuid_of_a_version},
    {NULL, NULL},
};
