/* rewrite.h: rewrites CUDA C so that device.h makes it C++. */
#ifndef LT_EMU_REWRITE_H
#define LT_EMU_REWRITE_H

#include <stddef.h>

typedef struct {
    char *text; /* Owned by the caller; ends with NUL. */
    size_t n, most;
} emu_text;

void emu_text_add(emu_text *t, const char *from, size_t n);

/* Append the rewritten form of a preprocessed source. It has as many lines as before, so that
 * errors and debuggers name the right ones. `ptx` is the text of the headers that have the
 * instructions. Text that cannot be parsed is left unchanged, so that the compiler reports it. */
void emu_rewrite(emu_text *out, const char *source, const char *ptx);

#endif
