/* state.c: config and ledger, each found once. */
#include "state.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "complain.h"
#include "loading/config_file.h"
#include "time/schedule_page.h"

enum mode state_published;
struct vcuda_config config;
struct ledger *ledger;

static pthread_mutex_t decide_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the three above until published */

/* The container's paths are fixed: nothing that a user can set may change them. Only the library that the tests
 * load, built with VCUDA_TESTING, looks at the environment. */
static const char *config_path(void)
{
#ifdef VCUDA_TESTING
    const char *path = getenv("VCUDA_CONFIG");
    if (path != NULL)
        return path;
#endif
    return VCUDA_CONFIG_PATH;
}

static const char *injected_path(void)
{
#ifdef VCUDA_TESTING
    const char *path = getenv("VCUDA_INJECTED");
    if (path != NULL)
        return path;
#endif
    return VCUDA_INJECTED_PATH;
}

static bool given; /* whether the container's files were there when the library was loaded; constant from then on */

/* A program may change its root before its first call, and then it does not see them. */
__attribute__((constructor)) static void look_for_the_files(void)
{
    given = access(config_path(), F_OK) == 0 || access(injected_path(), F_OK) == 0;
}

/* A program that is refused until it has the means may ask many times: one line says so. */
static void complain_once(const char *path, const char *reason)
{
    static bool complained; /* guarded by decide_lock */
    if (!complained)
        complain("%s cannot be opened now (%s): CUDA is refused until it can be", path, reason);
    complained = true;
}

/* MODE_UNKNOWN: nothing is decided, since the process has no descriptor or no memory left. */
static enum mode decide(void)
{
    char reason[160];
    bool not_now;
    switch (config_read(config_path(), &config, reason, sizeof reason)) {
    case CONFIG_ABSENT:
        if (!given && access(injected_path(), F_OK) != 0)
            return MODE_INERT;
        complain("%s is missing in a FairGPU container: CUDA is refused", config_path());
        return MODE_REFUSED;
    case CONFIG_BAD:
        complain("%s cannot be used (%s): CUDA is refused", config_path(), reason);
        return MODE_REFUSED;
    case CONFIG_NOT_NOW:
        complain_once(config_path(), reason);
        return MODE_UNKNOWN;
    case CONFIG_OK:
        break;
    }
    ledger = ledger_open(config.ledger_path, reason, sizeof reason, &not_now);
    if (ledger == NULL && not_now) {
        complain_once(config.ledger_path, reason);
        return MODE_UNKNOWN;
    }
    if (ledger == NULL) {
        complain("%s cannot be used (%s): CUDA is refused", config.ledger_path, reason);
        return MODE_REFUSED;
    }
    schedule_open(&config);
    return MODE_ACTIVE;
}

/* In the child of a fork, where the thread that held the lock is not. */
static void begin_anew(void)
{
    pthread_mutex_init(&decide_lock, NULL);
}

static void look_out_for_forks(void)
{
    pthread_atfork(NULL, NULL, begin_anew);
}

enum mode state_decide(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int cancels;
    pthread_once(&once, look_out_for_forks);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancels); /* files are opened under the lock */
    pthread_mutex_lock(&decide_lock);
    if (state_published == MODE_UNKNOWN)
        __atomic_store_n(&state_published, decide(), __ATOMIC_RELEASE);
    enum mode mode = state_published != MODE_UNKNOWN ? state_published : MODE_REFUSED;
    pthread_mutex_unlock(&decide_lock);
    pthread_setcancelstate(cancels, &cancels);
    return mode;
}
