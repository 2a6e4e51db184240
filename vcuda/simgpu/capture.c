#include "capture.h"

#include <stdlib.h>

#include "graph.h"

enum { MEMBERS = 64 };

struct sim_capture {
    struct sim_capture *next;
    CUgraph graph;
    CUstreamCaptureMode mode;
    const void *thread; /* address of a variable of the thread that began it */
    unsigned long long id;
    int invalid;
    int owns_graph; /* ends with the capture if no call takes it */
    uint32_t members;
    CUstream streams[MEMBERS]; /* the first began it; the others joined by waiting for its events */
};

static struct sim_capture *captures; /* guarded by sim_process_lock */
static uint32_t capture_count;       /* atomic: so that no thread takes the lock where there is none */
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

int sim_capturing(CUstream stream)
{
    return __atomic_load_n(&stream->capture, __ATOMIC_ACQUIRE) != NULL;
}

unsigned long long sim_capture_of(CUstream stream)
{
    unsigned long long id = 0;
    if (sim_capturing(stream)) {
        pthread_mutex_lock(&sim_process_lock);
        id = stream->capture != NULL ? stream->capture->id : 0;
        pthread_mutex_unlock(&sim_process_lock);
    }
    return id;
}

static int forbids(const struct sim_capture *capture)
{
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return 0;
    }
    if (capture->thread == &thread_mode) {
        return capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    }
    return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

int sim_capture_forbids(void)
{
    int found = 0;
    if (__atomic_load_n(&capture_count, __ATOMIC_ACQUIRE) == 0) {
        return 0;
    }
    pthread_mutex_lock(&sim_process_lock);
    for (struct sim_capture *each = captures; each != NULL; each = each->next) {
        found |= forbids(each);
    }
    pthread_mutex_unlock(&sim_process_lock);
    return found;
}

CUresult sim_capture_spoil(CUstream stream)
{
    pthread_mutex_lock(&sim_process_lock);
    for (struct sim_capture *each = captures; each != NULL; each = each->next) {
        if (forbids(each) || (stream != NULL && stream->capture == each)) {
            each->invalid = 1;
        }
    }
    pthread_mutex_unlock(&sim_process_lock);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult sim_capture_implicit(CUstream stream)
{
    CUcontext context = stream->context;
    int found = 0;
    if (__atomic_load_n(&capture_count, __ATOMIC_ACQUIRE) == 0 || stream != &context->legacy) {
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&sim_process_lock);
    for (struct sim_capture *each = captures; each != NULL; each = each->next) {
        if (each->streams[0]->context == context && !(each->streams[0]->flags & CU_STREAM_NON_BLOCKING)) {
            each->invalid = 1;
            found = 1;
        }
    }
    pthread_mutex_unlock(&sim_process_lock);
    return found ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

static CUresult add(CUstream stream, const struct sim_op *op, uint64_t bytes)
{
    CUresult result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    pthread_mutex_lock(&sim_process_lock);
    if (stream->capture != NULL && !stream->capture->invalid) {
        CUgraphNode node = sim_graph_add(stream->capture->graph, op);
        result = node == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
        if (node != NULL) {
            node->alloc_bytes = bytes;
            node->pool.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
            node->pool.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
            node->pool.location.id = (int)stream->context->device;
        }
    }
    pthread_mutex_unlock(&sim_process_lock);
    return result;
}

CUresult sim_capture_add(CUstream stream, const struct sim_op *op)
{
    return add(stream, op, 0);
}

CUresult sim_capture_allocate(CUstream stream, uint64_t bytes)
{
    const struct sim_op no_work = {.kind = OP_WAIT};
    return add(stream, &no_work, bytes);
}

CUresult sim_capture_join(CUstream stream, CUevent event)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_process_lock);
    struct sim_capture *capture = captures;
    while (capture != NULL && capture->id != event->capture) {
        capture = capture->next;
    }
    if (capture == NULL) {
        result = CUDA_ERROR_CAPTURED_EVENT;
    } else if (stream->capture != NULL && stream->capture != capture) {
        result = CUDA_ERROR_STREAM_CAPTURE_MERGE;
    } else if (stream->capture == NULL && capture->members == MEMBERS) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (stream->capture == NULL) {
        capture->streams[capture->members++] = stream;
        __atomic_store_n(&stream->capture, capture, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&sim_process_lock);
    return result;
}

/* Takes the capture out of the list and off its streams; the caller holds the lock. */
static void end(struct sim_capture *capture)
{
    struct sim_capture **link = &captures;
    while (*link != capture) {
        link = &(*link)->next;
    }
    *link = capture->next;
    for (uint32_t i = 0; i < capture->members; i++) {
        __atomic_store_n(&capture->streams[i]->capture, NULL, __ATOMIC_RELEASE);
    }
    __atomic_sub_fetch(&capture_count, 1, __ATOMIC_RELEASE);
}

void sim_capture_forget(CUstream stream)
{
    pthread_mutex_lock(&sim_process_lock);
    struct sim_capture *capture = stream->capture;
    if (capture != NULL) {
        end(capture);
        if (capture->owns_graph) {
            sim_graph_end(capture->graph);
        }
        free(capture);
    }
    pthread_mutex_unlock(&sim_process_lock);
}

static CUresult begin(CUstream handle, CUstreamCaptureMode mode, CUgraph graph)
{
    static unsigned long long next_id = 1; /* guarded by sim_process_lock */
    CUstream stream = NULL;
    CUresult result = sim_stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (stream == &stream->context->legacy) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    struct sim_capture *made = calloc(1, sizeof *made);
    CUgraph target = graph != NULL ? graph : sim_graph_make();
    if (made == NULL || target == NULL) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&sim_process_lock);
    if (stream->capture != NULL) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    } else {
        *made = (struct sim_capture){.next = captures, .graph = target, .mode = mode, .thread = &thread_mode,
                                     .id = next_id++, .owns_graph = graph == NULL, .members = 1, .streams = {stream}};
        captures = made;
        __atomic_add_fetch(&capture_count, 1, __ATOMIC_RELEASE);
        __atomic_store_n(&stream->capture, made, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&sim_process_lock);
    if (result != CUDA_SUCCESS) {
        free(made);
        if (graph == NULL) {
            sim_graph_end(target);
        }
    }
    return result;
}

