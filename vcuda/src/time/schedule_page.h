/* schedule_page.h: reads the node's schedule pages (include/schedule.h) and works out turns. */
#ifndef VCUDA_SCHEDULE_PAGE_H
#define VCUDA_SCHEDULE_PAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "config.h"
#include "schedule.h"

/* Maps the pages that the config names, which stays where it is. A page that cannot be had is complained of once; its device is
 * paced by the config's share for as long. */
void schedule_open(const struct vcuda_config *config);

/* Tries again to map the pages that could not be had: the program may have had no descriptor left, or the node agent had not
 * written them. Of each page once in 0.2 s at first, and ever more seldom, to once in 10 s. One thread of the process calls it. */
void schedule_open_missing(uint64_t now_ns);

/* Reads the device's page again if its writer was there since; cheap when not. */
void schedule_refresh(int index);

/* The container's slot in the last good page: false without a page, or when the slot is not its own. A page whose
 * writer died still counts. */
bool schedule_slot(int index, struct vcuda_slot *slot);

/* Limit in force by the page; 0: the config's. One atomic load. */
uint64_t schedule_live_limit(int index);

/* Whether `size` bytes, aligned as the page is, are a good one. */
bool schedule_check(const void *bytes, size_t size);

/* When a slot may launch, seen from `now`. */
struct turn {
    bool open;              /* now is in a turn */
    uint64_t end_ns;        /* open: when this turn ends (adjacent turns joined); otherwise: when the next one begins */
    uint64_t per_period_ns; /* time of all turns in a period */
    uint64_t period_ns;
    uint32_t active; /* containers at work on the GPU, at least 1 */
};

/* Pure. A slot without turns gets open = false and end_ns a period away. */
struct turn schedule_turn(const struct vcuda_schedule *page, uint32_t slot, uint64_t now_ns);

/* The turn by the last good page (of a moment that has passed: by the page of its period), or by the config's share alone
 * when there never was one. False: the device has no turns at all (no page configured), launches are free. */
bool schedule_turn_now(int index, uint64_t now_ns, struct turn *turn);

#endif
