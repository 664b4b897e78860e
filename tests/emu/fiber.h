/* fiber.h: a second stack to run on. fiber_switch leaves one and goes on with another, on the same
 * host thread: eight pushes and pops on x86-64, the C library's contexts elsewhere. */
#ifndef LT_EMU_FIBER_H
#define LT_EMU_FIBER_H

#include <stddef.h>

#if defined(__x86_64__)
typedef struct {
    void *sp;
} fiber;
/* Ask for the stack's top, so that a switch to it soon finds it in the cache. */
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