static CUresult finish(CUstream handle, CUgraph *graph)
{
    CUstream stream = NULL;
    CUresult result = sim_stream_get(handle, &stream);
    if (result != CUDA_SUCCESS || graph == NULL) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&sim_process_lock);
    struct sim_capture *capture = stream->capture;
    *graph = NULL;
    if (capture == NULL) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    } else if (capture->streams[0] != stream) {
        result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    } else if (capture->thread != &thread_mode && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
        result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    } else {
        end(capture);
        result = capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
        if (result == CUDA_SUCCESS) {
            *graph = capture->graph;
        } else if (capture->owns_graph) {
            sim_graph_end(capture->graph);
        }
        free(capture);
    }
    pthread_mutex_unlock(&sim_process_lock);
    return result;
}

static CUresult status_of(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph)
{
    CUstream stream = NULL;
    CUresult result = sim_stream_get(handle, &stream);
    if (result != CUDA_SUCCESS || status == NULL) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&sim_process_lock);
    const struct sim_capture *capture = stream->capture;
    *status = capture == NULL    ? CU_STREAM_CAPTURE_STATUS_NONE
              : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                 : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (capture != NULL && id != NULL) {
        *id = capture->id;
    }
    if (capture != NULL && graph != NULL) {
        *graph = capture->graph;
    }
    pthread_mutex_unlock(&sim_process_lock);
    return CUDA_SUCCESS;
}

static CUresult no_dependencies(CUresult result, const CUgraphNode **dependencies, size_t *count)
{
    if (dependencies != NULL) {
        *dependencies = NULL;
    }
    if (count != NULL) {
        *count = 0;
    }
    return result;
}

SIM_TWINS(cuStreamBeginCapture, _ptsz, COST_EVENT, (CUstream stream), begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL))
SIM_TWINS(cuStreamBeginCapture_v2, _ptsz, COST_EVENT, (CUstream stream, CUstreamCaptureMode mode),
          begin(stream, mode, NULL))
SIM_TWINS(cuStreamBeginCaptureToGraph, _ptsz, COST_EVENT,
          (CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges, size_t count,
           CUstreamCaptureMode mode),
          ((void)dependencies, (void)edges, (void)count,
           graph == NULL ? CUDA_ERROR_INVALID_VALUE : begin(stream, mode, graph)))
SIM_TWINS(cuStreamEndCapture, _ptsz, COST_EVENT, (CUstream stream, CUgraph *graph), finish(stream, graph))
SIM_TWINS(cuStreamIsCapturing, _ptsz, COST_QUERY, (CUstream stream, CUstreamCaptureStatus *status),
          status_of(stream, status, NULL, NULL))
SIM_TWINS(cuStreamGetCaptureInfo, _ptsz, COST_QUERY, (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id),
          status_of(stream, status, id, NULL))
SIM_TWINS(cuStreamGetCaptureInfo_v2, _ptsz, COST_QUERY,
          (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
           const CUgraphNode **dependencies, size_t *count),
          no_dependencies(status_of(stream, status, id, graph), dependencies, count))
SIM_TWINS(cuStreamGetCaptureInfo_v3, _ptsz, COST_QUERY,
          (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
           const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count),
          ((void)edges, no_dependencies(status_of(stream, status, id, graph), dependencies, count)))

SIM_EXPORT CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    SIM_ENTER(COST_QUERY);
    if (mode == NULL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
