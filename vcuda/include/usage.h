/* usage.h: what a container's processes used, for the sidecar in its pod.
 *
 * File      /run/fairgpu/usage (the config names it), made and written by the shim, mode 0644,
 *           always exactly VCUDA_USAGE_SIZE bytes. All integers little endian.
 * Writer    one process of the container at a time, about once a second while any device is in
 *           use and once more when a process ends normally; the whole record in one pwrite(2) at
 *           offset 0. The file is never truncated, mapped or renamed by the writer. The node agent
 *           writes the record of a container that has its GPUs whole and no shim, in the same way.
 * Reader    open(O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), fstat: a regular file of exactly
 *           VCUDA_USAGE_SIZE bytes, one pread of VCUDA_USAGE_SIZE bytes. Never mmap it: a process
 *           that truncates a mapped file kills its reader.
 * Checksum  CRC-32 as in zlib (polynomial 0xEDB88320, initial and final XOR 0xFFFFFFFF) over all
 *           bytes before the field `checksum`, which is the last four bytes of the record. Python:
 *               zlib.crc32(record[:-4]) == int.from_bytes(record[-4:], "little")
 * Torn      A record whose checksum does not match was read in the middle of a write, or is not
 *           ours. Read again, up to three times with a few milliseconds between; then keep the
 *           last good record. An empty file or one of zeros means: nothing was used yet.
 * Trust     The container can write what it likes into this file. It is advice to everyone
 *           outside the container: bound every field, and never let it make money.
 *
 * Counters are cumulative over all processes of the container, dead ones included, and only grow
 * while `epoch_ns` stays the same. A new `epoch_ns` means that they started again from zero (the
 * container was restarted): a reader that wants a total adds the last record of the old epoch.
 */
#ifndef VCUDA_USAGE_H
#define VCUDA_USAGE_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define VCUDA_USAGE_MAGIC "FGUSAGE" /* eight bytes with its NUL */
#define VCUDA_USAGE_VERSION 1u
#define VCUDA_MAX_DEVICES 16
#define VCUDA_UUID_SIZE 48 /* "GPU-" or "MIG-" and 36 characters, padded with NUL to 48 */

enum vcuda_usage_flags {
    VCUDA_USAGE_MEASURED_BY_NODE = 1 /* by the node agent from NVML's figures of whole GPUs: throttled_ns, launches and
                                      * oom are zero, since NVML does not count them */
};

struct vcuda_usage_device {
    char uuid[VCUDA_UUID_SIZE];  /* as NVML spells it; NUL padded, at least one NUL */
    uint64_t busy_ns;            /* GPU time attributed to this container, ns */
    uint64_t span_ns;            /* wall time in which it had work on the GPU, ns; >= its part of busy_ns */
    uint64_t throttled_ns;       /* time its launches were held back for their turn, ns, summed over threads */
    uint64_t memory_peak_bytes;  /* highest memory charged at one time, bytes (not MiB) */
    uint64_t memory_now_bytes;   /* memory charged when the record was written, bytes */
    uint64_t memory_limit_bytes; /* the limit in force when the record was written, bytes */
    uint64_t launches;           /* kernels and graphs launched */
    uint64_t oom;                /* allocations refused because of the limit */
    uint64_t reserved[2];        /* zero */
};

struct vcuda_usage {
    char magic[8];         /* VCUDA_USAGE_MAGIC */
    uint32_t version;      /* VCUDA_USAGE_VERSION; a reader refuses others */
    uint32_t size;         /* VCUDA_USAGE_SIZE */
    uint64_t sequence;     /* grows by at least one with every record of an epoch; never zero */
    uint64_t epoch_ns;     /* CLOCK_REALTIME when the counters were zero, ns; names the epoch */
    uint64_t written_ns;   /* CLOCK_REALTIME of this record, ns; for display only */
    uint32_t device_count; /* entries used in `devices`, 0..VCUDA_MAX_DEVICES; the rest are zero */
    uint32_t processes;    /* processes of the container that hold a CUDA context now */
    struct vcuda_usage_device devices[VCUDA_MAX_DEVICES];
    uint64_t flags;    /* enum vcuda_usage_flags; a reader ignores those that it does not know */
    uint32_t padding;  /* zero */
    uint32_t checksum; /* CRC-32 of every byte before it */
};

#define VCUDA_USAGE_SIZE 2112u

static_assert(sizeof(struct vcuda_usage_device) == 128, "usage device is 128 bytes");
static_assert(offsetof(struct vcuda_usage_device, busy_ns) == 48, "layout");
static_assert(offsetof(struct vcuda_usage_device, span_ns) == 56, "layout");
static_assert(offsetof(struct vcuda_usage_device, throttled_ns) == 64, "layout");
static_assert(offsetof(struct vcuda_usage_device, memory_peak_bytes) == 72, "layout");
static_assert(offsetof(struct vcuda_usage_device, memory_now_bytes) == 80, "layout");
static_assert(offsetof(struct vcuda_usage_device, memory_limit_bytes) == 88, "layout");
static_assert(offsetof(struct vcuda_usage_device, launches) == 96, "layout");
static_assert(offsetof(struct vcuda_usage_device, oom) == 104, "layout");
static_assert(offsetof(struct vcuda_usage, version) == 8, "layout");
static_assert(offsetof(struct vcuda_usage, size) == 12, "layout");
static_assert(offsetof(struct vcuda_usage, sequence) == 16, "layout");
static_assert(offsetof(struct vcuda_usage, epoch_ns) == 24, "layout");
static_assert(offsetof(struct vcuda_usage, written_ns) == 32, "layout");
static_assert(offsetof(struct vcuda_usage, device_count) == 40, "layout");
static_assert(offsetof(struct vcuda_usage, processes) == 44, "layout");
static_assert(offsetof(struct vcuda_usage, devices) == 48, "layout");
static_assert(offsetof(struct vcuda_usage, flags) == 2096, "layout");
static_assert(offsetof(struct vcuda_usage, checksum) == VCUDA_USAGE_SIZE - 4, "checksum comes last");
static_assert(sizeof(struct vcuda_usage) == VCUDA_USAGE_SIZE, "the file's fixed size");

#endif
