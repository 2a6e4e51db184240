/* Teardown: the state of processes that have ended, and memory without a reference. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim_clock.h"
#include "node.h"

#define REAP_NS 5000000ULL /* between looks at the processes that may have ended */

/* After a time of so long without a look, each caller waits until one is done: a driver tears processes down whether or not
 * another calls, and gives none of their memory away before. */
#define OVERDUE_NS 50000000ULL

/* Only called where no lock of the node is held. */
static int client_alive(const struct sim_seat *seat, uint32_t client)
{
    if (client == seat->client || seat->descriptor < 0) {
        return 1;
    }
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)client, .l_len = 1};
    return fcntl(seat->descriptor, F_OFD_GETLK, &range) != 0 || range.l_type != F_UNLCK;
}

int sim_handle_path(uint32_t device, uint32_t handle, uint32_t serial, char *path, uint64_t size)
{
    const char *directory = getenv("SIMGPU_DIR");
    if (directory == NULL || *directory == '\0') {
        return -1;
    }
    snprintf(path, size, "%s/handle-%u-%u-%u", directory, device, handle, serial);
    return 0;
}

static int held_by_descriptor(const struct sim_view *view, uint32_t handle)
{
    char path[4096];
    if (sim_handle_path(view->index, handle, view->device->handles[handle].serial, path, sizeof path) != 0) {
        return 0;
    }
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        return 0;
    }
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    int held = fcntl(file, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
    close(file);
    if (!held) {
        unlink(path);
    }
    return held;
}

void sim_handle_settle(const struct sim_seat *seat, const struct sim_view *view, uint32_t handle)
{
    struct sim_handle *entry = &view->device->handles[handle];
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        if (entry->refs[i] != 0) {
            return;
        }
    }
    if (entry->exported && seat->descriptor >= 0 && held_by_descriptor(view, handle)) {
        return;
    }
    view->device->used_bytes -= entry->bytes;
    entry->used = 0;
    sim_truth_memory(view->truth, view->index, entry->truth, -(int64_t)entry->bytes);
}

void sim_context_release(const struct sim_view *view, uint32_t context)
{
    struct sim_context *owner = &view->device->contexts[context];
    sim_drop(view->device, context);
    uint64_t bytes = owner->bytes;
    view->device->used_bytes -= bytes;
    owner->bytes = 0;
    owner->managed = 0;
    sim_truth_memory(view->truth, view->index, owner->truth, -(int64_t)bytes);
    view->truth->contexts[owner->truth].end_ns = view->device->clock_ns;
    owner->used = 0;
    if (view->device->current == context) {
        view->device->current = SIM_NONE;
    }
    if (view->device->resident == context) {
        view->device->resident = SIM_NONE;
    }
}

static void release_client(const struct sim_seat *seat, const struct sim_view *view, uint32_t client)
{
    struct sim_device *device = view->device;
    for (uint32_t i = 0; i < SIM_CONTEXTS; i++) {
        if (device->contexts[i].used && device->contexts[i].client == client) {
            sim_context_release(view, i);
        }
    }
    for (uint32_t i = 0; i < device->handle_top; i++) {
        if (device->handles[i].used) {
            device->handles[i].refs[client] = 0;
            sim_handle_settle(seat, view, i);
        }
    }
    for (uint32_t i = 0; i < device->event_top; i++) {
        if (device->events[i].owner == client + 1) {
            device->events[i].owner = 0;
        }
    }
}

static void drop_client(const struct sim_view *view, uint32_t client)
{
    for (uint32_t i = 0; i < SIM_CONTEXTS; i++) {
        if (view->device->contexts[i].used && view->device->contexts[i].client == client) {
            sim_drop(view->device, i);
        }
    }
}

/* A driver begins to tear a process down when it ends, whether or not another calls: it ended since `looked_ns`. */
static void tend(const struct sim_seat *seat, uint32_t client, uint64_t looked_ns, uint64_t now)
{
    struct sim_client *entry = &seat->node->clients[client];
    int over = entry->used == 2 && now >= entry->dead_ns + seat->node->settings.teardown_ns;
    if (entry->used == 2 && !over) {
        return;
    }
    for (uint32_t i = 0; i < seat->node->settings.devices; i++) {
        struct sim_view view = {
            .node = seat->node, .truth = seat->truth, .device = &seat->node->devices[i], .index = i};
        if (pthread_mutex_lock(&view.device->lock) == EOWNERDEAD) {
            sim_repair(seat->node, seat->truth, i);
            pthread_mutex_consistent(&view.device->lock);
        }
        sim_advance(&view, sim_now(seat->node));
        if (over) {
            release_client(seat, &view, client);
        } else {
            drop_client(&view, client);
        }
        pthread_mutex_unlock(&view.device->lock);
    }
    if (over) {
        entry->used = 0;
    } else {
        entry->dead_ns = looked_ns;
        entry->used = 2;
    }
}

