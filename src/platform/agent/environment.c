/* environment.c: see environment.h. */
#include "platform/agent/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/limits.h"
#include "comm/board.h"
#include "comm/shm.h"
#include "platform/agent/memory.h"

extern char **environ;

void lt_environment_free(char **words) {
    for (size_t i = 0; words != NULL && words[i] != NULL; i++) {
        free(words[i]);
    }
    free(words);
}

enum { N_VALUES = 17 };
typedef struct {
    const char *name;
    char value[LT_PATH_BYTES];
} variable;

/* An empty value unsets the variable, even if an outer launcher has set it. */
static void fill(variable v[N_VALUES], const lt_environment *e) {
    static const char *const names[N_VALUES] = {
        LT_ENV_RANK,        LT_ENV_RANKS,     LT_ENV_SEGMENT, LT_ENV_STORE, LT_ENV_TOKEN,
        LT_ENV_EPOCH,       LT_ENV_BEAT,      LT_ENV_SILENT,  LT_ENV_BOARD, LT_ENV_MEMORY,
        LT_ENV_NODE,        LT_ENV_SNAPSHOT,  LT_ENV_MTBF,    LT_ENV_FULL,  LT_ENV_LOCAL_RANK,
        LT_ENV_LOCAL_RANKS, "OMP_NUM_THREADS"};
    const int here = e->apart ? e->locals : e->full; /* Ranks of this machine. */
    lt_limits limits;
    size_t k = 0;
    lt_limits_read(&limits);
    for (int i = 0; i < N_VALUES; i++) {
        v[i] = (variable){.name = names[i]};
    }
    (void)snprintf(v[k++].value, sizeof v->value, "%d", e->rank);
    (void)snprintf(v[k++].value, sizeof v->value, "%d", e->n);
    if (e->apart) {
        (void)snprintf(v[k].value, sizeof v->value, "%s", LT_SEGMENT_TCP);
    } else {
        (void)snprintf(v[k].value, sizeof v->value, "%d", e->segment);
    }
    k++;
    (void)snprintf(v[k++].value, sizeof v->value, "%s", e->store);
    (void)snprintf(v[k++].value, sizeof v->value, "%s", e->token);
    (void)snprintf(v[k++].value, sizeof v->value, "%llu", (unsigned long long)e->epoch);
    (void)snprintf(v[k++].value, sizeof v->value, "%.6g", e->beat_s);
    (void)snprintf(v[k++].value, sizeof v->value, "%.6g", e->silent_s);
    (void)snprintf(v[k++].value, sizeof v->value, "%d", e->board);
    if (e->memory[0] != '\0') {
        (void)snprintf(v[k].value, sizeof v->value, "%s", e->memory);
        (void)snprintf(v[k + 1].value, sizeof v->value, "%d", e->node);
        (void)snprintf(v[k + 2].value, sizeof v->value, "%lld", (long long)e->snapshot);
        (void)snprintf(v[k + 3].value, sizeof v->value, "%.6g", e->mtbf_s);
    }
    k += 4;
    (void)snprintf(v[k++].value, sizeof v->value, "%d", e->full);
    if (e->apart) {
        (void)snprintf(v[k].value, sizeof v->value, "%d", e->local);
        (void)snprintf(v[k + 1].value, sizeof v->value, "%d", e->locals);
    }
    k += 2;
    /* Ranks divide the cores among them, unless the environment already sets the number of
     * threads. */
    (void)snprintf(v[k].value, sizeof v->value, "%s",
                   getenv("OMP_NUM_THREADS") != NULL ? getenv("OMP_NUM_THREADS") : "");
    if (v[k].value[0] == '\0') {
        (void)snprintf(v[k].value, sizeof v->value, "%d",
                       limits.n_cpus / here > 0 ? limits.n_cpus / here : 1);
    }
}

static bool is_one_of(const char *word, const variable v[N_VALUES]) {
    for (int i = 0; i < N_VALUES; i++) {
        const size_t length = strlen(v[i].name);
        if (strncmp(word, v[i].name, length) == 0 && word[length] == '=') {
            return true;
        }
    }
    return false;
}

char **lt_environment_make(const lt_environment *e) {
    variable *v = calloc(N_VALUES, sizeof *v);
    char **words;
    size_t n = 0, used = 0;
    bool whole = v != NULL;
    while (environ[n] != NULL) {
        n++;
    }
    words = calloc(n + N_VALUES + 1, sizeof *words);
    whole = whole && words != NULL;
    if (whole) {
        fill(v, e);
    }
    for (size_t i = 0; whole && i < n; i++) {
        if (!is_one_of(environ[i], v)) {
            whole = (words[used++] = strdup(environ[i])) != NULL;
        }
    }
    for (int i = 0; whole && i < N_VALUES; i++) {
        if (v[i].value[0] != '\0') {
            whole = asprintf(&words[used], "%s=%s", v[i].name, v[i].value) >= 0;
            words[used] = whole ? words[used] : NULL;
            used++;
        }
    }
    free(v);
    if (!whole) {
        lt_environment_free(words);
        return NULL;
    }
    return words;
}
