/* actor: a CUDA program that carries out its standard input, a line at a time, and says how each went.
 *
 *     ctx [ORDINAL]        retain(primary) and make current     release        primary context        contexts.c
 *     newctx / endctx      a context of its own                 newgreen / endgreen
 *     ingreen / outgreen   makes it current, and what was so before
 *     newctx3 / newctx4    by later forms       attach          one use more of the current context
 *     reset                of the primary one   endprimary      destroys it, as if it were its own
 *     launch NAME          a kernel of that name, on the default stream        heap, prints - BYTES   cuCtxSetLimit
 *     module NAME BYTES    with variables of so many bytes      unmodule NAME         moduleex, modulefile NAME PATH BYTES
 *     library NAME BYTES   unlibrary NAME        libraryfile NAME PATH BYTES
 *     info                 "FREE TOTAL"    total                cuDeviceTotalMem                      memory.c
 *     alloc NAME BYTES     free NAME       managed NAME BYTES   pitch NAME WIDTH HEIGHT
 *     fill NAME BYTES      on the device
 *     array NAME WIDTH HEIGHT              freearray NAME       managed? NAME "1" when it is managed memory
 *     mipmap NAME WIDTH HEIGHT             freemipmap NAME      level NAME MIPMAP
 *     alloc32 - BYTES      pitch32 - WIDTH HEIGHT               info32  total32  by their oldest forms          forms.c
 *     array32 NAME WIDTH HEIGHT            cube NAME SIDE       cube32 NAME SIDE    of three dimensions
 *     external NAME BYTES  endexternal NAME
 *     async NAME BYTES     freeasync NAME  trim                 default stream and pool; freeasync waits    stream_order.c
 *     newpool NAME ORDINAL endpool NAME    from NAME BYTES POOL keep POOL BYTES: its release threshold
 *     reserved POOL        "BYTES"         wait                 for the default stream
 *     fromdefault NAME BYTES ORDINAL       of that device's default pool
 *     create NAME BYTES    map NAME BYTES  unmap NAME BYTES     drop NAME                             virtual.c
 *     partpool NAME        a pool of a part of the device          hostpool NAME        the driver's own of the host's memory
 *     createpart NAME BYTES  in a part of the device
 *     createhost NAME BYTES  on a NUMA node of the host
 *     export NAME          "0 DESCRIPTOR"  import NAME PATH     of a descriptor in /proc
 *     close DESCRIPTOR     tile NAME       under a sparse array                 granularity "BYTES" recommended
 *     object NAME          of multicast    bind NAME OBJECT     to its beginning   unbind NAME
 *     bindat NAME OBJECT   what is mapped  retain NAME TIMES    the handle of what is mapped
 *     mapagain NAME BYTES  beside "map NAME" of as many bytes   mapbehind NAME OTHER BYTES  beside "map OTHER BYTES"
 *     ipcwithin NAME PATH  writes a handle of its middle
 *     ipcget NAME PATH     writes a handle ipcopen NAME PATH    ipcclose NAME                         sharing.c
 *     poolshare POOL       "0 DESCRIPTOR"  poolopen POOL PATH   imports one
 *     tell NAME PATH       writes a pool's pointer              hear NAME PATH POOL   imports it
 *     graph NAME BYTES     an executable graph that allocates   upload NAME   launchgraph NAME        graphs.c
 *     endgraph NAME        trimgraphs      capture NAME BYTES   the same from a captured cuMemAllocAsync
 *     capture1, captureto  the same by cuStreamBeginCapture, cuStreamBeginCaptureToGraph
 *     nested NAME BYTES [DEPTH]  in a graph inside so many others  how flags | upload | with | withupload | log | log2
 *     regraph NAME BYTES   the same with a second node of as many bytes, after the first was freed in it
 *     managedgraph NAME BYTES  the same of managed memory that is best on the host's NUMA node 1
 *     executables COUNT    of a graph of 20 kernels
 *     node - BYTES         an allocation node alone             anynode - BYTES   by cuGraphAddNode_v2   oldnode  by its first
 *     nvml ORDINAL         "USED TOTAL"    processes ORDINAL "COUNT PID"     devices "COUNT"          nvml.c
 *     nvml2 ORDINAL        "USED 0", where the figures add up       rates ORDINAL "GPU MEMORY", percent
 *     computeN, graphicsN, mpsN ORDINAL ROOM "COUNT PID": by form N   detail ORDINAL ROOM MODE "COUNT PID"
 *     samples ORDINAL      "COUNT" of processes' utilisation, samples2        byuuid | byuuidv | bybus - TEXT
 *     fork                 goes on in a child; the parent waits for it and ends as it did
 *     child                a child allocates and ends, and the parent goes on
 *     exec                 becomes a new actor       setuid NUMBER       pid "PID"
 *     sleep MILLISECONDS
 *     as CALL OTHER        from now on OTHER is called instead: another form of the same prototype
 *     exit CODE | kill     _exit, SIGKILL to itself
 *
 * Answers "RESULT [VALUES]" with the CUresult as a number. It finds the driver by dlopen and dlsym, as runtimes do.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "actor.h"

#define MOST 4096
#ifndef SYS_pidfd_open /* headers before Linux 5.3 */
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd /* headers before Linux 5.6 */
#define SYS_pidfd_getfd 438
#endif

