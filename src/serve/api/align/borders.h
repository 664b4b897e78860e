/* borders.h: finds the texts that end a step of reasoning while a text's tokens arrive. */
#ifndef LT_SERVE_BORDERS_H
#define LT_SERVE_BORDERS_H

#include "serve/api/api_params.h"

#define LT_BORDERS_MOST 8
#define LT_BORDER_BYTES 128

typedef struct {
    const char *texts[LT_BORDERS_MOST]; /* They point into the request's tree. */
    size_t lengths[LT_BORDERS_MOST], longest;
    int n;
} lt_borders;

/* The end of one text so far. */
typedef struct {
    char bytes[2 * LT_BORDER_BYTES];
    size_t n;
} lt_border_tail;

/* The end of a step in most models' reasoning. */
#define LT_BORDER_USUAL "\n\n"

/* A text or a list of at most LT_BORDERS_MOST, each of 1 to LT_BORDER_BYTES bytes; value NULL:
 * usual. */
bool lt_borders_read(lt_borders *b, const json_t *value, const char *usual, const char *param,
                     lt_api_error *e);
/* Whether text[0..bytes), which continues the text, completes a border. Each border counts once. */
bool lt_borders_met(const lt_borders *b, lt_border_tail *t, const char *text, size_t bytes);

#endif
