/* NVML beside CUDA on one simulated node: both libraries in one process, as in a program that watches itself. */
#include "check.h"

#include <nvml.h>
#include <string.h>
#include <unistd.h>

static nvmlDevice_t device;

static void memory_is_what_the_driver_gave(void)
{
    nvmlMemory_t memory;
    nvmlMemory_v2_t newer = {.version = nvmlMemory_v2};
    CHECK(nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS);
    CHECK(memory.used == 256ULL << 20 && memory.total == 81920ULL << 20);
    CHECK(nvmlDeviceGetMemoryInfo_v2(device, &newer) == NVML_SUCCESS && newer.used == memory.used);
}

static void processes_are_named_by_their_host_pids(void)
{
    nvmlProcessInfo_t infos[4];
    unsigned int count = 0;
    CHECK(nvmlDeviceGetComputeRunningProcesses(device, &count, NULL) == NVML_ERROR_INSUFFICIENT_SIZE && count == 1);
    count = 4;
    CHECK(nvmlDeviceGetComputeRunningProcesses(device, &count, infos) == NVML_SUCCESS && count == 1);
    CHECK(infos[0].pid == (unsigned)getpid() + 5000 && infos[0].usedGpuMemory == 256ULL << 20);
}

static void utilisation_comes_late_and_in_coarse_samples(void)
{
    nvmlProcessUtilizationSample_t samples[4];
    nvmlUtilization_t rates = {.gpu = 0};
    nvmlReturn_t result;
    void *word = NULL;
    unsigned int count = 4;
    CHECK(nvmlDeviceGetProcessUtilization(device, samples, &count, 0) == NVML_ERROR_NOT_FOUND);
    OK(cuMemHostAlloc(&word, 4096, 0));
    void *parameters[] = {&word};
    OK(cuLaunchKernel(kernel("flag"), 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL)); /* busy until the flag is set */
    for (double limit = seconds() + LIMIT_S; rates.gpu <= 50; usleep(1000)) {
        CHECK(nvmlDeviceGetUtilizationRates(device, &rates) == NVML_SUCCESS && seconds() < limit);
    }
    count = 4;
    CHECK(nvmlDeviceGetProcessUtilization(device, samples, &count, 0) == NVML_SUCCESS && count == 1);
    CHECK(samples[0].pid == (unsigned)getpid() + 5000 && samples[0].smUtil > 50);
    __atomic_store_n((uint32_t *)word, 1, __ATOMIC_RELEASE);
    OK(cuCtxSynchronize());
    do { /* as long as samples close in which it was busy */
        count = 4;
        result = nvmlDeviceGetProcessUtilization(device, samples, &count, samples[0].timeStamp);
    } while (result == NVML_SUCCESS);
    CHECK(result == NVML_ERROR_NOT_FOUND);
    OK(cuMemFreeHost(word));
}

static void devices_are_found_by_uuid_and_bus_id(void)
{
    char uuid[96], bus_id[32];
    nvmlDevice_t found = NULL;
    CHECK(nvmlDeviceGetUUID(device, uuid, sizeof uuid) == NVML_SUCCESS);
    CHECK(nvmlDeviceGetHandleByUUID(uuid, &found) == NVML_SUCCESS && found == device);
    OK(cuDeviceGetPCIBusId(bus_id, sizeof bus_id, 0));
    CHECK(nvmlDeviceGetHandleByPciBusId(bus_id, &found) == NVML_SUCCESS && found == device);
    CHECK(nvmlDeviceGetUUID(device, uuid, 8) == NVML_ERROR_INSUFFICIENT_SIZE);
}

int main(void)
{
    char directory[] = "/dev/shm/simgpu-test-XXXXXX";
    char command[128];
    CHECK(mkdtemp(directory) != NULL);
    setenv("SIMGPU_DIR", directory, 1);
    setenv("SIMGPU_HOST_PID_OFFSET", "5000", 1);
    CHECK(nvmlDeviceGetHandleByIndex(0, &device) == NVML_ERROR_UNINITIALIZED);
    start();
    CHECK(nvmlInit() == NVML_SUCCESS && nvmlDeviceGetHandleByIndex(0, &device) == NVML_SUCCESS);
    HOLDS(memory_is_what_the_driver_gave);
    HOLDS(processes_are_named_by_their_host_pids);
    HOLDS(utilisation_comes_late_and_in_coarse_samples);
    HOLDS(devices_are_found_by_uuid_and_bus_id);
    snprintf(command, sizeof command, "rm -r %s", directory);
    return system(command);
}
