#include "time/estimate.h"

#include "least.h"

#define STEADY_NS 8000000u       /* of launches of one length, before that is believed */
#define MOST_STEADY_NS 40000000u /* so much less STEADY_NS may seem to take longer in a row, before it is believed no more */
#define KNOWN_SPANS 16u          /* over about so many is averaged what a launch takes */
#define KNOWN_SCALE 1024u        /* of the count of launches, so that the average is one of small numbers, too */

uint64_t estimate_usual(const struct estimate *estimate)
{
    return estimate->known_launches != 0 ? estimate->known_ns * KNOWN_SCALE / estimate->known_launches : 0;
}

uint64_t estimate_alone(const struct estimate *estimate, uint32_t launches)
{
    return estimate->steady_ns >= STEADY_NS ? estimate->solo_ns * launches : 0;
}

/* It leaps up to much longer kernels, so that these are not launched by the dozen. */
static void learn_mean(struct estimate *estimate, uint64_t each_ns)
{
    bool leaps = each_ns > 4 * estimate->mean_ns;
    estimate->mean_ns = leaps ? each_ns : (3 * estimate->mean_ns + each_ns) / 4;
}

/* What a launch takes alone is known by the shortest only where all are alike. */
static void learn_steady(struct estimate *estimate, struct span_cost cost, uint64_t most_ns)
{
    bool alike = 4 * most_ns >= 3 * estimate->solo_ns && 4 * most_ns <= 5 * estimate->solo_ns;
    if (most_ns != 0 && (alike || !cost.disturbed))
        estimate->steady_ns = alike ? least_of(estimate->steady_ns + cost.work_ns, MOST_STEADY_NS) : 0;
    estimate->steady_ns -= least_of(estimate->steady_ns, cost.cut_ns);
}

static void learn_solo(struct estimate *estimate, uint64_t most_ns)
{
    if (estimate->solo_ns == 0 || most_ns == 0 || most_ns > 4 * estimate->solo_ns)
        estimate->solo_ns = most_ns;
    else if (most_ns < estimate->solo_ns)
        estimate->solo_ns = (estimate->solo_ns + most_ns) / 2;
    else
        estimate->solo_ns += (most_ns - estimate->solo_ns) / 16;
}

/* The mean is no less than the average over more spans. */
void estimate_learn_part(struct estimate *estimate, uint64_t part_ns, uint32_t launches)
{
    learn_mean(estimate, part_ns / launches + 1);
    estimate->known_ns += part_ns - estimate->known_ns / KNOWN_SPANS;
    estimate->known_launches += launches * KNOWN_SCALE - estimate->known_launches / KNOWN_SPANS;
    estimate->mean_ns = most_of(estimate->mean_ns, estimate_usual(estimate));
}

void estimate_learn(struct estimate *estimate, struct span_cost cost, uint64_t part_ns, uint32_t launches)
{
    uint64_t most_ns = cost.most_ns / launches;
    estimate_learn_part(estimate, part_ns, launches);
    learn_steady(estimate, cost, most_ns);
    learn_solo(estimate, most_ns);
}
