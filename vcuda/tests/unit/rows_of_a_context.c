/* rows_of_a_context.c: a program ends a context in which it has very many allocations, and goes on with those of another.
 *
 *     rows_of_a_context COUNT    prints how many of the first were found, how many of the second are still there, and the
 *                                milliseconds of a processor that the first ones took
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "memory/allocations.h"

#define APART 512

static struct allocations all;
static uint64_t found;

static uint64_t key_of(uint64_t context, uint64_t number)
{
    return context << 40 | number * APART;
}

static void counts(void *context, const struct allocation *row)
{
    found += row->context == *(const uint64_t *)context;
}

static double processor_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

int main(int count, char **arguments)
{
    uint64_t rows = count == 2 ? strtoull(arguments[1], NULL, 10) : 0, first = 1, left = 0;
    struct allocation row;
    allocations_start(&all);
    for (uint64_t number = 0; number < rows; number++)
        for (uint64_t context = 1; context <= 2; context++) {
            row = (struct allocation){
                .key = key_of(context, number), .context = context, .kind = KIND_LINEAR, .count = 1};
            allocations_put(&all, &row);
        }
    double before = processor_ms();
    allocations_take_of_context(&all, first, counts, &first);
    double took = processor_ms() - before;
    for (uint64_t number = 0; number < rows; number++) {
        left += allocations_find(&all, KIND_LINEAR, key_of(2, number), &row);
        left -= allocations_find(&all, KIND_LINEAR, key_of(1, number), &row);
    }
    printf("%llu %llu %.0f\n", (unsigned long long)found, (unsigned long long)left, took);
    return 0;
}
