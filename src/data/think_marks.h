/* think_marks.h: the marks around a model's reasoning, of all families. They do not follow from the
 * format of its calls. A model's own are those of its chat template (serve/parse.h); who judges a
 * text without knowing its model looks for all of them. */
#ifndef LT_DATA_THINK_MARKS_H
#define LT_DATA_THINK_MARKS_H

#include <stddef.h>

typedef struct {
    const char *open, *close;
} lt_think_mark;

/* The last one, LT_THINK_USUAL, is that of most models, and of those of which nothing is known. */
#define LT_THINK_MARKS 7
#define LT_THINK_USUAL (LT_THINK_MARKS - 1)
extern const lt_think_mark lt_think_marks[LT_THINK_MARKS];

/* text[return value .. n) is what follows the reasoning: the whole text if there is none. n: the
 * reasoning has no end. */
size_t lt_think_end(const char *text, size_t n);

#endif