static void settle_exports(const struct sim_seat *seat)
{
    for (uint32_t d = 0; d < seat->node->settings.devices; d++) {
        struct sim_view view = {
            .node = seat->node, .truth = seat->truth, .device = &seat->node->devices[d], .index = d};
        if (view.device->exports == 0) {
            continue;
        }
        if (pthread_mutex_lock(&view.device->lock) == EOWNERDEAD) {
            sim_repair(seat->node, seat->truth, d);
            pthread_mutex_consistent(&view.device->lock);
        }
        for (uint32_t i = 0; i < view.device->handle_top; i++) {
            if (view.device->handles[i].used && view.device->handles[i].exported) {
                sim_handle_settle(seat, &view, i);
            }
        }
        pthread_mutex_unlock(&view.device->lock);
    }
}

/* The look is over once reaped_ns says so: a thread that finds it long ago waits for the one that looks, and the others go on. */
static int begin_look(struct sim_node *node, uint64_t last, uint64_t real)
{
    int error = real < last + OVERDUE_NS ? pthread_mutex_trylock(&node->lock) : pthread_mutex_lock(&node->lock);
    if (error == EOWNERDEAD) {
        pthread_mutex_consistent(&node->lock);
    }
    return error != EBUSY;
}

void sim_reap(const struct sim_seat *seat)
{
    struct sim_node *node = seat->node;
    uint64_t real = sim_real_ns();
    uint64_t last = __atomic_load_n(&node->reaped_ns, __ATOMIC_ACQUIRE);
    if (seat->descriptor < 0 || real < last + REAP_NS || !begin_look(node, last, real)) {
        return;
    }
    if (__atomic_load_n(&node->reaped_ns, __ATOMIC_RELAXED) == last) {
        uint64_t now = sim_now(node), looked = node->looked_ns != 0 ? node->looked_ns : now;
        for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
            if (node->clients[i].used == 1 && !client_alive(seat, i)) {
                tend(seat, i, looked, now);
            }
            if (node->clients[i].used == 2) {
                tend(seat, i, looked, now);
            }
        }
        node->looked_ns = now;
        settle_exports(seat);
        __atomic_store_n(&node->reaped_ns, real, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&node->lock);
}

/* Counts anew how much each group holds. A group's figure changes in one step: its readers take no lock. */
static void repair_memory(struct sim_device *device, struct sim_truth *truth, uint32_t number)
{
    uint64_t sums[SIM_TRUTH_GROUPS] = {0}, all = 0;
    for (uint32_t i = 0; i < SIM_CONTEXTS; i++) {
        const struct sim_context *context = &device->contexts[i];
        if (context->used) {
            truth->contexts[context->truth].bytes = context->bytes;
            sums[truth->contexts[context->truth].group] += context->bytes;
            all += context->bytes;
        }
    }
    for (uint32_t i = 0; i < device->handle_top; i++) {
        const struct sim_handle *handle = &device->handles[i];
        if (handle->used) {
            truth->contexts[handle->truth].bytes += handle->bytes;
            sums[truth->contexts[handle->truth].group] += handle->bytes;
            all += handle->bytes;
        }
    }
    device->used_bytes = all;
    for (uint32_t i = 0; i < SIM_TRUTH_GROUPS; i++) {
        __atomic_store_n(&truth->groups[i].bytes[number], sums[i], __ATOMIC_RELAXED);
    }
}

void sim_repair(struct sim_node *node, struct sim_truth *truth, uint32_t number)
{
    struct sim_device *device = &node->devices[number];
    memset(device->busy, 0, sizeof device->busy);
    repair_memory(device, truth, number);
    for (int i = 0; i < SIM_ENGINES; i++) {
        device->engines[i].context = SIM_NONE;
    }
    for (uint32_t i = 0; i < SIM_CONTEXTS; i++) {
        struct sim_context *context = &device->contexts[i];
        context->copying = 0;
        context->pending = 0;
        for (uint32_t c = 0; context->used && c < SIM_CHANNELS; c++) {
            context->pending |= (uint32_t)(context->channels[c].head != context->channels[c].tail) << c;
        }
        if (context->pending != 0) {
            device->busy[i / 64] |= 1ULL << (i % 64);
        }
    }
    if (device->current != SIM_NONE && !device->contexts[device->current].used) {
        device->current = SIM_NONE;
    }
}
