/* actor.c: a CUDA program that does what it is told, one line of standard input at a time, and says how it went.
 *
 *     ctx [ORDINAL]        retain(primary) and make current     release        primary context
 *     newctx / endctx      a context of its own
 *     alloc NAME BYTES     free NAME       managed NAME BYTES   pitch NAME WIDTH HEIGHT
 *     async NAME BYTES     freeasync NAME      trim             default stream and pool; freeasync waits for it
 *     create NAME BYTES    map NAME BYTES      unmap NAME BYTES drop NAME       export NAME: "0 DESCRIPTOR"
 *     array NAME WIDTH HEIGHT                  freearray NAME   heap - BYTES    cuCtxSetLimit
 *     graph NAME BYTES     an executable graph that allocates; upload NAME   launchgraph NAME   endgraph NAME   trimgraphs
 *     regraph NAME BYTES   the same with a second node of as many bytes, after the first was freed in it
 *     capture NAME BYTES   the same from a captured cuMemAllocAsync
 *     bind NAME            to a multicast object     tile NAME   under a sparse array     newgreen / endgreen
 *     launch NAME          a kernel of that name, on the default stream
 *     nvml ORDINAL         "USED TOTAL" by NVML    processes ORDINAL  "COUNT PID" by NVML    devices "COUNT"
 *     info                 "FREE TOTAL"    total                cuDeviceTotalMem
 *     fork                 goes on in a child; the parent waits for it and ends as it did
 *     exec                 becomes a new actor       setuid NUMBER
 *     managed? NAME        "1" when the pointer is managed memory
 *     exit CODE | kill     _exit, SIGKILL to itself
 *
 * Answers "RESULT [VALUES]" with the CUresult as a number. It finds the driver by dlopen and dlsym, as runtimes do.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <dlfcn.h>
#include <nvml.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels.h"

#define MOST 4096

static void *library;
static char *program; /* its own path */
static struct {
    char name[24];
    CUdeviceptr pointer;
} held[MOST];

#define CU(name) ((__typeof__(name) *)symbol(#name))
static void *symbol(const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "the driver has no %s\n", name);
        exit(3);
    }
    return found;
}

static CUdeviceptr *place(const char *name)
{
    int empty = -1;
    for (int i = 0; i < MOST; i++) {
        if (strcmp(held[i].name, name) == 0)
            return &held[i].pointer;
        if (empty < 0 && held[i].name[0] == '\0')
            empty = i;
    }
    snprintf(held[empty].name, sizeof held[empty].name, "%s", name);
    return &held[empty].pointer;
}

static CUresult memory(const char *verb, const char *name, size_t one, size_t two)
{
    size_t pitch;
    if (strcmp(verb, "alloc") == 0)
        return CU(cuMemAlloc_v2)(place(name), one);
    if (strcmp(verb, "managed") == 0)
        return CU(cuMemAllocManaged)(place(name), one, CU_MEM_ATTACH_GLOBAL);
    if (strcmp(verb, "pitch") == 0)
        return CU(cuMemAllocPitch_v2)(place(name), &pitch, one, two, 4);
    return CU(cuMemFree_v2)(*place(name));
}

static CUresult stream_ordered(const char *verb, const char *name, size_t bytes)
{
    CUmemoryPool pool;
    if (strcmp(verb, "async") == 0)
        return CU(cuMemAllocAsync)(place(name), bytes, NULL);
    if (strcmp(verb, "freeasync") == 0)
        return CU(cuMemFreeAsync)(*place(name), NULL) | CU(cuStreamSynchronize)(NULL);
    return CU(cuDeviceGetMemPool)(&pool, 0) | CU(cuMemPoolTrimTo)(pool, 0);
}

/* NAME holds the handle, NAME@ the address. */
static CUresult virtual(const char *verb, const char *name, size_t bytes, size_t *answer)
{
    CUmemAllocationProp how = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                               .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
                               .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    char address[32];
    int descriptor = -1;
    snprintf(address, sizeof address, "%s@", name);
    if (strcmp(verb, "create") == 0)
        return CU(cuMemCreate)((CUmemGenericAllocationHandle *)place(name), bytes, &how, 0);
    if (strcmp(verb, "drop") == 0)
        return CU(cuMemRelease)(*place(name));
    if (strcmp(verb, "unmap") == 0)
        return CU(cuMemUnmap)(*place(address), bytes);
    if (strcmp(verb, "map") == 0) {
        CUresult result = CU(cuMemAddressReserve)(place(address), bytes, 0, 0, 0);
        return result != CUDA_SUCCESS ? result : CU(cuMemMap)(*place(address), bytes, 0, *place(name), 0);
    }
    CUresult result = CU(cuMemExportToShareableHandle)(&descriptor, *place(name), how.requestedHandleTypes, 0);
    *answer = (size_t)descriptor;
    return result;
}

