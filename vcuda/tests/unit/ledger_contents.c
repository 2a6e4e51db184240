/* ledger_contents.c: whatever a program of the container writes into the ledger, before or in the middle of what the shim
 * does with it, the shim goes on: nothing crashes, nothing waits for ever, and what is left can be repaired. Built with the
 * sanitizers.
 *
 * With clang's -fsanitize=fuzzer (VCUDA_LIBFUZZER) it is a fuzz target; its input is a list of calls and of bytes that are
 * overwritten. Otherwise it makes such lists itself, the same for the same seed, and first does those of a file, each a line
 * of hexadecimal digits (inputs.py):                  ledger_contents SEED ROUNDS FILE
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "memory/charge.h"
#include "memory/orphans.h"
#include "process.h"
#include "state.h"
#include "time/account.h"
#include "time/schedule_page.h"
#include "usage_file.h"

#define MIB (1ull << 20)
#define CALLS_MOST 64

struct input {
    const uint8_t *at, *end;
};

static uint64_t take(struct input *input, size_t bytes)
{
    uint64_t value = 0;
    for (; bytes != 0 && input->at < input->end; bytes--)
        value = value << 8 | *input->at++;
    return value;
}

static void begin(void)
{
    static const char page[] = "/nonexistent/page"; /* turns by the share alone */
    memset(ledger, 0, sizeof *ledger);
    ledger_make_lock(ledger);
    ledger->public.magic = VCUDA_LEDGER_MAGIC;
    ledger->public.version = VCUDA_LEDGER_VERSION;
    if (config.device_count == 0) {
        config.device_count = 2;
        strcpy(config.usage_path, "/dev/null");
        for (int i = 0; i < 2; i++) {
            config.devices[i].memory_limit_bytes = 1024 * MIB;
            config.devices[i].core_percent = 50;
            strcpy(config.devices[i].schedule_path, page);
        }
        state_published = MODE_ACTIVE;
        schedule_open(&config);
    }
    process()->slot = ledger_attach(ledger, (uint64_t)getpid(), 1, 1);
}

/* Where something lies that is looked at, rather than anywhere in four megabytes. */
static size_t somewhere(struct input *input)
{
    static const struct {
        size_t begin, size;
    } parts[] = {
        {0, sizeof(struct vcuda_ledger_public)},
        {offsetof(struct ledger, lock), sizeof(pthread_mutex_t)},
        {offsetof(struct ledger, usage_sequence), 128},
        {offsetof(struct ledger, devices), 2 * sizeof(struct ledger_device)},
        {offsetof(struct ledger, slots), 4 * sizeof(struct ledger_slot)},
        {offsetof(struct ledger, slots), LEDGER_SLOTS * sizeof(struct ledger_slot)},
        {offsetof(struct ledger, sharing), 4 * sizeof(struct ledger_sharing)},
    };
    size_t part = take(input, 1) % (sizeof parts / sizeof *parts);
    return parts[part].begin + take(input, 3) % parts[part].size;
}

static void overwrite(struct input *input)
{
    static const uint64_t absurd[] = {0, UINT64_MAX, INT64_MAX, 1ull << 63, 1, 0x80000000};
    size_t at = somewhere(input), length = take(input, 1) % 16 + 1;
    unsigned how = (unsigned)take(input, 1);
    uint8_t *bytes = (uint8_t *)ledger;
    if (how % 2 == 0) { /* a whole word */
        memcpy(bytes + at / 8 * 8, &absurd[how / 2 % 6], 8);
        return;
    }
    for (size_t i = 0; i < length && at + i < sizeof *ledger; i++)
        bytes[at + i] = (uint8_t)take(input, 1);
}

static void change_memory(struct input *input, int index, uint64_t bytes)
{
    switch (take(input, 1) % 6) {
    case 0:
        if (charge(index, bytes))
            confirm(index, bytes);
        break;
    case 1:
        unsettle(index, bytes);
        discharge(index, bytes);
        break;
    case 2:
        others_may_hold(index, bytes);
        unsettle(index, bytes);
        orphan(index, bytes);
        break;
    case 3:
        opened_of_others(take(input, 1) % 2 != 0 ? 1 : -1);
        break;
    case 4:
        charge_anyway(index, bytes);
        break;
    default:
        ledger_held(ledger, index);
    }
}

