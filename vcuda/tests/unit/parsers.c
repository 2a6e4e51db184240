/* parsers.c: whatever bytes come in, every parser answers and touches nothing else. Built with the sanitizers.
 *
 * With clang's -fsanitize=fuzzer (VCUDA_LIBFUZZER) it is a fuzz target. Otherwise it mutates good input itself, the same way
 * for the same seed:         parsers SEED ROUNDS
 * or writes good input as files for the fuzzer to begin with:  parsers seeds FOLDER
 */
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc32.h"
#include "loading/config_file.h"
#include "loading/identity.h"
#include "memory/image.h"
#include "time/schedule_page.h"

/* Every parser, each on an exact copy, so that one byte read too far is seen. */
static void parse_all(const uint8_t *data, size_t size)
{
    char reason[160];
    uint8_t *copy = malloc(size != 0 ? size : 1);
    memcpy(copy, data, size);
    config_check(copy, size, reason, sizeof reason);
    identity_parse_stat((const char *)copy, size);
    image_variables(copy, size);
    if (schedule_check(copy, size)) {
        struct vcuda_schedule page;
        memcpy(&page, copy, sizeof page);
        for (uint32_t slot = 0; slot < VCUDA_SCHEDULE_SLOTS; slot++)
            for (uint64_t now = 0; now < 4; now++) {
                struct turn turn = schedule_turn(&page, slot, page.epoch_ns + now * 12345677);
                if (turn.end_ns <= page.epoch_ns + now * 12345677)
                    abort(); /* time would stand still */
                if (page.epoch_ns >= page.period_ns &&
                    schedule_turn(&page, slot, page.epoch_ns + now * 12345677 - page.period_ns).open != turn.open)
                    abort(); /* every period is like the one before, also before the epoch */
            }
    }
    free(copy);
}

static void seal(uint8_t *record, size_t size, size_t from)
{
    uint32_t checksum = crc32_of(record + from, size - from - sizeof checksum);
    memcpy(record + size - sizeof checksum, &checksum, sizeof checksum);
}

/* Where the checksum of a record of this size begins to count; the size itself: it is no record with a checksum. */
static size_t checked_from(size_t size)
{
    return size == sizeof(struct vcuda_config) ? 0 : size == sizeof(struct vcuda_schedule) ? VCUDA_SCHEDULE_CHECKED_FROM : size;
}

#ifdef VCUDA_LIBFUZZER
/* As it is, and with a right checksum, which no fuzzer would find. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    parse_all(data, size);
    if (checked_from(size) < size) {
        uint8_t *sealed = malloc(size);
        memcpy(sealed, data, size);
        seal(sealed, size, checked_from(size));
        parse_all(sealed, size);
        free(sealed);
    }
    return 0;
}
#else
static size_t good_config(uint8_t *room)
{
    struct vcuda_config config = {.version = VCUDA_CONFIG_VERSION, .size = sizeof config, .device_count = 2};
    memcpy(config.magic, VCUDA_CONFIG_MAGIC, sizeof config.magic);
    strcpy(config.ledger_path, "/run/vcuda/ledger");
    for (int i = 0; i < 2; i++) {
        snprintf(config.devices[i].uuid, sizeof config.devices[i].uuid, "GPU-%d", i);
        config.devices[i].memory_limit_bytes = 1;
        config.devices[i].core_percent = 50;
    }
    memcpy(room, &config, sizeof config);
    return sizeof config;
}

static size_t good_page(uint8_t *room)
{
    struct vcuda_schedule page = {.version = VCUDA_SCHEDULE_VERSION, .size = sizeof page, .generation = 2,
                                  .heartbeat_ns = 1000, .stale_after_ns = 1, .period_ns = VCUDA_PERIOD_NS,
                                  .turn_count = 3, .slot_count = 3};
    memcpy(page.magic, VCUDA_SCHEDULE_MAGIC, sizeof page.magic);
    for (uint32_t i = 0; i < 3; i++)
        page.turns[i] = (struct vcuda_turn){i, i * 10000000, 10000000, 0};
    memcpy(room, &page, sizeof page);
    return sizeof page;
}

static size_t good_stat(uint8_t *room)
{
    static const char text[] = "42 (a) b) S 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 123456 1 1";
    memcpy(room, text, sizeof text - 1);
    return sizeof text - 1;
}

static size_t good_text(uint8_t *room)
{
    static const char text[] = ".version 6.0\n.global .align 4 .b8 a[3][5] = {1}, b;\n.entry f(.param .u64 p) {}\n";
    memcpy(room, text, sizeof text - 1);
    return sizeof text - 1;
}

/* Code with variables of 48 bytes in two sections. */
static size_t good_elf(uint8_t *room)
{
    static const char names[] = "\0.text.f\0.nv.global\0.nv.global.init\0.names";
    Elf64_Ehdr head = {.e_shoff = sizeof head, .e_shentsize = sizeof(Elf64_Shdr), .e_shnum = 4, .e_shstrndx = 3};
    memcpy(head.e_ident, ELFMAG, SELFMAG);
    head.e_ident[EI_CLASS] = ELFCLASS64;
    Elf64_Shdr sections[4] = {{.sh_name = 1, .sh_size = 1000},
                              {.sh_name = 9, .sh_size = 32, .sh_type = SHT_NOBITS},
                              {.sh_name = 20, .sh_size = 16},
                              {.sh_name = 36, .sh_size = sizeof names, .sh_offset = sizeof head + sizeof sections}};
    memcpy(room, &head, sizeof head);
    memcpy(room + sizeof head, sections, sizeof sections);
    memcpy(room + sizeof head + sizeof sections, names, sizeof names);
    return sizeof head + sizeof sections + sizeof names;
}

