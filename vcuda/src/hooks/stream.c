/* stream.c: streams that capture are left alone; streams that end are let go of. */
#include "hook.h"
#include "pacer.h"

/* While some stream of the process captures, launches ask one by one whether their stream does. */
#define BEGINS(name, parameters, ...)                                       \
    EXPORT CUresult name parameters                                         \
    {                                                                       \
        PASS_UNLESS_ACTIVE(name, __VA_ARGS__);                              \
        pacer_stream_ends(stream); /* its batch is closed before */         \
        pacer_captures(1);                                                  \
        CUresult result = REAL(name)(__VA_ARGS__);                          \
        if (result != CUDA_SUCCESS)                                         \
            pacer_captures(-1);                                             \
        return result;                                                      \
    }

BEGINS(cuStreamBeginCapture, (CUstream stream), stream)
BEGINS(cuStreamBeginCapture_ptsz, (CUstream stream), stream)
BEGINS(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), stream, mode)
BEGINS(cuStreamBeginCapture_v2_ptsz, (CUstream stream, CUstreamCaptureMode mode), stream, mode)

#define TO_GRAPH                                                                                              \
    (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count, \
     CUstreamCaptureMode mode)

BEGINS(cuStreamBeginCaptureToGraph, TO_GRAPH, stream, graph, nodes, edges, count, mode)
BEGINS(cuStreamBeginCaptureToGraph_ptsz, TO_GRAPH, stream, graph, nodes, edges, count, mode)

/* A capture that was spoilt ends here too, with an error; one that this stream did not begin does not. */
#define ENDS(name)                                                                              \
    EXPORT CUresult name(CUstream stream, CUgraph *graph)                                       \
    {                                                                                           \
        PASS_UNLESS_ACTIVE(name, stream, graph);                                                \
        CUresult result = REAL(name)(stream, graph);                                            \
        if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||        \
            result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED)                                       \
            pacer_captures(-1);                                                                 \
        return result;                                                                          \
    }

ENDS(cuStreamEndCapture)
ENDS(cuStreamEndCapture_ptsz)

#define GOES(name)                                                          \
    EXPORT CUresult name(CUstream stream)                                   \
    {                                                                       \
        PASS_UNLESS_ACTIVE(name, stream);                                   \
        pacer_stream_ends(stream);                                          \
        return REAL(name)(stream);                                          \
    }

GOES(cuStreamDestroy)
GOES(cuStreamDestroy_v2)
