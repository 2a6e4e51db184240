/* allocations.c: open addressing with backward-shift deletion, which leaves no tombstones. */
#include "memory/allocations.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 64u

static uint64_t hash_of(unsigned kind, uint64_t key)
{
    uint64_t hash = (key ^ (uint64_t)kind << 56) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

static struct stripe *stripe_of(struct allocations *all, unsigned kind, uint64_t key)
{
    return &all->stripes[hash_of(kind, key) >> 40 & (ALLOCATION_STRIPES - 1)];
}

void allocations_start(struct allocations *all)
{
    memset(all, 0, sizeof *all);
    for (int i = 0; i < ALLOCATION_STRIPES; i++)
        pthread_mutex_init(&all->stripes[i].lock, NULL);
}

/* The row of the key, or the free one where it belongs. The stripe has a free row. */
static struct allocation *row_of(const struct stripe *stripe, unsigned kind, uint64_t key)
{
    uint32_t mask = stripe->capacity - 1, i = (uint32_t)hash_of(kind, key) & mask;
    while (stripe->rows[i].kind != KIND_NONE && (stripe->rows[i].key != key || stripe->rows[i].kind != kind))
        i = (i + 1) & mask;
    return &stripe->rows[i];
}

static bool grow(struct stripe *stripe)
{
    struct stripe larger = {.capacity = stripe->capacity != 0 ? stripe->capacity * 2 : FIRST_CAPACITY};
    larger.rows = calloc(larger.capacity, sizeof *larger.rows);
    if (larger.rows == NULL)
        return false;
    for (uint32_t i = 0; i < stripe->capacity; i++)
        if (stripe->rows[i].kind != KIND_NONE)
            *row_of(&larger, stripe->rows[i].kind, stripe->rows[i].key) = stripe->rows[i];
    free(stripe->rows);
    stripe->rows = larger.rows;
    stripe->capacity = larger.capacity;
    return true;
}

static void erase(struct stripe *stripe, struct allocation *row)
{
    uint32_t mask = stripe->capacity - 1, hole = (uint32_t)(row - stripe->rows);
    for (uint32_t i = (hole + 1) & mask; stripe->rows[i].kind != KIND_NONE; i = (i + 1) & mask) {
        uint32_t home = (uint32_t)hash_of(stripe->rows[i].kind, stripe->rows[i].key) & mask;
        if (((i - home) & mask) >= ((i - hole) & mask)) { /* it may move back as far as the hole */
            stripe->rows[hole] = stripe->rows[i];
            hole = i;
        }
    }
    memset(&stripe->rows[hole], 0, sizeof stripe->rows[hole]);
    stripe->used--;
}

/* Under the stripe's lock: room for one more row. */
static bool has_room(struct stripe *stripe)
{
    return stripe->used * 4 < stripe->capacity * 3 || grow(stripe) || stripe->used + 1 < stripe->capacity;
}

/* Under the stripe's lock. `before` is what had the key: of KIND_NONE where nothing had. */
static bool put(struct stripe *stripe, const struct allocation *allocation, struct allocation *before)
{
    *before = (struct allocation){.kind = KIND_NONE};
    if (!has_room(stripe))
        return false;
    struct allocation *row = row_of(stripe, allocation->kind, allocation->key);
    if (row->kind == KIND_NONE)
        stripe->used++;
    *before = *row;
    *row = *allocation;
    return true;
}

bool allocations_put(struct allocations *all, const struct allocation *allocation)
{
    struct stripe *stripe = stripe_of(all, allocation->kind, allocation->key);
    struct allocation before;
    pthread_mutex_lock(&stripe->lock);
    bool room = put(stripe, allocation, &before);
    pthread_mutex_unlock(&stripe->lock);
    return room;
}

bool allocations_replace(struct allocations *all, const struct allocation *allocation, struct allocation *before)
{
    struct stripe *stripe = stripe_of(all, allocation->kind, allocation->key);
    pthread_mutex_lock(&stripe->lock);
    put(stripe, allocation, before);
    pthread_mutex_unlock(&stripe->lock);
    return before->kind != KIND_NONE;
}

bool allocations_join(struct allocations *all, const struct allocation *allocation)
{
    struct stripe *stripe = stripe_of(all, allocation->kind, allocation->key);
    bool joined = false;
    pthread_mutex_lock(&stripe->lock);
    if (has_room(stripe)) {
        struct allocation *row = row_of(stripe, allocation->kind, allocation->key);
        joined = row->kind != KIND_NONE;
        if (joined) {
            row->count++;
        } else {
            *row = *allocation;
            stripe->used++;
        }
    }
    pthread_mutex_unlock(&stripe->lock);
    return joined;
}

/* The row under the stripe's lock; NULL when it is not there. */
static struct allocation *present(const struct stripe *stripe, unsigned kind, uint64_t key)
{
    if (stripe->used == 0)
        return NULL;
    struct allocation *row = row_of(stripe, kind, key);
    return row->kind != KIND_NONE ? row : NULL;
}

bool allocations_find(struct allocations *all, enum kind kind, uint64_t key, struct allocation *found)
{
    struct stripe *stripe = stripe_of(all, kind, key);
    pthread_mutex_lock(&stripe->lock);
    const struct allocation *row = present(stripe, kind, key);
    if (row != NULL)
        *found = *row;
    pthread_mutex_unlock(&stripe->lock);
    return row != NULL;
}

bool allocations_take(struct allocations *all, enum kind kind, uint64_t key, struct allocation *found)
{
    struct stripe *stripe = stripe_of(all, kind, key);
    pthread_mutex_lock(&stripe->lock);
    struct allocation *row = present(stripe, kind, key);
    if (row != NULL) {
        *found = *row;
        erase(stripe, row);
    }
    pthread_mutex_unlock(&stripe->lock);
    return row != NULL;
}

/* Under the stripe's lock; `row` is NULL when it is not there. */
static int64_t count(struct stripe *stripe, struct allocation *row, int change, struct allocation *found)
{
    if (row == NULL)
        return -1;
    int64_t now = (int64_t)row->count + change;
    row->count = (uint32_t)now;
    *found = *row;
    if (now <= 0)
        erase(stripe, row);
    return now;
}

int64_t allocations_count(struct allocations *all, enum kind kind, uint64_t key, int change, struct allocation *found)
{
    struct stripe *stripe = stripe_of(all, kind, key);
    pthread_mutex_lock(&stripe->lock);
    int64_t now = count(stripe, present(stripe, kind, key), change, found);
    pthread_mutex_unlock(&stripe->lock);
    return now;
}

int64_t allocations_drop(struct allocations *all, const struct allocation *seen, struct allocation *found)
{
    struct stripe *stripe = stripe_of(all, seen->kind, seen->key);
    pthread_mutex_lock(&stripe->lock);
    struct allocation *row = present(stripe, seen->kind, seen->key);
    int64_t now = count(stripe, row != NULL && row->serial == seen->serial ? row : NULL, -1, found);
    pthread_mutex_unlock(&stripe->lock);
    return now;
}

bool allocations_mark(struct allocations *all, enum kind kind, uint64_t key, uint64_t extent, struct allocation *before)
{
    struct stripe *stripe = stripe_of(all, kind, key);
    pthread_mutex_lock(&stripe->lock);
    struct allocation *row = present(stripe, kind, key);
    if (row != NULL) {
        *before = *row;
        row->extent = extent;
    }
    pthread_mutex_unlock(&stripe->lock);
    return row != NULL;
}

/* What is moved back into a hole comes from behind it, up to the next free row: none is passed over. */
void allocations_take_of_context(struct allocations *all, uint64_t context,
                                 void (*take)(void *argument, const struct allocation *row), void *argument)
{
    for (int s = 0; s < ALLOCATION_STRIPES; s++) {
        struct stripe *stripe = &all->stripes[s];
        pthread_mutex_lock(&stripe->lock);
        for (uint32_t i = 0; i < stripe->capacity; i++)
            while (stripe->rows[i].kind != KIND_NONE && stripe->rows[i].context == context) {
                take(argument, &stripe->rows[i]);
                erase(stripe, &stripe->rows[i]);
            }
        pthread_mutex_unlock(&stripe->lock);
    }
}
