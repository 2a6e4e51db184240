/* release_of_the_dead.c: a sample of the node that was overtaken by events, in the order in which they spoil it.
 *
 *     release_of_the_dead LEDGER CASE      prints "CHARGED HELD" in MiB, at the end of the case
 *
 * In each case X is dead and the driver holds its 64 MiB to the end, except where the case says otherwise. What is
 * charged must never be less than what the driver holds.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "ledger/ledger.h"

#define MIB (1ull << 20)
#define SECOND 1000000000ull

_Static_assert(offsetof(struct ledger, slots) == 6528 && sizeof(struct ledger_slot) == 832 &&
                   offsetof(struct ledger_slot, unsettled) == 192 && sizeof(struct ledger_sharing) == 192 &&
                   offsetof(struct ledger, sharing) == 6528 + LEDGER_SLOTS * 832 &&
                   offsetof(struct ledger_sharing, imported) == 128,
               "tests/node.py reads it so");

static struct ledger *ledger;

static int attach(void)
{
    static uint64_t begun; /* each another process, and of another namespace: no sweep looks at it */
    return ledger_attach(ledger, (uint64_t)getpid(), ++begun, 1);
}

static void charge(int slot, uint64_t mib)
{
    if (!ledger_charge(ledger, slot, 0, mib * MIB, 1u << 30, false))
        abort();
}

static int holding(uint64_t mib)
{
    int slot = attach();
    charge(slot, mib);
    ledger_confirm(ledger, slot, 0, mib * MIB);
    return slot;
}

static void dead(uint64_t mib)
{
    ledger_detach(ledger, holding(mib));
}

static struct vcuda_slot sample(uint64_t mib)
{
    return (struct vcuda_slot){.driver_bytes = mib * MIB, .driver_sampled_ns = clock_ns()};
}

static void use(struct vcuda_slot page)
{
    ledger_true_up(ledger, 0, &page, clock_ns());
}

/* The driver holds so much, and names no dead process of the container. */
static struct vcuda_slot sample_without_the_dead(uint64_t mib)
{
    struct vcuda_slot page = sample(mib);
    page.dead_gone_ns = page.driver_sampled_ns;
    return page;
}

static int dead_for_long(uint64_t mib)
{
    int slot = holding(mib);
    ledger_detach(ledger, slot);
    ledger->slots[slot].died_ns -= 10 * SECOND;
    return slot;
}

static uint64_t let_go(void)
{
    holding(40);
    dead(64);
    use(sample(104));
    use(sample(40)); /* X is torn down */
    return 40;
}

static uint64_t in_flight_then_dead(void)
{
    dead(64);
    int p = attach();
    charge(p, 40);
    use(sample(64));
    struct vcuda_slot before = sample(64); /* P's 40 are charged, and the driver has not come to them */
    ledger_confirm(ledger, p, 0, 40 * MIB);
    ledger_detach(ledger, p);
    use(before);
    return 104;
}

static uint64_t older_than_the_last(void)
{
    dead(64);
    int p = attach();
    charge(p, 40);
    struct vcuda_slot before = sample(64);
    ledger_confirm(ledger, p, 0, 40 * MIB);
    use(sample(104));
    use(before);
    return 104;
}

static uint64_t owner_killed_in_discharge(void)
{
    dead(64);
    int p = holding(40), status;
    use(sample(104));
    ledger_unsettle(ledger, p, 0, 40 * MIB);
    struct vcuda_slot after = sample(64); /* P's 40 are freed */
    pid_t child = fork();
    if (child == 0) { /* as ledger_discharge does, up to where it is killed */
        ledger_lock(ledger);
        ledger->slots[p].charged[0] = 0;
        ledger->slots[p].unsettled[0] = ledger->slots[p].most_unsettled[0] = 0;
        _exit(0);
    }
    waitpid(child, &status, 0);
    use(after);
    return 64;
}

static uint64_t freed_then_left(void)
{
    dead(64);
    int p = holding(40), q = attach();
    ledger_unsettle(ledger, p, 0, 40 * MIB);
    use(sample(104));
    struct vcuda_slot freed = sample(64); /* P's 40 are freed and still charged */
    charge(q, 40);
    ledger_confirm(ledger, q, 0, 40 * MIB);
    ledger_discharge(ledger, p, 0, 40 * MIB);
    ledger_detach(ledger, p);
    use(freed);
    return 104;
}

static uint64_t timed_out_in_the_window(void)
{
    dead(64);
    holding(40);
    use(sample(104));
    ledger_true_up(ledger, 0, NULL, clock_ns() + 6 * SECOND); /* X is given up, and gone */
    dead(60);
    use(sample(100));
    return 100;
}

