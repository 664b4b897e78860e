/* facts.c: see facts.h. */
#include "platform/health/facts.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define GROWS_BY 64

/* Make room for one more in an array of n items; false: out of memory. */
static bool grow(lt_facts *f, void **items, int n, size_t item_bytes) {
    void *larger;
    if (n % GROWS_BY != 0) {
        return true;
    }
    larger = realloc(*items, (size_t)(n + GROWS_BY) * item_bytes);
    f->out_of_memory = f->out_of_memory || larger == NULL;
    *items = larger != NULL ? larger : *items;
    return larger != NULL;
}

void lt_facts_clear(lt_facts *f) {
    free(f->facts);
    free(f->skips);
    memset(f, 0, sizeof *f);
}

void lt_facts_add(lt_facts *f, lt_health_check_id check, const char *object, double value) {
    void *items = f->facts;
    if (isnan(value) || !grow(f, &items, f->n, sizeof *f->facts)) {
        return;
    }
    f->facts = items;
    f->facts[f->n] = (lt_fact){.check = check, .value = value};
    snprintf(f->facts[f->n].object, sizeof f->facts[f->n].object, "%s", object);
    f->n++;
}

void lt_facts_count(lt_facts *f, lt_health_check_id check, const char *object) {
    for (int i = 0; i < f->n; i++) {
        if (f->facts[i].check == check && strcmp(f->facts[i].object, object) == 0) {
            f->facts[i].value += 1.0;
            return;
        }
    }
    lt_facts_add(f, check, object, 1.0);
}

void lt_facts_skip(lt_facts *f, const char *what, const char *fmt, ...) {
    void *items = f->skips;
    lt_health_skip *s;
    va_list args;
    if (!grow(f, &items, f->n_skips, sizeof *f->skips)) {
        return;
    }
    f->skips = items;
    s = &f->skips[f->n_skips++];
    snprintf(s->what, sizeof s->what, "%s", what);
    va_start(args, fmt);
    vsnprintf(s->why, sizeof s->why, fmt, args);
    va_end(args);
}