static void *library;
static char *program; /* its own path */
static struct {
    char name[48];
    CUdeviceptr pointer;
} held[MOST];

static struct {
    char name[48], other[48];
} forms[16];

/* Another form of a call, from now on. */
static CUresult takes_form(struct line *line)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (forms[i].name[0] == '\0' || strcmp(forms[i].name, line->name) == 0) {
            snprintf(forms[i].name, sizeof forms[i].name, "%s", line->name);
            snprintf(forms[i].other, sizeof forms[i].other, "%.47s", line->text);
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void *symbol(const char *name)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(forms[i].name, name) == 0) {
            name = forms[i].other;
            break;
        }
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "the driver has no %s\n", name);
        exit(3);
    }
    return found;
}

CUdeviceptr *place(const char *name)
{
    int empty = -1;
    for (int i = 0; i < MOST; i++) {
        if (strcmp(held[i].name, name) == 0)
            return &held[i].pointer;
        if (empty < 0 && held[i].name[0] == '\0')
            empty = i;
    }
    snprintf(held[empty].name, sizeof held[empty].name, "%s", name);
    return &held[empty].pointer;
}

int descriptor_at(const char *path)
{
    int pid, number;
    struct stat kind;
    int opened = open(path, O_RDWR | O_CLOEXEC);
    if (opened < 0 || fstat(opened, &kind) != 0 || !S_ISCHR(kind.st_mode) || sscanf(path, "/proc/%d/fd/%d", &pid, &number) != 2)
        return opened;
    close(opened);
    int process = (int)syscall(SYS_pidfd_open, pid, 0), own_copy = (int)syscall(SYS_pidfd_getfd, process, number, 0);
    close(process);
    return own_copy;
}

static CUresult fork_here(struct line *line)
{
    pid_t child = fork();
    int status;
    (void)line;
    if (child == 0)
        return CUDA_SUCCESS;
    waitpid(child, &status, 0);
    exit(WEXITSTATUS(status));
}

/* A child that allocates, or tries to, and ends as programs do, while its parent waits and goes on. */
static CUresult has_child(struct line *line)
{
    CUdeviceptr pointer;
    int status;
    (void)line;
    pid_t child = fork();
    if (child == 0) {
        CU(cuMemAlloc_v2)(&pointer, 1000);
        exit(0);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

static CUresult ends(struct line *line)
{
    _exit(atoi(line->name));
}

static CUresult kills_itself(struct line *line)
{
    (void)line;
    return (CUresult)raise(SIGKILL);
}

static CUresult becomes_new(struct line *line)
{
    (void)line;
    return (CUresult)execv(program, (char *[]){program, NULL});
}

static CUresult gives_up_rights(struct line *line)
{
    return (CUresult)(setgid((gid_t)atoi(line->name)) | setuid((uid_t)atoi(line->name)));
}

static CUresult sleeps(struct line *line)
{
    long ms = atol(line->name);
    return (CUresult)nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static CUresult tells_pid(struct line *line)
{
    line->a = (size_t)getpid();
    return CUDA_SUCCESS;
}

static const struct verb process_verbs[] = {
    {"fork", fork_here},         {"exit", ends},    {"kill", kills_itself}, {"exec", becomes_new},
    {"setuid", gives_up_rights}, {"pid", tells_pid}, {"as", takes_form},
    {"child", has_child},        {"sleep", sleeps}, {NULL, NULL},
};

static CUresult act(struct line *line)
{
    static const struct verb *const all[] = {process_verbs, context_verbs, memory_verbs, pool_verbs, virtual_verbs,
                                             sharing_verbs, graph_verbs,   form_verbs,   nvml_verbs};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (const struct verb *verb = all[i]; verb->name != NULL; verb++)
            if (strcmp(verb->name, line->verb) == 0)
                return verb->act(line);
    fprintf(stderr, "no such verb: %s\n", line->verb);
    exit(2);
}

int main(int count, char **arguments)
{
    char text[512];
    program = count != 0 ? arguments[0] : NULL;
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* for descriptor_at in another actor; fails where nothing forbids it */
    setvbuf(stdin, NULL, _IONBF, 0); /* a fork must not inherit lines read ahead */
    while (fgets(text, sizeof text, stdin) != NULL) {
        struct line line = {.one = 0};
        if (sscanf(text, "%15s %47s %255s %zu", line.verb, line.name, line.text, &line.two) < 1)
            continue;
        line.one = strtoull(line.text, NULL, 10);
        CUresult result = act(&line);
        printf("%d %zu %zu\n", (int)result, line.a, line.b);
        fflush(stdout);
    }
    return 0;
}
