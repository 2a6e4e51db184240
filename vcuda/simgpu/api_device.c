/* Devices and the driver itself. */
#include <stdio.h>
#include <string.h>

#include "sim_driver.h"

static int valid(CUdevice device)
{
    return device >= 0 && (uint32_t)device < sim_seat.node->settings.devices;
}

SIM_EXPORT CUresult CUDAAPI cuDriverGetVersion(int *version)
{
    SIM_ENTER_ANY(0);
    if (version == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *version = sim_ready() ? (int)sim_seat.node->settings.driver_version : SIM_DRIVER_VERSION;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGetCount(int *count)
{
    SIM_ENTER(COST_QUERY);
    if (count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *count = (int)sim_seat.node->settings.devices;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal)
{
    SIM_ENTER(COST_QUERY);
    if (device == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!valid(ordinal)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *device = ordinal;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGetName(char *name, int length, CUdevice device)
{
    SIM_ENTER(COST_QUERY);
    if (name == NULL || length <= 0 || !valid(device)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    snprintf(name, (size_t)length, "Simulated GPU");
    return CUDA_SUCCESS;
}

/* The device's number stands in the last byte: GPU-53494d47-5055-0000-0000-00000000000N. */
static CUresult uuid_of(CUuuid *uuid, CUdevice device)
{
    static const unsigned char base[16] = {'S', 'I', 'M', 'G', 'P', 'U'};
    if (uuid == NULL || !valid(device)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(uuid->bytes, base, sizeof base);
    uuid->bytes[15] = (char)device;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    SIM_ENTER(COST_QUERY);
    return uuid_of(uuid, device);
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    SIM_ENTER(COST_QUERY);
    return uuid_of(uuid, device);
}

SIM_EXPORT CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    SIM_ENTER(COST_QUERY);
    if (bytes == NULL || !valid(device)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_reap(&sim_seat); /* a call that takes nothing, for those who wait until the dead are torn down */
    *bytes = sim_seat.node->settings.memory_bytes;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuDeviceTotalMem(unsigned int *bytes, CUdevice device)
{
    SIM_ENTER(COST_QUERY);
    if (bytes == NULL || !valid(device)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t all = sim_seat.node->settings.memory_bytes;
    *bytes = all > UINT32_MAX ? UINT32_MAX : (unsigned int)all;
    return CUDA_SUCCESS;
}

static int attribute(CUdevice_attribute which)
{
    switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return 8;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return SIM_MULTIPROCESSORS;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
        return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
        return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
        return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
        return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
        return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        return SIM_RESIDENT_THREADS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
        return 49152;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
        return SIM_ENGINES;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
        return 1410000;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        return 1;
    default:
        return 0;
    }
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device)
{
    SIM_ENTER(COST_QUERY);
    if (value == NULL || !valid(device)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *value = which == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? device + 1 : attribute(which);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    SIM_ENTER(COST_QUERY);
    if (major == NULL || minor == NULL || !valid(device)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    *minor = 0;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
    SIM_ENTER(COST_QUERY);
    if (text == NULL || length <= 0 || !valid(device)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    snprintf(text, (size_t)length, "0000:%02x:00.0", (unsigned)device + 1);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
    SIM_ENTER(COST_QUERY);
    unsigned int domain = 0;
    unsigned int bus = 0;
    if (device == NULL || text == NULL || sscanf(text, "%x:%x:", &domain, &bus) != 2 || !valid((int)bus - 1)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *device = (int)bus - 1;
    return CUDA_SUCCESS;
}
