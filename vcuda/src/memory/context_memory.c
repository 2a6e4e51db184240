#include "memory/context_memory.h"

#include <stdlib.h>

#include "hooks/hook.h"
#include "memory/deferred_frees.h"
#include "memory/linear.h"
#include "time/pacer.h"

/* Without room for it, the row is not put back when the driver refuses: it stays charged until the process ends. */
static void note(struct context_memory *memory, const struct allocation *row)
{
    if (memory->count == memory->room) {
        size_t room = memory->room != 0 ? 2 * memory->room : 64;
        struct allocation *grown = realloc(memory->rows, room * sizeof *grown);
        if (grown == NULL)
            return;
        memory->rows = grown;
        memory->room = room;
    }
    memory->rows[memory->count++] = *row;
}

/* What a row counts for besides its bytes. */
static void count(const struct allocation *row, int change)
{
    if (row->kind == KIND_BLOCK)
        linear_blocks(row->device, change);
    if (row->kind == KIND_IMPORT)
        opened_of_others(change * (int)row->count);
}

static void take(void *argument, const struct allocation *row)
{
    struct context_memory *memory = argument;
    note(memory, row);
    count(row, -1);
    memory->bytes += row->bytes;
    memory->exported += allocation_exported(row) ? row->bytes : 0;
}

void context_memory_take(struct context_memory *memory, CUcontext context, int index, bool is_alive)
{
    struct allocations *all = &process()->allocations;
    struct allocation row;
    *memory = (struct context_memory){.context = context, .index = index};
    pacer_context_ends(context, is_alive);
    device_context_ends();
    deferred_frees_context_ends(context);
    allocations_take_of_context(all, (uint64_t)(uintptr_t)context, take, memory);
    if (allocations_take(all, KIND_CONTEXT, (uint64_t)(uintptr_t)context, &row)) {
        take(memory, &row);
        memory->index = row.device;
    }
    unsettle(memory->index, memory->bytes);
    pools_context_ends(context);
    graph_memory_context_ends(context);
}

void context_memory_unknown_ends(CUcontext context)
{
    pacer_context_ends(context, false);
    pacer_context_ended(context);
    device_context_ends();
    deferred_frees_context_ends(context);
    deferred_frees_context_ended(context, true);
}

static void put_back(const struct context_memory *memory)
{
    for (size_t i = 0; i < memory->count; i++) {
        allocations_put(&process()->allocations, &memory->rows[i]);
        count(&memory->rows[i], +1);
    }
}

void context_memory_settle(struct context_memory *memory, bool gone)
{
    if (gone) {
        pacer_context_ended(memory->context);
        discharge(memory->index, memory->bytes - memory->exported);
        orphan(memory->index, memory->exported);
        linear_context_ended(memory->index);
    } else {
        put_back(memory);
        confirm(memory->index, memory->bytes);
    }
    deferred_frees_context_ended(memory->context, gone);
    pools_context_ended(memory->context, gone);
    graph_memory_context_ended(memory->context, gone);
    free(memory->rows);
}
