#include "estate.h"

#include <stdlib.h>

#include "deferred_frees.h"
#include "hook.h"
#include "linear.h"
#include "pacer.h"

/* Without room for it, the row is not put back when the driver refuses: it stays charged until the process ends. */
static void note(struct estate *estate, const struct allocation *row)
{
    if (estate->count == estate->room) {
        size_t room = estate->room != 0 ? 2 * estate->room : 64;
        struct allocation *grown = realloc(estate->rows, room * sizeof *grown);
        if (grown == NULL)
            return;
        estate->rows = grown;
        estate->room = room;
    }
    estate->rows[estate->count++] = *row;
}

/* What a row counts for besides its bytes. */
static void count(const struct allocation *row, int change)
{
    if (row->kind == KIND_BLOCK)
        linear_blocks(row->device, change);
    if (row->kind == KIND_IMPORT)
        opened_of_others(change * (int)row->count);
}

static void take(struct estate *estate, const struct allocation *row)
{
    note(estate, row);
    count(row, -1);
    estate->bytes += row->bytes;
    estate->exported += allocation_exported(row) ? row->bytes : 0;
}

void estate_take(struct estate *estate, CUcontext context, int index)
{
    struct allocations *all = &process()->allocations;
    struct allocation row;
    *estate = (struct estate){.context = context, .index = index};
    pacer_context_ends(context);
    device_context_ends();
    deferred_frees_context_ends(context);
    while (allocations_take_of_context(all, (uint64_t)(uintptr_t)context, &row))
        take(estate, &row);
    if (allocations_take(all, KIND_CONTEXT, (uint64_t)(uintptr_t)context, &row)) {
        take(estate, &row);
        estate->index = row.device;
    }
    loosen(estate->index, estate->bytes);
    pools_context_ends(context);
    graph_memory_context_ends(context);
}

void estate_unknown_ends(CUcontext context)
{
    pacer_context_ends(context);
    device_context_ends();
    deferred_frees_context_ends(context);
    deferred_frees_context_ended(context, true);
}

static void put_back(const struct estate *estate)
{
    for (size_t i = 0; i < estate->count; i++) {
        allocations_put(&process()->allocations, &estate->rows[i]);
        count(&estate->rows[i], +1);
    }
}

void estate_settle(struct estate *estate, bool gone)
{
    if (gone) {
        discharge(estate->index, estate->bytes - estate->exported);
        orphan(estate->index, estate->exported);
    } else {
        put_back(estate);
        confirm(estate->index, estate->bytes);
    }
    deferred_frees_context_ended(estate->context, gone);
    pools_context_ended(estate->context, gone);
    graph_memory_context_ended(estate->context, gone);
    free(estate->rows);
}