static uint64_t leaving_amid_a_call(void)
{
    int p = attach();
    charge(p, 40);
    ledger_detach(ledger, p); /* while another thread of it is in the driver, that has not come to it */
    use(sample(0));
    return 40;
}

static uint64_t open_when_given_up(void)
{
    int p = holding(64), q = attach();
    ledger_export(ledger, p, 0, 64 * MIB);
    ledger_import(ledger, q, +1);
    ledger_detach(ledger, p);
    ledger_true_up(ledger, 0, NULL, clock_ns() + 6 * SECOND);
    return 64; /* Q has it open */
}

static uint64_t closed_when_given_up(void)
{
    open_when_given_up();
    for (int slot = 0; slot < LEDGER_SLOTS; slot++)
        if (ledger->sharing[slot].imported != 0)
            ledger_import(ledger, slot, -1);
    ledger_true_up(ledger, 0, NULL, clock_ns() + 6 * SECOND);
    return 0;
}

static uint64_t freed_while_open(void)
{
    int p = holding(64);
    ledger_export(ledger, p, 0, 64 * MIB);
    ledger_unsettle(ledger, p, 0, 64 * MIB);
    if (!ledger_orphan(ledger, p, 0, 64 * MIB))
        abort();
    ledger_confirm(ledger, p, 0, 64 * MIB);
    ledger_detach(ledger, p);
    use(sample(64));
    return 64;
}

static uint64_t left_while_another_grew(void)
{
    dead(64);
    int p = holding(40), q = attach();
    use(sample(104));
    ledger_unsettle(ledger, p, 0, 40 * MIB);
    struct vcuda_slot freed = sample(64); /* P's 40 are freed and still charged */
    for (int i = 0; i < 4; i++) {
        charge(q, 10);
        ledger_confirm(ledger, q, 0, 10 * MIB);
    }
    ledger_discharge(ledger, p, 0, 40 * MIB);
    ledger_detach(ledger, p);
    use(freed);
    return 104;
}

static uint64_t left_before_the_window(void)
{
    int p = holding(40);
    holding(40);
    dead(64);
    ledger_unsettle(ledger, p, 0, 40 * MIB);
    ledger_discharge(ledger, p, 0, 40 * MIB);
    ledger_detach(ledger, p);
    use(sample(104));
    use(sample(40)); /* X is torn down */
    return 40;
}

static uint64_t torn_down_while_others_came_and_went(void)
{
    dead(64);
    use(sample(64));
    int p = holding(40);
    ledger_unsettle(ledger, p, 0, 40 * MIB);
    ledger_discharge(ledger, p, 0, 40 * MIB);
    use(sample(0));
    return 0;
}

static uint64_t gone_while_others_keep_pages_in_no_figure(void)
{
    holding(40);
    dead_for_long(64);
    use(sample_without_the_dead(104)); /* 64 are pages of another container's managed memory */
    return 40;
}

static uint64_t gone_a_moment_ago(void)
{
    holding(40);
    dead(64);
    use(sample_without_the_dead(104));
    return 104;
}

static uint64_t gone_and_open_elsewhere(void)
{
    ledger_export(ledger, dead_for_long(64), 0, 64 * MIB);
    use(sample_without_the_dead(64));
    return 64;
}

static uint64_t named_after_its_death(void)
{
    dead_for_long(64);
    struct vcuda_slot page = sample(64);
    page.dead_gone_ns = page.driver_sampled_ns - 20 * SECOND; /* before it died */
    use(page);
    return 64;
}

static uint64_t grown_old(void)
{
    dead(64);
    struct vcuda_slot last = sample(64);
    use(last);
    ledger_true_up(ledger, 0, &last, clock_ns() + 6 * SECOND); /* the node says nothing more */
    return 0;
}

static uint64_t alive_elsewhere(void)
{
    int p = ledger_attach(ledger, 0x7fffffff, 1, 1); /* no process of that number here */
    charge(p, 64);
    ledger_confirm(ledger, p, 0, 64 * MIB);
    ledger_sweep(ledger);
    ledger_attach(ledger, 0x7fffffff, 1, 2); /* nor is one of that name in a third namespace the same */
    ledger_true_up(ledger, 0, NULL, clock_ns() + 6 * SECOND);
    return 64;
}

static uint64_t a_slot_taken_anew(void)
{
    int p = attach();
    ledger_import(ledger, p, +1);
    ledger_export(ledger, p, 0, 64 * MIB);
    ledger_detach(ledger, p);
    p = holding(64); /* has nothing of others open, and nothing that others have */
    ledger_detach(ledger, p);
    ledger_import(ledger, attach(), +1);
    ledger_true_up(ledger, 0, NULL, clock_ns() + 6 * SECOND);
    return 0;
}

