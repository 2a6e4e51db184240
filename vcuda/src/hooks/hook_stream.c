/* hook_stream.c: the pacer asks the driver nothing about streams that capture, forgets streams that end, and measures what comes
 * before and behind a wait by itself. */
#include "hooks/hook.h"
#include "time/pacer.h"

/* While some stream of the process captures, the driver is asked about no stream: it might be of that capture. */
#define BEGINS(name, parameters, ...)              \
    EXPORT CUresult name parameters                \
    {                                              \
        PASS_UNLESS_ACTIVE(name, __VA_ARGS__);     \
        pacer_capture_begins(stream);              \
        CUresult result = REAL(name)(__VA_ARGS__); \
        if (result != CUDA_SUCCESS)                \
            pacer_capture_ends(stream);            \
        return result;                             \
    }

BEGINS(cuStreamBeginCapture, (CUstream stream), stream)
BEGINS(cuStreamBeginCapture_ptsz, (CUstream stream), stream)
BEGINS(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), stream, mode)
BEGINS(cuStreamBeginCapture_v2_ptsz, (CUstream stream, CUstreamCaptureMode mode), stream, mode)

#define TO_GRAPH                                                                                           \
    (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count, \
     CUstreamCaptureMode mode)

BEGINS(cuStreamBeginCaptureToGraph, TO_GRAPH, stream, graph, nodes, edges, count, mode)
BEGINS(cuStreamBeginCaptureToGraph_ptsz, TO_GRAPH, stream, graph, nodes, edges, count, mode)

#define RECAPTURE (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback callback, void *data)

BEGINS(cuStreamBeginRecaptureToGraph, RECAPTURE, stream, mode, graph, callback, data)
BEGINS(cuStreamBeginRecaptureToGraph_ptsz, RECAPTURE, stream, mode, graph, callback, data)
BEGINS(cuStreamBeginCaptureToCig, (CUstream stream, CUstreamCigCaptureParams *parameters), stream, parameters)
BEGINS(cuStreamBeginCaptureToCig_ptsz, (CUstream stream, CUstreamCigCaptureParams *parameters), stream, parameters)

/* The result does not say whether the capture ended: a capture that was invalidated ends here with an error, and one that
 * this stream did not begin does not end. */
#define ENDS(name)                                                                                                 \
    EXPORT CUresult name(CUstream stream, CUgraph *graph)                                                          \
    {                                                                                                              \
        CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;                                              \
        PASS_UNLESS_ACTIVE(name, stream, graph);                                                                   \
        CUresult result = REAL(name)(stream, graph);                                                               \
        if (REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status == CU_STREAM_CAPTURE_STATUS_NONE) \
            pacer_capture_ends(stream);                                                                            \
        return result;                                                                                             \
    }

ENDS(cuStreamEndCapture)
ENDS(cuStreamEndCapture_ptsz)

#define ENDS_CIG(name)                        \
    EXPORT CUresult name(CUstream stream)     \
    {                                         \
        PASS_UNLESS_ACTIVE(name, stream);     \
        CUresult result = REAL(name)(stream); \
        if (result == CUDA_SUCCESS)           \
            pacer_capture_ends(stream);       \
        return result;                        \
    }

ENDS_CIG(cuStreamEndCaptureToCig)
ENDS_CIG(cuStreamEndCaptureToCig_ptsz)

#define GOES(name)                        \
    EXPORT CUresult name(CUstream stream) \
    {                                     \
        PASS_UNLESS_ACTIVE(name, stream); \
        pacer_stream_ends(stream);        \
        return REAL(name)(stream);        \
    }

GOES(cuStreamDestroy)
GOES(cuStreamDestroy_v2)

/* A call by which a stream waits for something else than its own work, and its twin for per-thread default streams. */
#define WAITS_IN(name, stream, parameters, ...) \
    EXPORT CUresult name parameters             \
    {                                           \
        PASS_UNLESS_ACTIVE(name, __VA_ARGS__);  \
        pacer_waits(stream);                    \
        return REAL(name)(__VA_ARGS__);         \
    }
#define WAITS(name, parameters, ...)                \
    WAITS_IN(name, stream, parameters, __VA_ARGS__) \
    WAITS_IN(name##_ptsz, per_thread(stream), parameters, __VA_ARGS__)

WAITS(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void *data), stream, function, data)
WAITS(cuLaunchHostFunc_v2, (CUstream stream, CUhostFn function, void *data, unsigned int mode), stream, function, data, mode)
WAITS(cuStreamAddCallback, (CUstream stream, CUstreamCallback callback, void *data, unsigned int flags), stream, callback, data,
      flags)
WAITS(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags), stream, event, flags)

#define OF_32 (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags)
#define OF_64 (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)
#define OPERATIONS (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *operations, unsigned int flags)

WAITS(cuStreamWaitValue32, OF_32, stream, address, value, flags)
WAITS(cuStreamWaitValue32_v2, OF_32, stream, address, value, flags)
WAITS(cuStreamWaitValue64, OF_64, stream, address, value, flags)
WAITS(cuStreamWaitValue64_v2, OF_64, stream, address, value, flags)
WAITS(cuStreamBatchMemOp, OPERATIONS, stream, count, operations, flags)
WAITS(cuStreamBatchMemOp_v2, OPERATIONS, stream, count, operations, flags)
WAITS(cuWaitExternalSemaphoresAsync,
      (const CUexternalSemaphore *semaphores, const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *parameters, unsigned int count,
       CUstream stream),
      semaphores, parameters, count, stream)
