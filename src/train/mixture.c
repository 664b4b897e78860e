/* mixture.c: see mixture.h. */
#include "train/mixture.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define WEIGHT_MAX 1e100 /* Limited so that no sum overflows. */

/* "path:weight": the weight follows the last colon, if it is a number. */
static lt_err parse_source(lt_loader_source *s, char *word, const char *option) {
    char *colon = strrchr(word, ':'), *end = NULL;
    *s = (lt_loader_source){.path = word, .weight = 1.0};
    if (colon != NULL) {
        const double weight = strtod(colon + 1, &end);
        if (end != colon + 1 && *end == '\0') {
            *colon = '\0';
            s->weight = weight;
        }
    }
    if (word[0] == '\0' || !(s->weight > 0.0 && s->weight <= WEIGHT_MAX)) {
        LT_FAIL(
            LT_ERR_ARG,
            "%s: '%s' with weight %g: a mixture is PATH:WEIGHT,... with weights above 0, at most "
            "%g",
            option, word, s->weight, WEIGHT_MAX);
    }
    return LT_OK;
}

lt_err lt_mixture_parse(lt_mixture *out, const char *text, const char *option) {
    char *next, *word;
    double sum = 0.0;
    *out = (lt_mixture){0};
    memcpy(out->text, text, strnlen(text, sizeof out->text - 1));
    for (next = out->text; (word = strsep(&next, ",")) != NULL;) {
        word += strspn(word, " ");
        if (out->n_sources == LT_LOADER_SOURCES_MAX) {
            LT_FAIL(LT_ERR_LIMIT, "%s: more than %d sources", option, LT_LOADER_SOURCES_MAX);
        }
        LT_TRY(parse_source(&out->sources[out->n_sources], word, option));
        sum += out->sources[out->n_sources++].weight;
    }
    for (int64_t i = 0; i < out->n_sources; i++) { /* The loader's shares are multiples of 2^-32. */
        if (out->sources[i].weight / sum < 0x1p-32) {
            LT_FAIL(LT_ERR_ARG, "%s: weight %g of '%s' beside a sum of %g gives it no row", option,
                    out->sources[i].weight, out->sources[i].path, sum);
        }
    }
    return LT_OK;
}

void lt_mixture_close(lt_mixture *m) {
    for (int64_t i = 0; i < m->n_sources; i++) {
        free(m->made[i]);
    }
    *m = (lt_mixture){0};
}