static uint64_t opened_by_the_newly_dead(void)
{
    int p = holding(64), q = attach();
    ledger_export(ledger, p, 0, 64 * MIB);
    ledger_import(ledger, q, +1);
    charge(q, 1);
    ledger_confirm(ledger, q, 0, MIB);
    ledger_detach(ledger, p);
    ledger_detach(ledger, q);
    ledger->slots[p].died_ns -= 10 * SECOND;
    ledger_true_up(ledger, 0, NULL, clock_ns() + 2 * SECOND);
    return 65; /* Q, dead for two seconds, may hold it still */
}

static uint64_t orphan_while_open(void)
{
    int p = holding(64), q = attach();
    ledger_import(ledger, q, +1);
    ledger_export(ledger, p, 0, 64 * MIB);
    ledger_unsettle(ledger, p, 0, 64 * MIB);
    if (!ledger_orphan(ledger, p, 0, 64 * MIB))
        abort();
    ledger_confirm(ledger, p, 0, 64 * MIB);
    ledger_true_up(ledger, 0, NULL, clock_ns() + 6 * SECOND);
    return 64;
}

static uint64_t total_overwritten(void)
{
    holding(64);
    ledger->devices[0].total = 0;
    ledger_true_up(ledger, 0, NULL, clock_ns());
    return 64;
}

static uint64_t death_overwritten(void)
{
    int p = holding(64);
    ledger_detach(ledger, p);
    ledger->slots[p].died_ns += 3600 * SECOND;
    ledger_true_up(ledger, 0, NULL, clock_ns());
    use(sample(0));
    return 0;
}

static uint64_t state_overwritten(void)
{
    int p = holding(64);
    ledger->slots[p].state = 7;
    ledger_true_up(ledger, 0, NULL, clock_ns());
    return 64;
}

static uint64_t lock_overwritten(void)
{
    int p = holding(64);
    memset(&ledger->lock, 0x55, sizeof ledger->lock);
    ledger->devices[0].total = 0;
    charge(p, 0);
    return 64;
}

static uint64_t orphans_without_a_free_slot(void)
{
    for (int i = 0; i < LEDGER_SLOTS - 1; i++)
        holding(0);
    int p = holding(64);
    bool moved = ledger_orphan(ledger, p, 0, 32 * MIB);
    return moved ? 0 : 64; /* there is none: it stays where it is */
}

static const struct {
    const char *name;
    uint64_t (*happens)(void);
} cases[] = {
    {"let_go", let_go},
    {"in_flight_then_dead", in_flight_then_dead},
    {"older_than_the_last", older_than_the_last},
    {"owner_killed_in_discharge", owner_killed_in_discharge},
    {"freed_then_left", freed_then_left},
    {"timed_out_in_the_window", timed_out_in_the_window},
    {"leaving_amid_a_call", leaving_amid_a_call},
    {"open_when_given_up", open_when_given_up},
    {"closed_when_given_up", closed_when_given_up},
    {"freed_while_open", freed_while_open},
    {"left_while_another_grew", left_while_another_grew},
    {"left_before_the_window", left_before_the_window},
    {"torn_down_while_others_came_and_went", torn_down_while_others_came_and_went},
    {"grown_old", grown_old},
    {"gone_while_others_keep_pages_in_no_figure", gone_while_others_keep_pages_in_no_figure},
    {"gone_a_moment_ago", gone_a_moment_ago},
    {"gone_and_open_elsewhere", gone_and_open_elsewhere},
    {"named_after_its_death", named_after_its_death},
    {"alive_elsewhere", alive_elsewhere},
    {"a_slot_taken_anew", a_slot_taken_anew},
    {"opened_by_the_newly_dead", opened_by_the_newly_dead},
    {"orphan_while_open", orphan_while_open},
    {"total_overwritten", total_overwritten},
    {"death_overwritten", death_overwritten},
    {"state_overwritten", state_overwritten},
    {"lock_overwritten", lock_overwritten},
    {"orphans_without_a_free_slot", orphans_without_a_free_slot},
};

int main(int count, char **arguments)
{
    char reason[128];
    bool not_now;
    ledger = count == 3 ? ledger_open(arguments[1], reason, sizeof reason, &not_now) : NULL;
    for (size_t i = 0; ledger != NULL && i < sizeof cases / sizeof *cases; i++)
        if (strcmp(arguments[2], cases[i].name) == 0) {
            uint64_t held = cases[i].happens();
            printf("%llu %llu\n", (unsigned long long)(ledger_held(ledger, 0) / MIB), (unsigned long long)held);
            return 0;
        }
    return 2;
}