static void change_time(struct input *input, int index)
{
    uint64_t now = clock_ns(), length = take(input, 4);
    struct turn turn;
    account_active(index, now, take(input, 1) % 2 != 0);
    account_in_flight_since(index, now - length);
    account_contenders(index);
    if (schedule_turn_now(index, now, &turn))
        account_credit(index, &turn, now);
    account_span(index, now - length, now, 3, take(input, 1) % 2 != 0 ? length / 2 : 0, 0);
}

static void look_after(struct input *input, int index)
{
    uint64_t now = clock_ns();
    struct vcuda_slot page = {.driver_bytes = take(input, 4), .driver_sampled_ns = now};
    ledger_sweep(ledger);
    ledger_true_up(ledger, index, take(input, 1) % 2 != 0 ? &page : NULL, now + take(input, 5));
    usage_write(true);
}

static void in_the_middle(struct input *input)
{
    if (!ledger_lock(ledger))
        return;
    overwrite(input);
    ledger_unlock(ledger);
}

static void another_process(struct input *input)
{
    int slot = ledger_attach(ledger, take(input, 2), take(input, 1), take(input, 1));
    if (slot >= 0 && ledger_charge(ledger, slot, 0, take(input, 3), 1024 * MIB, false))
        ledger_detach(ledger, slot);
}

static void do_all(const uint8_t *data, size_t size)
{
    struct input input = {data, data + size};
    begin();
    for (int i = 0; i < CALLS_MOST && input.at < input.end; i++) {
        int index = (int)(take(&input, 1) % 2);
        switch (take(&input, 1) % 8) {
        case 0:
            change_memory(&input, index, take(&input, 4));
            break;
        case 1:
            change_time(&input, index);
            break;
        case 2:
            look_after(&input, index);
            break;
        case 3:
            in_the_middle(&input);
            break;
        case 4:
            another_process(&input);
            break;
        default:
            overwrite(&input);
        }
    }
    if (!ledger_lock(ledger))
        return; /* taken by a thread that never was: refused */
    ledger_repair(ledger);
    if (!ledger_plausible(ledger))
        abort();
    ledger_unlock(ledger);
}

static void map_ledger(void)
{
    if (ledger == NULL)
        ledger = mmap(NULL, VCUDA_LEDGER_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

#ifdef VCUDA_LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    map_ledger();
    do_all(data, size);
    return 0;
}
#else
static long do_kept(const char *path)
{
    char line[4096], pair[3] = "";
    long done = 0;
    FILE *file = fopen(path, "r");
    for (; file != NULL && fgets(line, sizeof line, file) != NULL; done++) {
        uint8_t bytes[sizeof line / 2];
        size_t size = strcspn(line, "\n") / 2;
        for (size_t i = 0; i < size; i++) {
            memcpy(pair, line + 2 * i, 2);
            bytes[i] = (uint8_t)strtoul(pair, NULL, 16);
        }
        do_all(bytes, size);
    }
    if (file != NULL)
        fclose(file);
    return done;
}

int main(int count, char **arguments)
{
    unsigned seed = count > 1 ? (unsigned)atoi(arguments[1]) : 1;
    long rounds = count > 2 ? atol(arguments[2]) : 2000;
    map_ledger();
    long kept = count > 3 ? do_kept(arguments[3]) : -1;
    for (long i = 0; i < rounds; i++) {
        uint8_t room[512];
        for (size_t j = 0; j < sizeof room; j++)
            room[j] = (uint8_t)(rand_r(&seed) >> 7);
        do_all(room, sizeof room);
    }
    printf("%ld\n", rounds + (kept > 0 ? kept : 0));
    return kept == 0; /* the file that was named has nothing */
}
#endif
