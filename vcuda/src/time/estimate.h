/* estimate.h: how long the launches of a context take, learned from its spans. Pure; docs/vcuda-estimate.md derives it.
 */
#ifndef VCUDA_ESTIMATE_H
#define VCUDA_ESTIMATE_H

#include "time/account.h"

/* All zero: nothing is known. */
struct estimate {
    uint64_t mean_ns;                  /* of one launch of late: what to expect of the next; 0 while unknown */
    uint64_t solo_ns;                  /* of one launch without other work on the GPU: near the least of late */
    uint64_t steady_ns;                /* of work since launches last differed in length, less what since seemed longer */
    uint64_t known_ns, known_launches; /* sums of late, over spans in which the GPU never idled */
};

/* Learns how long a launch takes from so many that took so long together. */
void estimate_learn_part(struct estimate *estimate, uint64_t part_ns, uint32_t launches);
/* The same from a span of so many launches in which the GPU never idled, and how long they take alone. `part_ns` is their part
 * of its work, where others went on beside them. */
void estimate_learn(struct estimate *estimate, struct span_cost cost, uint64_t part_ns, uint32_t launches);
/* What a launch took of late, on average over many spans; 0 while unknown. */
uint64_t estimate_usual(const struct estimate *estimate);
/* What so many launches take alone on the GPU; 0 unless all of late were alike. */
uint64_t estimate_alone(const struct estimate *estimate, uint32_t launches);

#endif
