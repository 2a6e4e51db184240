/* Memory beyond plain allocations: pools, virtual memory, descriptors, other processes. */
#include "check.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1UL << 20)

static CUdevice device = 0;
static const CUmemAllocationProp pinned = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                           .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};

static size_t used(void)
{
    size_t left = 0, total = 0;
    OK(cuMemGetInfo(&left, &total));
    return total - left;
}

static void comes_to(size_t bytes)
{
    double limit = seconds() + LIMIT_S;
    while (used() != bytes && seconds() < limit) {
        usleep(1000);
    }
    CHECK(used() == bytes);
}

static void a_pool_grows_in_steps_and_shrinks_at_synchronisation(void)
{
    size_t before = used();
    CUdeviceptr one = 0, two = 0;
    CUmemoryPool pool = NULL;
    cuuint64_t reserved = 0, taken = 0;
    OK(cuMemAllocAsync(&one, 1 * MIB, NULL));
    OK(cuMemAllocAsync(&two, 40 * MIB, NULL));
    CHECK(used() - before == 64 * MIB);
    OK(cuDeviceGetDefaultMemPool(&pool, device));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &taken));
    CHECK(reserved == 64 * MIB && taken == 41 * MIB);
    OK(cuMemFreeAsync(two, NULL));
    CHECK(used() - before == 64 * MIB);
    OK(cuStreamSynchronize(NULL));
    CHECK(used() - before == 32 * MIB);
    OK(cuMemFreeAsync(one, NULL));
    OK(cuMemPoolTrimTo(pool, 0));
    CHECK(used() == before);
}

static void physical_memory_of_the_host_takes_nothing_of_the_device(void)
{
    size_t before = used();
    CUdeviceptr address = 0;
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp there = pinned, found = pinned;
    there.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    OK(cuMemAddressReserve(&address, 8 * MIB, 0, 0, 0));
    OK(cuMemCreate(&handle, 8 * MIB, &there, 0));
    OK(cuMemGetAllocationPropertiesFromHandle(&found, handle));
    CHECK(found.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA);
    OK(cuMemMap(address, 8 * MIB, 0, handle, 0));
    OK(cuMemRelease(handle));
    CHECK(used() == before);
    OK(cuMemUnmap(address, 8 * MIB));
    CHECK(cuMemRelease(handle) == CUDA_ERROR_INVALID_VALUE);
    there.location.type = CU_MEM_LOCATION_TYPE_HOST;
    CHECK(cuMemCreate(&handle, 8 * MIB, &there, 0) == CUDA_ERROR_INVALID_VALUE);
}

static void physical_memory_lives_until_handle_and_mappings_are_gone(void)
{
    size_t before = used();
    CUdeviceptr address = 0;
    CUmemGenericAllocationHandle handle = 0, again = 0;
    OK(cuMemAddressReserve(&address, 8 * MIB, 0, 0, 0));
    OK(cuMemCreate(&handle, 8 * MIB, &pinned, 0));
    OK(cuMemMap(address, 8 * MIB, 0, handle, 0));
    OK(cuMemRelease(handle));
    CHECK(used() - before == 8 * MIB);
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)address));
    OK(cuMemUnmap(address, 8 * MIB));
    CHECK(used() - before == 8 * MIB);
    OK(cuMemRelease(again));
    CHECK(used() == before);
    CHECK(cuMemRelease(again) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemCreate(&handle, 3 * MIB, &pinned, 0) == CUDA_ERROR_INVALID_VALUE);
}

