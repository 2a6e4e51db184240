/* turns.c: the pure part of the schedule page: is it good, and when may a slot launch. */
#include <string.h>

#include "crc32.h"
#include "time/schedule_page.h"

bool schedule_check(const void *bytes, size_t size)
{
    const struct vcuda_schedule *page = bytes;
    if (size != sizeof *page)
        return false;
    if (memcmp(page->magic, VCUDA_SCHEDULE_MAGIC, sizeof page->magic) != 0 || page->version != VCUDA_SCHEDULE_VERSION ||
        page->size != sizeof *page || (page->generation & 1) != 0)
        return false;
    if (page->checksum != crc32_of((const char *)bytes + VCUDA_SCHEDULE_CHECKED_FROM,
                                   sizeof *page - VCUDA_SCHEDULE_CHECKED_FROM - sizeof page->checksum))
        return false;
    if (page->period_ns < 1000000 || page->period_ns > 1000000000 || page->turn_count > VCUDA_SCHEDULE_TURNS ||
        page->slot_count > VCUDA_SCHEDULE_SLOTS || page->stale_after_ns == 0 || page->epoch_ns > page->heartbeat_ns)
        return false;
    for (uint32_t i = 0; i < page->turn_count; i++) {
        const struct vcuda_turn *turn = &page->turns[i];
        if (turn->slot >= VCUDA_SCHEDULE_SLOTS || turn->length_ns == 0 || turn->start_ns > page->period_ns ||
            turn->length_ns > page->period_ns - turn->start_ns)
            return false;
    }
    return true;
}

/* NVML's slow correction takes the end of each turn. */
static uint64_t used_of(const struct vcuda_schedule *page, const struct vcuda_turn *turn)
{
    uint64_t trim = page->slots[turn->slot].trim_permille;
    return trim == 0 || trim > 1000 ? turn->length_ns : turn->length_ns * trim / 1000;
}

/* How long from `phase` (a place in the period) the slot's turns cover without a gap, at most one period. */
static uint64_t covered_from(const struct vcuda_schedule *page, uint32_t slot, uint64_t phase)
{
    uint64_t reach = phase;
    bool further = true;
    while (further && reach < phase + page->period_ns) {
        further = false;
        for (uint32_t i = 0; i < page->turn_count; i++) {
            const struct vcuda_turn *turn = &page->turns[i];
            uint64_t at = reach % page->period_ns, end = (uint64_t)turn->start_ns + used_of(page, turn);
            if (turn->slot == slot && turn->start_ns <= at && at < end) {
                reach += end - at;
                further = true;
            }
        }
    }
    return reach - phase < page->period_ns ? reach - phase : page->period_ns;
}

/* How long from `phase` until the slot's next turn begins; a period when it has none. */
static uint64_t until_next(const struct vcuda_schedule *page, uint32_t slot, uint64_t phase)
{
    uint64_t nearest = page->period_ns;
    for (uint32_t i = 0; i < page->turn_count; i++) {
        const struct vcuda_turn *turn = &page->turns[i];
        uint64_t wait = (turn->start_ns + page->period_ns - phase) % page->period_ns;
        if (turn->slot == slot && wait < nearest)
            nearest = wait;
    }
    return nearest;
}

/* Periods go on both ways from the epoch, which moves: what ended a moment ago may have begun before it. */
static uint64_t phase_of(const struct vcuda_schedule *page, uint64_t now_ns)
{
    if (now_ns >= page->epoch_ns)
        return (now_ns - page->epoch_ns) % page->period_ns;
    return (page->period_ns - (page->epoch_ns - now_ns) % page->period_ns) % page->period_ns;
}

struct turn schedule_turn(const struct vcuda_schedule *page, uint32_t slot, uint64_t now_ns)
{
    struct turn turn = {.period_ns = page->period_ns, .active = page->active_count != 0 ? page->active_count : 1};
    uint64_t phase = phase_of(page, now_ns);
    uint64_t covered = covered_from(page, slot, phase);
    for (uint32_t i = 0; i < page->turn_count; i++)
        if (page->turns[i].slot == slot)
            turn.per_period_ns += used_of(page, &page->turns[i]);
    turn.open = covered > 0;
    turn.end_ns = now_ns + (turn.open ? covered : until_next(page, slot, phase));
    return turn;
}
