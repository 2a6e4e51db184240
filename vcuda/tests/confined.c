/* confined.c: becomes another program, with a filter of system calls that it and its children keep.
 *
 *     confined PROGRAM ARGUMENT...
 *
 * A call that containers' profiles refuse (those of containerd and Docker), or that older and stricter ones do, ends the process.
 * clone3 answers ENOSYS, as there. What a driver of NVIDIA's asks the kernel beyond that is not known here.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_clone3 /* headers before Linux 5.3 */
#define SYS_clone3 435
#endif
#ifndef SYS_pidfd_getfd /* headers before Linux 5.6 */
#define SYS_pidfd_getfd 438
#endif

static const int refused[] = {
    SYS_acct, SYS_add_key, SYS_bpf, SYS_delete_module, SYS_fanotify_init, SYS_finit_module, SYS_get_mempolicy, SYS_init_module,
    SYS_kcmp, SYS_keyctl, SYS_mbind, SYS_membarrier, SYS_memfd_create, SYS_migrate_pages, SYS_mount, SYS_move_pages,
    SYS_name_to_handle_at, SYS_open_by_handle_at, SYS_perf_event_open, SYS_personality, SYS_pidfd_getfd, SYS_pivot_root,
    SYS_process_vm_readv, SYS_process_vm_writev, SYS_ptrace, SYS_quotactl, SYS_reboot, SYS_request_key, SYS_sethostname,
    SYS_set_mempolicy, SYS_setns, SYS_settimeofday, SYS_syslog, SYS_umount2, SYS_unshare, SYS_userfaultfd,
    425 /* io_uring_setup */, 426 /* io_uring_enter */, 427 /* io_uring_register */,
};
#define REFUSED (sizeof refused / sizeof *refused)

static int confine(void)
{
    struct sock_filter filter[4 + 2 * REFUSED] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
    };
    unsigned short used = 3;
    for (size_t i = 0; i < REFUSED; i++) {
        filter[used++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)refused[i], 0, 1);
        filter[used++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    }
    filter[used++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {used, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

int main(int count, char **arguments)
{
    if (count < 2 || !confine())
        return 2;
    execv(arguments[1], arguments + 1);
    perror(arguments[1]);
    return 3;
}