static void a_range_that_is_mapped_takes_no_second_mapping(void)
{
    size_t before = used();
    CUdeviceptr range = 0;
    CUmemGenericAllocationHandle small = 0, large = 0;
    OK(cuMemAddressReserve(&range, 16 * MIB, 0, 0, 0));
    OK(cuMemCreate(&small, 4 * MIB, &pinned, 0));
    OK(cuMemCreate(&large, 8 * MIB, &pinned, 0));
    OK(cuMemMap(range + 4 * MIB, 4 * MIB, 0, small, 0));
    CHECK(cuMemMap(range + 4 * MIB, 4 * MIB, 0, small, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemMap(range, 8 * MIB, 0, large, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemMap(range + 6 * MIB, 8 * MIB, 0, large, 0) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemMap(range + 8 * MIB, 8 * MIB, 0, large, 0));
    OK(cuMemUnmap(range + 4 * MIB, 12 * MIB));
    OK(cuMemRelease(small));
    OK(cuMemRelease(large));
    CHECK(used() == before);
}

static void a_descriptor_holds_memory_until_it_is_closed(void)
{
    size_t before = used();
    CUmemGenericAllocationHandle handle = 0, imported = 0;
    int file = -1;
    OK(cuMemCreate(&handle, 4 * MIB, &pinned, 0));
    OK(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemRelease(handle));
    usleep(20000);
    CHECK(used() - before == 4 * MIB);
    OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(file);
    usleep(20000);
    CHECK(used() - before == 4 * MIB);
    OK(cuMemRelease(imported));
    comes_to(before);
}

static void arrays_take_granules(void)
{
    size_t before = used();
    CUarray array = NULL;
    CUDA_ARRAY_DESCRIPTOR flat = {.Width = 1024, .Height = 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    OK(cuArrayCreate(&array, &flat));
    CHECK(used() - before == 4 * MIB);
    OK(cuArrayDestroy(array));
    CHECK(used() == before);
}

static void managed_memory_is_the_hosts_and_can_be_touched(void)
{
    size_t before = used();
    CUdeviceptr address = 0;
    OK(cuMemAllocManaged(&address, 4 * MIB, CU_MEM_ATTACH_GLOBAL));
    *(volatile int *)(uintptr_t)address = 7;
    CHECK(used() == before);
    OK(cuMemFree(address));
}

static void modules_come_to_the_device_with_their_first_launch(void)
{
    size_t before = used();
    CUmodule module = NULL;
    CUfunction function = NULL;
    OK(cuModuleLoadData(&module, "// simgpu-bytes 33554432"));
    OK(cuModuleGetFunction(&function, module, "spin_us_1"));
    CHECK(used() == before);
    launch(function, NULL);
    CHECK(used() - before == 32 * MIB);
    OK(cuCtxSynchronize());
    OK(cuModuleUnload(module));
    CHECK(used() == before);
}

static void send_handle(int socket)
{
    CUdeviceptr address = 0;
    CUipcMemHandle handle;
    start();
    OK(cuMemAlloc(&address, 100 * MIB));
    OK(cuIpcGetMemHandle(&handle, address));
    CHECK(write(socket, &handle, sizeof handle) == (ssize_t)sizeof handle);
    pause();
}

static void opened_memory_outlives_its_killed_owner(void)
{
    int sockets[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    pid_t owner = fork();
    if (owner == 0) {
        send_handle(sockets[1]);
    }
    CUipcMemHandle handle;
    CUdeviceptr address = 0;
    CHECK(read(sockets[0], &handle, sizeof handle) == (ssize_t)sizeof handle);
    start();
    OK(cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    kill(owner, SIGKILL);
    CHECK(waitpid(owner, NULL, 0) == owner);
    comes_to((256 + 100) * MIB);
    OK(cuIpcCloseMemHandle(address));
    comes_to(256 * MIB);
    CHECK(cuIpcOpenMemHandle(&address, handle, 0) == CUDA_ERROR_INVALID_VALUE);
}

static int order[2]; /* atomic */

static void on_host(void *data)
{
    __atomic_add_fetch(&order[*(int *)data], 1, __ATOMIC_ACQ_REL);
}

static void host_functions_run_in_the_streams_order(void)
{
    static int zero = 0;
    void *word = NULL;
    OK(cuMemHostAlloc(&word, 4096, 0));
    void *parameters[] = {&word};
    OK(cuLaunchKernel(kernel("flag"), 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL)); /* nothing gets past it */
    OK(cuLaunchHostFunc(NULL, on_host, &zero));
    launch(kernel("spin_us_2000"), NULL);
    usleep(3000);
    CHECK(__atomic_load_n(&order[0], __ATOMIC_ACQUIRE) == 0);
    __atomic_store_n((uint32_t *)word, 1, __ATOMIC_RELEASE);
    OK(cuStreamSynchronize(NULL));
    CHECK(__atomic_load_n(&order[0], __ATOMIC_ACQUIRE) == 1);
    OK(cuMemFreeHost(word));
}

static void a_stream_waits_for_a_word_of_the_host(void)
{
    void *word = NULL;
    OK(cuMemHostAlloc(&word, 4096, 0));
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)word;
    OK(cuStreamWaitValue32(NULL, address, 5, CU_STREAM_WAIT_VALUE_EQ));
    launch(kernel("spin_us_10"), NULL);
    usleep(5000);
    CHECK(cuStreamQuery(NULL) == CUDA_ERROR_NOT_READY);
    __atomic_store_n((uint32_t *)word, 5, __ATOMIC_RELEASE);
    OK(cuStreamSynchronize(NULL));
    OK(cuMemFreeHost(word));
}

static void a_kernel_that_spins_on_a_flag_ends_when_the_host_sets_it(void)
{
    void *word = NULL;
    OK(cuMemHostAlloc(&word, 4096, 0));
    void *parameters[] = {&word};
    OK(cuLaunchKernel(kernel("flag"), 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    usleep(3000);
    CHECK(cuStreamQuery(NULL) == CUDA_ERROR_NOT_READY);
    __atomic_store_n((uint32_t *)word, 1, __ATOMIC_RELEASE);
    OK(cuStreamSynchronize(NULL));
    OK(cuMemFreeHost(word));
}

static void fails_as_told(void)
{
    CUdeviceptr address = 0;
    OK(cuMemAllocManaged(&address, MIB, CU_MEM_ATTACH_GLOBAL));
    CHECK(cuMemAllocManaged(&address, MIB, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_UNKNOWN);
    OK(cuMemAllocManaged(&address, MIB, CU_MEM_ATTACH_GLOBAL));
}

/* Each in a process of its own, on one node. */
static void apart(void (*test)(void), const char *name, int starts)
{
    pid_t child = fork();
    int status = 0;
    if (child == 0) {
        if (starts) {
            start();
            comes_to(256 * MIB); /* the test before has been torn down */
        }
        test();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    printf("ok   %s\n", name);
}

#define APART(test) apart(test, #test, 1)

int main(void)
{
    char directory[] = "/dev/shm/simgpu-test-XXXXXX";
    char command[128];
    setvbuf(stdout, NULL, _IOLBF, 0);
    CHECK(mkdtemp(directory) != NULL);
    setenv("SIMGPU_DIR", directory, 1);
    setenv("SIMGPU_TEARDOWN_MS", "1", 1);
    APART(a_pool_grows_in_steps_and_shrinks_at_synchronisation);
    APART(physical_memory_of_the_host_takes_nothing_of_the_device);
    APART(physical_memory_lives_until_handle_and_mappings_are_gone);
    APART(a_range_that_is_mapped_takes_no_second_mapping);
    APART(a_descriptor_holds_memory_until_it_is_closed);
    APART(arrays_take_granules);
    APART(managed_memory_is_the_hosts_and_can_be_touched);
    APART(modules_come_to_the_device_with_their_first_launch);
    apart(opened_memory_outlives_its_killed_owner, "opened_memory_outlives_its_killed_owner", 0);
    APART(host_functions_run_in_the_streams_order);
    APART(a_stream_waits_for_a_word_of_the_host);
    APART(a_kernel_that_spins_on_a_flag_ends_when_the_host_sets_it);
    setenv("SIMGPU_FAULTS", "cuMemAllocManaged:2:error=999", 1);
    APART(fails_as_told);
    snprintf(command, sizeof command, "rm -r %s", directory);
    return system(command);
}