static CUresult array(const char *verb, const char *name, size_t width, size_t height)
{
    CUDA_ARRAY_DESCRIPTOR shape = {
        .Width = width, .Height = height, .NumChannels = 4, .Format = CU_AD_FORMAT_FLOAT};
    if (strcmp(verb, "array") == 0)
        return CU(cuArrayCreate_v2)((CUarray *)place(name), &shape);
    return CU(cuArrayDestroy)((CUarray)*place(name));
}

static CUresult made_graph(const char *name, size_t bytes, int captured)
{
    CUgraph graph;
    CUgraphNode node;
    CUdeviceptr pointer;
    CUstream stream;
    CUDA_MEM_ALLOC_NODE_PARAMS asked = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
        .bytesize = bytes};
    CUresult result;
    if (captured) {
        result = CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING);
        result |= CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
        result |= CU(cuMemAllocAsync)(&pointer, bytes, stream);
        result |= CU(cuStreamEndCapture)(stream, &graph);
    } else {
        result = CU(cuGraphCreate)(&graph, 0);
        result |= CU(cuGraphAddMemAllocNode)(&node, graph, NULL, 0, &asked);
    }
    return result != CUDA_SUCCESS ? result : CU(cuGraphInstantiateWithFlags)((CUgraphExec *)place(name), graph, 0);
}

static CUresult made_regraph(const char *name, size_t bytes)
{
    CUgraph graph;
    CUgraphNode node, freed;
    CUDA_MEM_ALLOC_NODE_PARAMS asked = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
        .bytesize = bytes};
    CUresult result = CU(cuGraphCreate)(&graph, 0);
    result |= CU(cuGraphAddMemAllocNode)(&node, graph, NULL, 0, &asked);
    result |= CU(cuGraphAddMemFreeNode)(&freed, graph, &node, 1, asked.dptr);
    result |= CU(cuGraphAddMemAllocNode)(&node, graph, &freed, 1, &asked);
    return result != CUDA_SUCCESS ? result : CU(cuGraphInstantiateWithFlags)((CUgraphExec *)place(name), graph, 0);
}

static CUresult graphs(const char *verb, const char *name, size_t bytes)
{
    CUgraphExec graph = (CUgraphExec)*place(name);
    if (strcmp(verb, "upload") == 0)
        return CU(cuGraphUpload)(graph, NULL);
    if (strcmp(verb, "launchgraph") == 0) {
        CUresult result = CU(cuGraphLaunch)(graph, NULL);
        return result != CUDA_SUCCESS ? result : CU(cuStreamSynchronize)(NULL);
    }
    if (strcmp(verb, "endgraph") == 0)
        return CU(cuGraphExecDestroy)(graph);
    if (strcmp(verb, "trimgraphs") == 0)
        return CU(cuDeviceGraphMemTrim)(0);
    if (strcmp(verb, "regraph") == 0)
        return made_regraph(name, bytes);
    return made_graph(name, bytes, strcmp(verb, "capture") == 0);
}

/* References to physical memory that are neither handles nor mappings. */
static CUresult referred(const char *verb, const char *name)
{
    static CUmemGenericAllocationHandle object;
    CUmulticastObjectProp one = {.numDevices = 1, .size = 2ul << 20};
    CUDA_ARRAY3D_DESCRIPTOR sparse = {
        .Width = 64, .Height = 64, .NumChannels = 4, .Format = CU_AD_FORMAT_FLOAT, .Flags = CUDA_ARRAY3D_SPARSE};
    CUarrayMapInfo map = {.resourceType = CU_RESOURCE_TYPE_ARRAY,
                          .memOperationType = CU_MEM_OPERATION_TYPE_MAP,
                          .memHandle.memHandle = *place(name)};
    if (strcmp(verb, "bind") == 0) {
        CUresult result = CU(cuMulticastCreate)(&object, &one);
        return result != CUDA_SUCCESS ? result : CU(cuMulticastBindMem)(object, 0, *place(name), 0, 2ul << 20, 0);
    }
    CUresult result = CU(cuArray3DCreate_v2)(&map.resource.array, &sparse);
    return result != CUDA_SUCCESS ? result : CU(cuMemMapArrayAsync)(&map, 1, NULL);
}

static CUresult green(const char *verb)
{
    static CUgreenCtx part;
    if (strcmp(verb, "newgreen") == 0)
        return CU(cuGreenCtxCreate)(&part, NULL, 0, CU_GREEN_CTX_DEFAULT_STREAM);
    return CU(cuGreenCtxDestroy)(part);
}

