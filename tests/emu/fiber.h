/* fiber.h: a second stack to run on. fiber_switch leaves one stack and continues on another, on
 * the same host thread: eight pushes and pops on x86-64, the C library's contexts elsewhere. */
#ifndef LT_EMU_FIBER_H
#define LT_EMU_FIBER_H

#include <stddef.h>

#if defined(__x86_64__)
typedef struct {
    void *sp;
} fiber;
/* Prefetch the top of the stack, so that it is in the cache when a switch to it follows. */
static inline void fiber_prefetch(const fiber *f) {
    __builtin_prefetch((const char *)f->sp, 1);
    __builtin_prefetch((const char *)f->sp + 64, 1);
    __builtin_prefetch((const char *)f->sp + 128, 1);
}
#else
#include <ucontext.h>
typedef struct {
    ucontext_t context;
} fiber;
static inline void fiber_prefetch(const fiber *f) {
    (void)f;
}
#endif

/* The first switch to f calls entry() on the stack [low, low + bytes); it must not return. */
void fiber_make(fiber *f, void *low, size_t bytes, void (*entry)(void));
void fiber_switch(fiber *from, fiber *to);

#endif
