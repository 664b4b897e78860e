/* point_read.h: helpers that read the fields of a published row: words, leading numbers, small
 * degrees. */
#ifndef LT_PLAN_POINT_READ_H
#define LT_PLAN_POINT_READ_H

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

#include "plan/points.h"

#define F(row, name) ((row)->field[LT_POINT_##name])

static inline bool has(const char *text, const char *word) {
    const size_t n = strlen(word);
    for (const char *p = text; *p != 0; p++) {
        size_t i = 0;
        while (i < n && p[i] != 0 && tolower((unsigned char)p[i]) == word[i]) {
            i++;
        }
        if (i == n) {
            return true;
        }
    }
    return false;
}

/* Leading number of a field ("1536 per expert"); 0 when there is none. */
static inline double num(const char *text) {
    char *end = NULL;
    const double v = strtod(text, &end);
    return end == text || !isfinite(v) || fabs(v) > 1e15 ? 0.0 : v;
}

static inline int64_t whole(const char *text) {
    return (int64_t)llround(num(text));
}

/* A small degree: 0 if absent, out of range or not a number. */
static inline int degree(const char *text) {
    const double v = num(text);
    return v >= 1 && v <= 1e6 ? (int)v : 0;
}

/* ---- point_layout.c ---- */

/* Write the row's layout and schedule into out->query; cluster and model are already set. */
bool lt_point_layout_make(lt_point_job *out, const lt_point *row, char why[LT_PLAN_TEXT_BYTES]);

#endif
