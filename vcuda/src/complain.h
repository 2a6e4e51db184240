/* complain.h: the one line that says why something is refused. */
#ifndef VCUDA_COMPLAIN_H
#define VCUDA_COMPLAIN_H

/* One line on standard error, with the shim's name and the process's number before it. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