/* A fat binary of that, of text, and of what is compressed. */
static size_t good_fat(uint8_t *room)
{
    size_t at = 16;
    for (int kind = 1; kind <= 3; kind++) {
        struct {
            uint16_t kind, version;
            uint32_t header_size;
            uint64_t size;
            uint32_t unknown[6];
            uint64_t flags, more[2];
        } entry = {(uint16_t)(kind == 3 ? 1 : kind), 0x101, sizeof entry, 0, {0}, kind == 3 ? 0x2000 : 0, {0}};
        entry.size = kind == 2 ? good_elf(room + at + sizeof entry) : good_text(room + at + sizeof entry);
        memcpy(room + at, &entry, sizeof entry);
        at += sizeof entry + entry.size;
    }
    memcpy(room, &(uint32_t){0xba55ed50}, 4);
    memcpy(room + 4, &(uint16_t[]){1, 16}, 4);
    memcpy(room + 8, &(uint64_t){at - 16}, 8);
    return at;
}

#define INPUTS 6
static size_t good_input(int which, uint8_t *room)
{
    static size_t (*const all[INPUTS])(uint8_t *) = {good_config, good_page, good_stat, good_text, good_elf, good_fat};
    size_t size = all[which](room);
    if (checked_from(size) < size)
        seal(room, size, checked_from(size));
    return size;
}

static void write_seeds(const char *folder)
{
    static const char *const names[] = {"config", "schedule", "stat", "text", "elf", "fat"};
    static uint8_t room[16384];
    for (int which = 0; which < INPUTS; which++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", folder, names[which]);
        size_t size = good_input(which, room);
        FILE *file = fopen(path, "w");
        if (file == NULL || fwrite(room, 1, size, file) != size || fclose(file) != 0)
            abort();
    }
}

/* A few bytes changed, more of them near the beginning; mostly sealed again, so that the checks behind are reached. */
static size_t mutated(int which, uint8_t *room, unsigned *seed)
{
    size_t size = good_input(which, room);
    for (int flips = (int)((unsigned)rand_r(seed) % 6); flips > 0; flips--) {
        size_t at = (size_t)rand_r(seed) % (rand_r(seed) % 2 ? size : size < 400 ? size : 400);
        room[at] = (uint8_t)rand_r(seed);
    }
    if (checked_from(size) < size && rand_r(seed) % 4 != 0)
        seal(room, size, checked_from(size));
    return rand_r(seed) % 8 == 0 ? (size_t)rand_r(seed) % (size + 1) : size;
}

/* When a process began, 0 for one that has ended: also of names with brackets, and of first threads that ended alone. */
static bool start_times_are_right(void)
{
    static const struct {
        const char *text;
        uint64_t start;
    } cases[] = {
        {"42 (a) b) S 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 123456 1 1", 123456},
        {"42 (a) R 1 2 (b) S 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 9 0 123456 1 1", 123456},
        {"42 (a) Z 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 123456 1 1", 0},
        {"42 (a) Z 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 2 0 123456 1 1", 123456},
        {"42 (a) Z 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 10 0 123456 1 1", 123456},
        {"42 (a) X 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 123456 1 1", 0},
        {"42 (a) S 1 1 1 0 -1", 0},
        {"", 0},
    };
    bool right = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        right = identity_parse_stat(cases[i].text, strlen(cases[i].text)) == cases[i].start && right;
    return right;
}

/* What the variables of an image take: one that says its length itself, and one of known length. */
static bool variables_are_right(void)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {
        {".visible .global .align 4 .b8 variables[1024];", 1024},
        {".global .u32 x; .global .v4 .f32 y[10]; .global .f16x2 z, w[3][2], v;", 4 + 160 + 4 * 8},
        {"// .global .b8 no[5];\n/* .global .b8 no[5]; */ .const .b8 c[9]; .extern .global .b8 e[]; .global .b8 m[7];", 7},
        {".global .attribute(.managed) .align 8 .b64 m[2] = {1, 2};\n.file 1 \"a;b\"\n.global .u64 p = generic(m);", 24},
        {".entry f(.param .u64 .ptr .global .align 4 p) { .local .b8 l[8]; { } }\n.global .b8 g[3];", 3},
        {".global .b8 much[18446744073709551615][2];", UINT64_MAX},
        {".global .b8 unfinished[5]", 0},
        {"text", 0},
        {"", 0},
    };
    static uint8_t room[16384];
    bool right = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        right = image_variables(cases[i].text, IMAGE_ENDS_ITSELF) == cases[i].bytes && right;
    right = image_variables(room, good_elf(room)) == 48 && image_variables(room, IMAGE_ENDS_ITSELF) == 48 && right;
    right = image_variables(room, good_fat(room)) == 48 && image_variables(room, IMAGE_ENDS_ITSELF) == 48 && right;
    struct {
        uint32_t magic, version;
        const void *data, *others;
    } wrapper = {0x466243b1, 1, room, NULL};
    return image_variables(&wrapper, IMAGE_ENDS_ITSELF) == 48 && right;
}

int main(int count, char **arguments)
{
    static uint8_t room[16384];
    if (!start_times_are_right() || !variables_are_right())
        return 1;
    if (count == 3 && strcmp(arguments[1], "seeds") == 0) {
        write_seeds(arguments[2]);
        return 0;
    }
    unsigned seed = count > 1 ? (unsigned)atoi(arguments[1]) : 1;
    long rounds = count > 2 ? atol(arguments[2]) : 20000;
    for (long i = 0; i < rounds; i++)
        parse_all(room, mutated((int)(i % INPUTS), room, &seed));
    printf("%ld\n", rounds);
    return 0;
}
#endif
