#include "node.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim_clock.h"

#define MAGIC 0x55504753U
#define VERSION 3U

static int complain(const char *what, const char *path)
{
    fprintf(stderr, "simgpu: %s %s: %s\n", what, path, strerror(errno));
    return -1;
}

static void *map_file(const char *directory, const char *name, size_t size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) {
        complain("cannot open", path);
        return NULL;
    }
    struct stat found;
    void *memory = MAP_FAILED;
    if (fstat(file, &found) == 0 && (found.st_size != 0 || ftruncate(file, (off_t)size) == 0)) {
        if (found.st_size != 0 && (uint64_t)found.st_size != size) {
            errno = EINVAL; /* made by another version of the simulator */
        } else {
            memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        }
    }
    if (memory != MAP_FAILED) {
        madvise(memory, size, MADV_RANDOM); /* a gigabyte of holes: the kernel fills what it reads ahead with zeros */
    }
    if (memory == MAP_FAILED) {
        complain("cannot map", path);
    }
    close(file);
    return memory == MAP_FAILED ? NULL : memory;
}

static void make_lock(pthread_mutex_t *lock)
{
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(lock, &kind);
    pthread_mutexattr_destroy(&kind);
}

static void make_node(struct sim_node *node, struct sim_truth *truth)
{
    node->settings = sim_settings_from_environment();
    node->version = VERSION;
    node->size = sizeof *node;
    make_lock(&node->lock);
    for (uint32_t i = 0; i < SIM_DEVICES; i++) {
        struct sim_device *device = &node->devices[i];
        make_lock(&device->lock);
        device->clock_ns = sim_real_ns();
        device->sampled_ns = device->clock_ns;
        device->random = 0x9e3779b97f4a7c15ULL + i;
        device->current = SIM_NONE;
        device->resident = SIM_NONE;
        for (int engine = 0; engine < SIM_ENGINES; engine++) {
            device->engines[engine].context = SIM_NONE;
        }
    }
    truth->magic = MAGIC;
    truth->version = VERSION;
    truth->size = sizeof *truth;
    __atomic_store_n(&node->magic, MAGIC, __ATOMIC_RELEASE);
}

static int open_private(struct sim_seat *seat)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    seat->node = mmap(NULL, sizeof *seat->node, PROT_READ | PROT_WRITE, flags, -1, 0);
    seat->truth = mmap(NULL, sizeof *seat->truth, PROT_READ | PROT_WRITE, flags, -1, 0);
    seat->descriptor = -1;
    if (seat->node == MAP_FAILED || seat->truth == MAP_FAILED) {
        return complain("cannot map", "a private node");
    }
    make_node(seat->node, seat->truth);
    return 0;
}

static int open_shared(struct sim_seat *seat, const char *directory)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/clients", directory);
    if (mkdir(directory, 0777) != 0 && errno != EEXIST) {
        return complain("cannot make", directory);
    }
    seat->descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (seat->descriptor < 0 || flock(seat->descriptor, LOCK_EX) != 0) {
        return complain("cannot lock", path);
    }
    seat->node = map_file(directory, "node", sizeof *seat->node);
    seat->truth = map_file(directory, "truth", sizeof *seat->truth);
    if (seat->node != NULL && seat->truth != NULL && seat->node->magic != MAGIC) {
        make_node(seat->node, seat->truth);
    }
    flock(seat->descriptor, LOCK_UN);
    return seat->node != NULL && seat->truth != NULL ? 0 : -1;
}

static void lock_node(struct sim_node *node)
{
    if (pthread_mutex_lock(&node->lock) == EOWNERDEAD) {
        pthread_mutex_consistent(&node->lock); /* each entry under it is complete once its `used` is set */
    }
}

static int take_byte(int descriptor, uint32_t byte)
{
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};
    return descriptor < 0 ? 0 : fcntl(descriptor, F_OFD_SETLK, &range);
}

uint64_t sim_pid_namespace(void)
{
    struct stat found;
    return stat("/proc/self/ns/pid", &found) == 0 ? (uint64_t)found.st_ino : 0;
}

uint64_t sim_start_time(const char *process)
{
    enum { SPACES = 20 }; /* from the command's name, which may hold anything, to the start */
    char path[64];
    char text[1024];
    snprintf(path, sizeof path, "/proc/%s/stat", process);
    FILE *file = fopen(path, "re");
    size_t length = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file);
    if (file != NULL) {
        fclose(file);
    }
    text[length] = '\0';
    char *at = strrchr(text, ')');
    for (int i = 0; at != NULL && i < SPACES; i++) {
        at = strchr(at + 1, ' ');
    }
    return at == NULL ? 0 : strtoull(at, NULL, 10);
}

static uint32_t take_client(const struct sim_seat *seat)
{
    const char *label = getenv("SIMGPU_LABEL");
    char own[32];
    snprintf(own, sizeof own, "pid-%d", (int)getpid());
    lock_node(seat->node);
    uint32_t index = 0;
    while (index < SIM_CLIENTS && (seat->node->clients[index].used || take_byte(seat->descriptor, index) != 0)) {
        index++;
    }
    if (index < SIM_CLIENTS) {
        struct sim_client *client = &seat->node->clients[index];
        client->pid = (uint32_t)getpid() + seat->node->settings.host_pid_offset;
        client->pid_namespace = sim_pid_namespace();
        client->start_time = sim_start_time("self");
        client->group = sim_truth_group(seat->truth, label != NULL && *label != '\0' ? label : own);
        client->fault = 0;
        client->dead_ns = 0;
        client->used = 1;
    }
    pthread_mutex_unlock(&seat->node->lock);
    return index < SIM_CLIENTS ? index : SIM_NONE;
}

int sim_node_join(struct sim_seat *seat, int as_client)
{
    const char *directory = getenv("SIMGPU_DIR");
    *seat = (struct sim_seat){.client = SIM_NONE, .descriptor = -1};
    int opened = directory != NULL && *directory != '\0' ? open_shared(seat, directory) : open_private(seat);
    if (opened != 0 || !as_client) {
        return opened;
    }
    sim_reap(seat);
    seat->client = take_client(seat);
    if (seat->client == SIM_NONE) {
        fprintf(stderr, "simgpu: more than %d processes on one node\n", SIM_CLIENTS);
        return -1;
    }
    return 0;
}

void sim_node_leave(struct sim_seat *seat)
{
    if (seat->descriptor >= 0) {
        close(seat->descriptor); /* the kernel drops the lock; the next caller of the driver sees to the rest */
    }
    munmap(seat->node, sizeof *seat->node);
    munmap(seat->truth, sizeof *seat->truth);
    *seat = (struct sim_seat){.client = SIM_NONE, .descriptor = -1};
}

struct sim_view sim_lock(const struct sim_seat *seat, uint32_t device)
{
    struct sim_view view = {
        .node = seat->node, .truth = seat->truth, .device = &seat->node->devices[device], .index = device};
    sim_reap(seat);
    if (pthread_mutex_lock(&view.device->lock) == EOWNERDEAD) {
        sim_repair(seat->node, seat->truth, device);
        pthread_mutex_consistent(&view.device->lock);
    }
    sim_advance(&view, sim_now(seat->node));
    return view;
}

void sim_unlock(const struct sim_view *view)
{
    pthread_mutex_unlock(&view->device->lock);
}
