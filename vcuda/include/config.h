/* config.h: what one container was allotted, written by the node agent before it starts.
 *
 * File      /etc/vcuda/config, bind-mounted read-only, owned by root, mode 0444, exactly
 *           VCUDA_CONFIG_SIZE bytes, little endian. It does not change while the container lives:
 *           limits that change travel on the schedule page.
 * Checksum  CRC-32 as in zlib over all bytes before `checksum`, the last four bytes.
 * Reader    the shim, once per process. Wrong size, magic, version, checksum, a count above its
 *           bound, a string without its NUL, a number out of range: the config is refused whole,
 *           cuInit fails and one line on standard error says which field was wrong.
 *           No file at all: the process is outside FairGPU and the shim is inert, unless the marker
 *           VCUDA_INJECTED_PATH exists (the node agent mounts it beside the shim): then cuInit
 *           fails with one line.
 *
 * Devices stand in the order in which CUDA shows them to the container (the order of the device
 * nodes); the shim finds its entry by UUID, never by index. A device of the driver's that is not in
 * the list gets nothing: contexts on it are refused.
 */
#ifndef VCUDA_CONFIG_H
#define VCUDA_CONFIG_H

#include "usage.h"

#define VCUDA_CONFIG_MAGIC "FGCONFG" /* eight bytes with its NUL */
#define VCUDA_CONFIG_VERSION 1u
#define VCUDA_CONFIG_PATH "/etc/vcuda/config"
#define VCUDA_INJECTED_PATH "/etc/vcuda/injected"
#define VCUDA_PATH_SIZE 96 /* absolute path, NUL padded, at least one NUL */
#define VCUDA_NAME_SIZE 64
#define VCUDA_POD_UID_SIZE 40

enum vcuda_policy {
    VCUDA_POLICY_HARD = 0,       /* at most its share, also when the GPU is idle otherwise */
    VCUDA_POLICY_ELASTIC = 1,    /* at least its share, and what others leave idle */
    VCUDA_POLICY_BEST_EFFORT = 2 /* no share: only what others leave idle; core_percent is 0 */
};

struct vcuda_config_device {
    char uuid[VCUDA_UUID_SIZE];
    char schedule_path[VCUDA_PATH_SIZE]; /* this GPU's schedule page inside the container:
                                          * "/etc/vcuda/schedule" for the first device and
                                          * "/etc/vcuda/schedule.N" for the one at index N >= 1;
                                          * empty: no turns, launches are never held */
    uint64_t memory_limit_bytes;         /* what the container may hold and is shown as the total; > 0 */
    uint64_t memory_soft_limit_bytes;    /* 0: none. Otherwise plain allocations above it become
                                          * managed memory (oversubscription); <= memory_limit_bytes */
    uint64_t context_bytes;              /* memory of one bare context on this GPU model, measured by the
                                          * node; reserved before each context. 0: the shim's estimate */
    uint64_t slot_key;                   /* non-zero name of this container on the page (see schedule.h) */
    uint32_t slot;                       /* its index in the page's `slots`, 0..VCUDA_SCHEDULE_SLOTS-1 */
    uint32_t core_percent;               /* share of the GPU's time, 0..100; 0 with best effort only */
    uint32_t policy;                     /* enum vcuda_policy */
    uint32_t task_priority;              /* 0 high, 1 normal */
    uint64_t reserved[5];                /* zero */
};

struct vcuda_config {
    char magic[8];                     /* VCUDA_CONFIG_MAGIC */
    uint32_t version;                  /* VCUDA_CONFIG_VERSION */
    uint32_t size;                     /* VCUDA_CONFIG_SIZE */
    uint32_t device_count;             /* 1..VCUDA_MAX_DEVICES */
    uint32_t flags;                    /* zero */
    char container[VCUDA_NAME_SIZE];   /* for messages */
    char pod_uid[VCUDA_POD_UID_SIZE];  /* for messages */
    char ledger_path[VCUDA_PATH_SIZE]; /* "/run/vcuda/ledger" */
    char usage_path[VCUDA_PATH_SIZE];  /* "/run/fairgpu/usage"; empty: no usage is written */
    struct vcuda_config_device devices[VCUDA_MAX_DEVICES];
    uint64_t reserved; /* zero */
    uint32_t padding;  /* zero */
    uint32_t checksum; /* CRC-32 of every byte before it */
};

#define VCUDA_CONFIG_SIZE 4048u

static_assert(sizeof(struct vcuda_config_device) == 232, "config device is 232 bytes");
static_assert(offsetof(struct vcuda_config_device, schedule_path) == 48, "layout");
static_assert(offsetof(struct vcuda_config_device, memory_limit_bytes) == 144, "layout");
static_assert(offsetof(struct vcuda_config_device, memory_soft_limit_bytes) == 152, "layout");
static_assert(offsetof(struct vcuda_config_device, context_bytes) == 160, "layout");
static_assert(offsetof(struct vcuda_config_device, slot_key) == 168, "layout");
static_assert(offsetof(struct vcuda_config_device, slot) == 176, "layout");
static_assert(offsetof(struct vcuda_config_device, core_percent) == 180, "layout");
static_assert(offsetof(struct vcuda_config_device, policy) == 184, "layout");
static_assert(offsetof(struct vcuda_config_device, task_priority) == 188, "layout");
static_assert(offsetof(struct vcuda_config, device_count) == 16, "layout");
static_assert(offsetof(struct vcuda_config, flags) == 20, "layout");
static_assert(offsetof(struct vcuda_config, container) == 24, "layout");
static_assert(offsetof(struct vcuda_config, pod_uid) == 88, "layout");
static_assert(offsetof(struct vcuda_config, ledger_path) == 128, "layout");
static_assert(offsetof(struct vcuda_config, usage_path) == 224, "layout");
static_assert(offsetof(struct vcuda_config, devices) == 320, "layout");
static_assert(offsetof(struct vcuda_config, checksum) == VCUDA_CONFIG_SIZE - 4, "checksum comes last");
static_assert(sizeof(struct vcuda_config) == VCUDA_CONFIG_SIZE, "the file's fixed size");

#endif
