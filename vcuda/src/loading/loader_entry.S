/* loader_entry.S: the exported dlsym and dlvsym.
 *
 * RTLD_DEFAULT (0) and RTLD_NEXT (-1) are resolved by the loader relative to the caller, which it knows by the
 * return address: for these the real function is entered by a jump, with the stack as the caller left it. Of RTLD_NEXT
 * vcuda_next is asked first, which answers for a function of the driver's that has a hook, and NULL for every other name.
 * Everything else goes to the C code in loader.c.
 */
#if defined(__x86_64__)
#ifdef __CET__
#include <cet.h>
#else
#define _CET_ENDBR
#endif
.macro ENTRY name, real, in_c
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    _CET_ENDBR
    cmpq $0, \real(%rip)
    jne 1f
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    call vcuda_loader_find
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
1:  leaq 1(%rdi), %rax       /* 0 and -1 become 1 and 0 */
    cmpq $1, %rax
    ja \in_c
    je 2f
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    movq %rsi, %rdi
    movq 24(%rsp), %rsi      /* the return address */
    call vcuda_next
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testq %rax, %rax
    jz 2f
    ret
2:  jmpq *\real(%rip)
    .cfi_endproc
    .size \name, . - \name
.endm
#elif defined(__aarch64__)
.macro ENTRY name, real, in_c
    .globl \name
    .type \name, %function
\name:
    .cfi_startproc
    adrp x9, \real
    ldr x10, [x9, :lo12:\real]
    cbnz x10, 1f
    stp x29, x30, [sp, #-48]!
    .cfi_adjust_cfa_offset 48
    stp x0, x1, [sp, #16]
    str x2, [sp, #32]
    bl vcuda_loader_find
    ldp x0, x1, [sp, #16]
    ldr x2, [sp, #32]
    ldp x29, x30, [sp], #48
    .cfi_adjust_cfa_offset -48
    adrp x9, \real
    ldr x10, [x9, :lo12:\real]
1:  add x11, x0, #1
    cmp x11, #1
    b.hi \in_c
    b.eq 2f
    stp x29, x30, [sp, #-48]!
    .cfi_adjust_cfa_offset 48
    stp x0, x1, [sp, #16]
    str x2, [sp, #32]
    mov x0, x1
    mov x1, x30
    bl vcuda_next
    mov x12, x0
    ldp x0, x1, [sp, #16]
    ldr x2, [sp, #32]
    ldp x29, x30, [sp], #48
    .cfi_adjust_cfa_offset -48
    adrp x9, \real
    ldr x10, [x9, :lo12:\real]
    cbz x12, 2f
    mov x0, x12
    ret
2:  br x10
    .cfi_endproc
    .size \name, . - \name
.endm
#else
#error "the shim knows x86-64 and aarch64"
#endif
    .text
    ENTRY dlsym, vcuda_real_dlsym, vcuda_dlsym
    ENTRY dlvsym, vcuda_real_dlvsym, vcuda_dlvsym
    .section .note.GNU-stack, "", %progbits
