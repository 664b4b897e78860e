/* think_marks.h: the marks around a model's reasoning, for all families. They do not follow from
 * the format of its tool calls. A model's own marks are those of its chat template (serve/parse.h);
 * code that judges a text without knowing its model looks for all of them. */
#ifndef LT_DATA_THINK_MARKS_H
#define LT_DATA_THINK_MARKS_H

#include <stddef.h>

typedef struct {
    const char *open, *close;
} lt_think_mark;

/* Most models use the last one, LT_THINK_USUAL, which is also used for unknown models. */
#define LT_THINK_MARKS 7
#define LT_THINK_USUAL (LT_THINK_MARKS - 1)
extern const lt_think_mark lt_think_marks[LT_THINK_MARKS];

/* The position in text[0..n) after the reasoning; 0 if there is none, and n if the reasoning has no
 * end. */
size_t lt_think_end(const char *text, size_t n);

#endif
