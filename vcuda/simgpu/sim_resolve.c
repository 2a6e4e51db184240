/* cuGetProcAddress, which the runtime finds the driver's calls with, and the names of errors. */
#include <string.h>

#include "sim_driver.h"

struct function {
    const char *name;
    int since;
    void *address;
    void *twin; /* NULL where the call has none */
};

/* Declared without their parameters: only their addresses are wanted here. */
#define F(name, since, symbol) extern void sim_alias_##symbol(void) __asm__(#symbol);
#define P(name, since, symbol, suffix) \
    F(name, since, symbol)             \
    extern void sim_alias_##symbol##suffix(void) __asm__(#symbol #suffix);
#include "functions.def"
#undef F
#undef P

#define F(name, since, symbol) {#name, since, (void *)sim_alias_##symbol, NULL},
#define P(name, since, symbol, suffix) \
    {#name, since, (void *)sim_alias_##symbol, (void *)sim_alias_##symbol##suffix},
static const struct function functions[] = {
#include "functions.def"
};
#undef F
#undef P

enum { FUNCTIONS = sizeof functions / sizeof functions[0] };

static int driver_version(void)
{
    int version = SIM_DRIVER_VERSION;
    cuDriverGetVersion(&version);
    return version;
}

static CUresult resolve(const char *name, void **address, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status)
{
    const struct function *best = NULL;
    int known = 0;
    int limit = driver_version();
    sim_trace_name(name, version, flags);
    if (name == NULL || address == NULL || (flags & ~3ULL) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (int i = 0; i < FUNCTIONS; i++) {
        const struct function *each = &functions[i];
        if (strcmp(each->name, name) != 0 || each->since > limit) {
            continue;
        }
        known = 1;
        if (each->since <= version && (best == NULL || each->since > best->since)) {
            best = each;
        }
    }
    int per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    *address = best == NULL ? NULL : (per_thread && best->twin != NULL ? best->twin : best->address);
    if (status != NULL) {
        *status = best != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known      ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                               : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    return best != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

SIM_EXPORT CUresult CUDAAPI cuGetProcAddress(const char *name, void **address, int version, cuuint64_t flags)
{
    SIM_ENTER_ANY(COST_QUERY);
    return resolve(name, address, version, flags, NULL);
}

SIM_EXPORT CUresult CUDAAPI cuGetProcAddress_v2(const char *name, void **address, int version, cuuint64_t flags,
                                                CUdriverProcAddressQueryResult *status)
{
    SIM_ENTER_ANY(COST_QUERY);
    return resolve(name, address, version, flags, status);
}

/* Private tables, of which one is here: ways to make contexts past the exported calls. Its layout, a size and then the second
 * form of cuCtxCreate, is as ZLUDA describes it (dark_api, CONTEXT_CREATE_BYPASS). */
static struct {
    size_t bytes;
    __typeof__(cuCtxCreate_v2) *create;
} contexts_bypass = {sizeof contexts_bypass, cuCtxCreate_v2};

static const unsigned char contexts_bypass_id[16] = {0x0C, 0xA5, 0x0B, 0x8C, 0x10, 0x04, 0x92, 0x9A,
                                                     0x89, 0xA7, 0xD0, 0xDF, 0x10, 0xE7, 0x72, 0x86};

SIM_EXPORT CUresult CUDAAPI cuGetExportTable(const void **table, const CUuuid *id)
{
    SIM_ENTER_ANY(COST_QUERY);
    if (table == NULL || id == NULL || memcmp(id->bytes, contexts_bypass_id, sizeof id->bytes) != 0) {
        return CUDA_ERROR_NOT_FOUND;
    }
    *table = &contexts_bypass;
    return CUDA_SUCCESS;
}

static const struct {
    CUresult result;
    const char *name;
    const char *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
};

static CUresult describe(CUresult error, const char **text, int wants_name)
{
    for (size_t i = 0; text != NULL && i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].result == error) {
            *text = wants_name ? errors[i].name : errors[i].text;
            return CUDA_SUCCESS;
        }
    }
    if (text != NULL) {
        *text = NULL;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult CUDAAPI cuGetErrorString(CUresult error, const char **text)
{
    SIM_ENTER_ANY(0);
    return describe(error, text, 0);
}

SIM_EXPORT CUresult CUDAAPI cuGetErrorName(CUresult error, const char **name)
{
    SIM_ENTER_ANY(0);
    return describe(error, name, 1);
}
