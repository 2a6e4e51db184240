#include <stdio.h>
#include <unistd.h>

#include "actor.h"

/* What one process writes to a file, another reads there. */
static CUresult written(CUresult result, const char *path, const void *data, size_t size)
{
    if (result != CUDA_SUCCESS)
        return result;
    FILE *file = fopen(path, "w");
    int good = file != NULL && fwrite(data, 1, size, file) == size;
    return file != NULL && fclose(file) == 0 && good ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

static int have_read(const char *path, void *data, size_t size)
{
    FILE *file = fopen(path, "r");
    int good = file != NULL && fread(data, 1, size, file) == size;
    if (file != NULL)
        fclose(file);
    return good;
}

static CUresult ipcget(struct line *line)
{
    CUipcMemHandle handle;
    return written(CU(cuIpcGetMemHandle)(&handle, *place(line->name)), line->text, &handle, sizeof handle);
}

/* A handle of the middle of an allocation is one of the whole. */
static CUresult ipcwithin(struct line *line)
{
    CUipcMemHandle handle;
    return written(CU(cuIpcGetMemHandle)(&handle, *place(line->name) + 4096), line->text, &handle, sizeof handle);
}

static CUresult ipcopen(struct line *line)
{
    CUipcMemHandle handle;
    if (!have_read(line->text, &handle, sizeof handle))
        return CUDA_ERROR_OPERATING_SYSTEM;
    return CU(cuIpcOpenMemHandle_v2)(place(line->name), handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static CUresult ipcclose(struct line *line)
{
    return CU(cuIpcCloseMemHandle)(*place(line->name));
}

static CUresult poolshare(struct line *line)
{
    int descriptor = -1;
    CUresult result = CU(cuMemPoolExportToShareableHandle)(&descriptor, (CUmemoryPool)*place(line->name),
                                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    line->a = (size_t)descriptor;
    return result;
}

static CUresult poolopen(struct line *line)
{
    int file = descriptor_at(line->text);
    CUresult result = CU(cuMemPoolImportFromShareableHandle)((CUmemoryPool *)place(line->name), (void *)(size_t)file,
                                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    close(file);
    return result;
}

static CUresult tell(struct line *line)
{
    CUmemPoolPtrExportData data;
    return written(CU(cuMemPoolExportPointer)(&data, *place(line->name)), line->text, &data, sizeof data);
}

static CUresult hear(struct line *line)
{
    CUmemPoolPtrExportData data;
    char pool[24];
    snprintf(pool, sizeof pool, "%zu", line->two);
    if (!have_read(line->text, &data, sizeof data))
        return CUDA_ERROR_OPERATING_SYSTEM;
    return CU(cuMemPoolImportPointer)(place(line->name), (CUmemoryPool)*place(pool), &data);
}

const struct verb sharing_verbs[] = {
    {"ipcget", ipcget},     {"ipcopen", ipcopen}, {"ipcclose", ipcclose}, {"poolshare", poolshare},
    {"poolopen", poolopen}, {"tell", tell},       {"hear", hear},         {"ipcwithin", ipcwithin}, {NULL, NULL},
};