static CUresult launch(const char *name)
{
    CUmodule module;
    CUfunction function;
    CUresult result = CU(cuModuleLoadData)(&module, kernel_module(name));
    if (result == CUDA_SUCCESS)
        result = CU(cuModuleGetFunction)(&function, module, name);
    if (result == CUDA_SUCCESS)
        result = CU(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    return result == CUDA_SUCCESS ? CU(cuStreamSynchronize)(NULL) : result;
}

#define NVML(name) ((__typeof__(name) *)dlsym(nvml, #name))
static int by_nvml(const char *verb, unsigned int ordinal, size_t *one, size_t *two)
{
    static void *nvml;
    nvmlDevice_t device;
    nvmlMemory_t memory;
    nvmlProcessInfo_t list[64];
    unsigned int count = 64;
    if (nvml == NULL) {
        nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        NVML(nvmlInit_v2)();
    }
    if (strcmp(verb, "devices") == 0) {
        int result = (int)NVML(nvmlDeviceGetCount_v2)(&count);
        *one = count;
        return result;
    }
    int result = (int)NVML(nvmlDeviceGetHandleByIndex_v2)(ordinal, &device);
    if (result == 0 && strcmp(verb, "nvml") == 0) {
        result = (int)NVML(nvmlDeviceGetMemoryInfo)(device, &memory);
        *one = memory.used;
        *two = memory.total;
    } else if (result == 0) {
        result = (int)NVML(nvmlDeviceGetComputeRunningProcesses_v3)(device, &count, list);
        *one = count;
        *two = count != 0 ? list[0].pid : 0;
    }
    return result;
}

static CUresult context(const char *verb, int ordinal)
{
    static CUcontext primary, own;
    if (strcmp(verb, "ctx") == 0) {
        CUresult result = CU(cuDevicePrimaryCtxRetain)(&primary, ordinal);
        return result == CUDA_SUCCESS ? CU(cuCtxPushCurrent_v2)(primary) : result;
    }
    if (strcmp(verb, "release") == 0)
        return CU(cuDevicePrimaryCtxRelease_v2)(ordinal);
    if (strcmp(verb, "newctx") == 0)
        return CU(cuCtxCreate_v2)(&own, 0, ordinal);
    return CU(cuCtxDestroy_v2)(own);
}

static void fork_here(void)
{
    pid_t child = fork();
    int status;
    if (child == 0)
        return;
    waitpid(child, &status, 0);
    exit(WEXITSTATUS(status));
}

static CUresult is_managed(const char *name, size_t *answer)
{
    unsigned int managed = 0;
    CUresult result = CU(cuPointerGetAttribute)(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, *place(name));
    *answer = managed;
    return result;
}

static int answer(const char *line)
{
    char verb[16] = "", name[24] = "";
    size_t one = 0, two = 0, a = 0, b = 0;
    int words = sscanf(line, "%15s %23s %zu %zu", verb, name, &one, &two);
    if (words < 1)
        return 0;
    if (strcmp(verb, "exit") == 0)
        _exit(atoi(name));
    if (strcmp(verb, "kill") == 0)
        raise(SIGKILL);
    if (strcmp(verb, "exec") == 0)
        execv(program, (char *[]){program, NULL});
    CUresult result = CUDA_SUCCESS;
    if (strcmp(verb, "setuid") == 0)
        result = (CUresult)(setgid((gid_t)atoi(name)) | setuid((uid_t)atoi(name)));
    else if (strcmp(verb, "managed?") == 0)
        result = is_managed(name, &a);
    else if (strcmp(verb, "fork") == 0)
        fork_here();
    else if (strcmp(verb, "init") == 0)
        result = CU(cuInit)(0);
    else if (strcmp(verb, "info") == 0)
        result = CU(cuMemGetInfo_v2)(&a, &b);
    else if (strcmp(verb, "total") == 0)
        result = CU(cuDeviceTotalMem_v2)(&a, atoi(name));
    else if (strcmp(verb, "nvml") == 0 || strcmp(verb, "processes") == 0 || strcmp(verb, "devices") == 0)
        result = (CUresult)by_nvml(verb, (unsigned int)atoi(name), &a, &b);
    else if (strcmp(verb, "heap") == 0)
        result = CU(cuCtxSetLimit)(CU_LIMIT_MALLOC_HEAP_SIZE, one);
    else if (strcmp(verb, "launch") == 0)
        result = launch(name);
    else if (strcmp(verb, "async") == 0 || strcmp(verb, "freeasync") == 0 || strcmp(verb, "trim") == 0)
        result = stream_ordered(verb, name, one);
    else if (strcmp(verb, "array") == 0 || strcmp(verb, "freearray") == 0)
        result = array(verb, name, one, two);
    else if (strstr("graph regraph capture upload launchgraph endgraph trimgraphs", verb) != NULL)
        result = graphs(verb, name, one);
    else if (strcmp(verb, "bind") == 0 || strcmp(verb, "tile") == 0)
        result = referred(verb, name);
    else if (strcmp(verb, "newgreen") == 0 || strcmp(verb, "endgreen") == 0)
        result = green(verb);
    else if (strstr("create drop map unmap export", verb) != NULL)
        result = virtual(verb, name, one, &a);
    else if (strstr("ctx release newctx endctx", verb) != NULL)
        result = context(verb, atoi(name));
    else
        result = memory(verb, name, one, two);
    printf("%d %zu %zu\n", (int)result, a, b);
    return fflush(stdout);
}

int main(int count, char **arguments)
{
    char line[256];
    program = count != 0 ? arguments[0] : NULL;
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
    setvbuf(stdin, NULL, _IONBF, 0); /* a fork must not inherit lines read ahead */
    while (fgets(line, sizeof line, stdin) != NULL)
        answer(line);
    return 0;
}
