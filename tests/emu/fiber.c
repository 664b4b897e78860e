/* fiber.c: see fiber.h. Registers that the ABI lets a function change need not be saved: only the
 * six callee-saved registers and the stack pointer are. */
#include "fiber.h"

#include <stdint.h>
#include <stdlib.h>

#if defined(__x86_64__)

void fiber_swap(void **save, void *load);
__asm__(".text\n.globl fiber_swap\n.hidden fiber_swap\n.type fiber_swap, @function\n"
        "fiber_swap:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq "
        "%r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size fiber_swap, .-fiber_swap\n");

void fiber_make(fiber *f, void *low, size_t bytes, void (*entry)(void)) {
    uintptr_t *top = (uintptr_t *)(((uintptr_t)low + bytes) & ~(uintptr_t)15);
    /* The return address of entry is 0, so that debuggers stop unwinding there. At entry the
     * stack pointer is 8 bytes off a multiple of 16, as after a call. */
    *--top = 0;
    *--top = (uintptr_t)entry;
    for (int i = 0; i < 6; i++) {
        *--top = 0;
    }
    f->sp = top;
}

void fiber_switch(fiber *from, fiber *to) {
    fiber_swap(&from->sp, to->sp);
}

#else

void fiber_make(fiber *f, void *low, size_t bytes, void (*entry)(void)) {
    if (getcontext(&f->context) != 0) {
        abort();
    }
    f->context.uc_stack.ss_sp = low;
    f->context.uc_stack.ss_size = bytes;
    f->context.uc_link = NULL;
    makecontext(&f->context, entry, 0);
}

void fiber_switch(fiber *from, fiber *to) {
    swapcontext(&from->context, &to->context);
}

#endif
