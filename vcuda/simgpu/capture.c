/* Streams under capture. */
#include "capture.h"

int sim_capture_forbids(void)
{
    return 0;
}

CUresult sim_capture_spoil(void)
{
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

int sim_capturing(CUstream stream)
{
    return stream->capture != NULL;
}

CUresult sim_capture_add(CUstream stream, const struct sim_op *op)
{
    (void)stream;
    (void)op;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult sim_capture_join(CUstream stream, CUevent event)
{
    (void)stream;
    (void)event;
    return CUDA_ERROR_NOT_SUPPORTED;
}

void sim_capture_forget(CUstream stream)
{
    stream->capture = NULL;
}
