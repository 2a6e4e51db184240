/* threads.c: threads at the ledger, the table of allocations and the schedule page at once; run under TSan.
 *
 *     threads LEDGER_FILE [ROUNDS]
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "ledger/ledger.h"
#include "loading/identity.h"
#include "memory/allocations.h"

#define THREADS 6
#define LIMIT (64u << 20)

static struct ledger *ledger;
static struct allocations table;
static int slot, rounds = 4000;

static void *work(void *argument)
{
    uint64_t base = (uint64_t)(size_t)argument << 32;
    struct allocation found;
    for (uint64_t i = 1; i <= (uint64_t)rounds; i++) {
        uint64_t bytes = i % 7 * (1u << 20) + 1;
        if (!ledger_charge(ledger, slot, 0, bytes, LIMIT, false))
            continue;
        ledger_confirm(ledger, slot, 0, bytes);
        struct allocation row = {.key = base + i, .bytes = bytes, .context = i % 3 + 1, .kind = KIND_LINEAR, .count = 1};
        if (!allocations_put(&table, &row))
            abort();
        if (ledger_held(ledger, 0) > LIMIT)
            abort();
        if (i % 50 == 0) {
            struct vcuda_slot page = {.driver_bytes = LIMIT, .driver_sampled_ns = clock_ns()};
            ledger_true_up(ledger, 1, &page, clock_ns());
            ledger_sweep(ledger);
        }
        if (!allocations_take(&table, KIND_LINEAR, row.key, &found) || found.bytes != bytes)
            abort();
        ledger_unsettle(ledger, slot, 0, bytes);
        ledger_discharge(ledger, slot, 0, bytes);
    }
    return NULL;
}

/* Rows that collide are found again, whichever of them were taken before. */
static bool finds_what_is_there(void)
{
    struct allocation found;
    bool right = true;
    for (uint64_t key = 1; key <= 5000; key++) {
        struct allocation row = {.key = key << 21, .bytes = key, .kind = KIND_LINEAR, .count = 1};
        right = allocations_put(&table, &row) && right;
    }
    for (uint64_t key = 1; key <= 5000; key += 1 + key % 3)
        right = allocations_take(&table, KIND_LINEAR, key << 21, &found) && found.bytes == key && right;
    for (uint64_t key = 1, gone = 1; key <= 5000; key++) {
        bool there = allocations_take(&table, KIND_LINEAR, key << 21, &found);
        right = there == (key != gone) && right;
        gone += key == gone ? 1 + key % 3 : 0;
    }
    return right;
}

/* One handle may be mapped more often than 16 bits count. */
static bool counts_far(void)
{
    struct allocation row = {.key = 1, .kind = KIND_PHYSICAL, .count = 1}, found;
    bool right = allocations_put(&table, &row);
    for (int i = 0; i < 70000; i++)
        right = allocations_count(&table, KIND_PHYSICAL, 1, 1, &found) == i + 2 && right;
    return allocations_count(&table, KIND_PHYSICAL, 1, -70000, &found) == 1 &&
           allocations_count(&table, KIND_PHYSICAL, 1, -1, &found) == 0 &&
           !allocations_find(&table, KIND_PHYSICAL, 1, &found) && right;
}

int main(int count, char **arguments)
{
    char reason[128];
    bool not_now;
    pthread_t threads[THREADS];
    if (count > 2)
        rounds = atoi(arguments[2]);
    ledger = ledger_open(arguments[1], reason, sizeof reason, &not_now);
    if (ledger == NULL) {
        fprintf(stderr, "%s\n", reason);
        return 1;
    }
    allocations_start(&table);
    if (!counts_far() || !finds_what_is_there())
        return 2;
    slot = ledger_attach(ledger, (uint64_t)getpid(), identity_start_time(getpid()), identity_namespace());
    for (size_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    struct ledger_slot *ours = &ledger->slots[slot];
    printf("%llu %llu\n", (unsigned long long)ours->charged[0], (unsigned long long)ours->unsettled[0]);
    return ours->charged[0] != 0 || ours->unsettled[0] != 0 || ledger->devices[0].total != 0;
}
