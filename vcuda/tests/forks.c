/* forks: forks while another thread looks functions of the driver up, or walks over all libraries; each child looks one up.
 *
 *     forks dlsym | phdr       prints "0", or "1" where a child did not come back
 *     forks first              the same while the other thread looks the first function up; prints "forked" before it waits for them
 *     forks cancelled          cancels the other thread while it looks the first function up, and prints "cancelled"; then
 *                              looks one up itself: prints "0", or is ended
 */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHILDREN 100
#define LONGEST_SECONDS 30 /* a child that hangs is ended by then */

static void *library;
static bool walks;
static int stop; /* atomic */

static int pass(struct dl_phdr_info *object, size_t size, void *argument)
{
    (void)object;
    (void)size;
    (void)argument;
    return 0;
}

static void *busy(void *unused)
{
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
        if (walks)
            dl_iterate_phdr(pass, NULL);
        else
            dlsym(library, "cuMemAlloc_v2");
    return unused;
}

static bool comes_back(void)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        alarm(LONGEST_SECONDS);
        _exit(dlsym(library, "cuMemAlloc_v2") == NULL);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void *looks_one_up(void *unused)
{
    dlsym(library, "cuInit");
    return unused;
}

static int first(void)
{
    pid_t children[CHILDREN];
    pthread_t thread;
    int failed = 0;
    pthread_create(&thread, NULL, looks_one_up, NULL);
    for (int i = 0; i < CHILDREN; i++) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        children[i] = fork();
        if (children[i] == 0) {
            alarm(LONGEST_SECONDS);
            _exit(dlsym(library, "cuMemAlloc_v2") == NULL);
        }
    }
    puts("forked");
    fflush(stdout);
    for (int i = 0; i < CHILDREN; i++) {
        int status = 0;
        waitpid(children[i], &status, 0);
        failed |= status;
    }
    pthread_join(thread, NULL);
    printf("%d\n", failed != 0);
    return 0;
}

static int cancelled(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, looks_one_up, NULL);
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    pthread_cancel(thread);
    puts("cancelled");
    fflush(stdout);
    alarm(LONGEST_SECONDS);
    pthread_join(thread, NULL);
    printf("%d\n", dlsym(library, "cuMemAlloc_v2") == NULL);
    return 0;
}

int main(int count, char **arguments)
{
    pthread_t thread;
    int children = 0;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (count == 2 && library != NULL && strcmp(arguments[1], "first") == 0)
        return first();
    if (count == 2 && library != NULL && strcmp(arguments[1], "cancelled") == 0)
        return cancelled();
    if (count != 2 || library == NULL || dlsym(library, "cuMemAlloc_v2") == NULL)
        return 2;
    walks = strcmp(arguments[1], "phdr") == 0;
    pthread_create(&thread, NULL, busy, NULL);
    while (children < CHILDREN && comes_back())
        children++;
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    printf("%d\n", children != CHILDREN);
    return 0;
}
