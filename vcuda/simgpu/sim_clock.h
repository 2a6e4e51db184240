/* The node's time: CLOCK_MONOTONIC, or a fast clock that waiting moves. */
#ifndef SIM_CLOCK_H
#define SIM_CLOCK_H

#include "sim_device.h"

uint64_t sim_real_ns(void);
uint64_t sim_now(struct sim_node *node);
/* Sleeps until the moment; on a fast clock makes it that moment. */
void sim_sleep_until(struct sim_node *node, uint64_t moment_ns);
/* Keeps the processor busy until the moment, as a driver call does; long waits sleep. */
void sim_spin_until(uint64_t real_ns);

#endif
