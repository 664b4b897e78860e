/* live.c: see live.h. */
#include "train/report/live.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "platform/telemetry/exposition.h"
#include "platform/telemetry/identity.h"
#include "platform/telemetry/listen.h"

#define MAX_TABLES 6
#define MAX_VALUES 40
#define NAME_BYTES 128

/* The last line of one kind. */
typedef struct {
    char kind[64];
    const lt_metric *table;
    int n;
    double values[MAX_VALUES];
    bool present[MAX_VALUES];
} last_row;

/* The published values, copied as a whole, so that an answer is made without the lock. */
typedef struct {
    last_row rows[MAX_TABLES];
    int n_rows;
    lt_goodput goodput;
    int64_t step, steps, skipped, saves, saved_step, mirrored_step, mirror_failed;
    /* save_s: on the clock of lt_clock_s. */
    double step_unix_s, save_unix_s, save_s, save_interval_s;
} told;

struct lt_live {
    pthread_mutex_t lock; /* Protects `told`. */
    told told;
    lt_listener *listener;
    char run[256], family[64]; /* As values of labels. */
    int64_t target;
    double start_unix_s;
};

/* ---- Names ---- */

/* Endings of Lateen's names, and Prometheus's names for them. */
static const struct {
    const char *ours, *theirs;
} endings[] = {{"_per_s", "_per_second"}, {"_s", "_seconds"}, {"_j", "_joules"}};

/* "lateen_train_step_seconds" for kind train and name step_s. Counters end with _total. */
static void full_name(char out[NAME_BYTES], const char *kind, const lt_metric *m) {
    size_t n = strlen(m->name);
    const char *ending = "";
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const size_t length = strlen(endings[i].ours);
        if (n > length && strcmp(m->name + n - length, endings[i].ours) == 0) {
            n -= length;
            ending = endings[i].theirs;
            break;
        }
    }
    snprintf(out, NAME_BYTES, "lateen_%.60s_%.*s%s%s", kind, (int)n, m->name, ending,
             m->kind == LT_METRIC_TOTAL ? "_total" : "");
    for (char *p = out; *p != '\0'; p++) {
        *p = *p == '-' || *p == '.' || *p == '/' ? '_' : *p;
    }
}

static void write_row(const lt_live *l, const last_row *r, lt_expo *e) {
    for (int i = 0; i < r->n; i++) {
        char name[NAME_BYTES], help[256];
        if (!r->present[i]) {
            continue;
        }
        full_name(name, r->kind, &r->table[i]);
        snprintf(help, sizeof help, "%s%s%s", r->table[i].help,
                 r->table[i].unit[0] != '\0' ? ", " : "", r->table[i].unit);
        lt_expo_family(e, r->table[i].kind == LT_METRIC_TOTAL ? LT_EXPO_COUNTER : LT_EXPO_GAUGE,
                       name, help);
        lt_expo_value(e, r->values[i], "run=\"%s\"", l->run);
    }
}

static void write_goodput(const lt_live *l, const lt_goodput *goodput, lt_expo *e) {
    lt_expo_family(e, LT_EXPO_COUNTER, "lateen_train_seconds_total",
                   "Where the time of this process went.");
    for (int kind = 0; kind < LT_GOODPUT_COUNT; kind++) {
        lt_expo_value(e, goodput->s[kind], "run=\"%s\",kind=\"%s\"", l->run,
                      lt_goodput_names[kind]);
    }
}

/* Counters and moments of this process. */
static void write_counts(const lt_live *l, const told *t, lt_expo *e) {
    const struct {
        lt_expo_type type;
        const char *name, *help;
        double value;
    } rows[] = {
        {LT_EXPO_COUNTER, "lateen_train_steps_total", "Steps done by this process.",
         (double)t->steps},
        {LT_EXPO_COUNTER, "lateen_train_skipped_updates_total",
         "Steps of this process whose update was not applied.", (double)t->skipped},
        {LT_EXPO_COUNTER, "lateen_train_checkpoints_total", "Checkpoints of this process.",
         (double)t->saves},
        {LT_EXPO_GAUGE, "lateen_train_target_step", "The step at which the run ends.",
         (double)l->target},
        {LT_EXPO_GAUGE, "lateen_train_current_step", "The step that was done last.",
         (double)t->step},
        {LT_EXPO_GAUGE, "lateen_train_last_step_timestamp_seconds",
         "When the last step was done, since 1970; before the first, when the process began.",
         t->step_unix_s},
        {LT_EXPO_GAUGE, "lateen_train_checkpoint_step",
         "Step of the last checkpoint; -1: none yet.", (double)t->saved_step},
        {LT_EXPO_GAUGE, "lateen_train_checkpoint_timestamp_seconds",
         "When the last checkpoint was complete, since 1970; before the first, when the process "
         "began.",
         t->save_unix_s},
        {LT_EXPO_GAUGE, "lateen_train_checkpoint_interval_seconds",
         "Time between the last two checkpoints; 0: there were none.", t->save_interval_s},
        {LT_EXPO_GAUGE, "lateen_train_mirror_step",
         "Step of the newest checkpoint in checkpoint.mirror; -1: none yet.",
         (double)t->mirrored_step},
        {LT_EXPO_COUNTER, "lateen_train_mirror_failures_total",
         "Checkpoints that this process could not copy to checkpoint.mirror.",
         (double)t->mirror_failed}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_expo_family(e, rows[i].type, rows[i].name, rows[i].help);
        lt_expo_value(e, rows[i].value, "run=\"%s\"", l->run);
    }
}

static lt_err answer_metrics(void *ctx, const char *accept, lt_answer *out) {
    lt_live *l = ctx;
    lt_expo e = {.format = lt_expo_choose(accept)};
    const lt_identity who = lt_identity_of_process();
    told *t = malloc(sizeof *t);

    if (t == NULL) {
        LT_FAIL(LT_ERR_OOM, "metrics");
    }
    pthread_mutex_lock(&l->lock);
    *t = l->told;
    pthread_mutex_unlock(&l->lock);
    lt_expo_family(&e, LT_EXPO_GAUGE, "lateen_train_info", "What trains here.");
    lt_expo_value(&e, 1.0, "run=\"%s\",attempt=\"%llu\",epoch=\"%llu\",version=\"%s\",model=\"%s\"",
                  l->run, (unsigned long long)who.attempt, (unsigned long long)who.epoch,
                  lt_version(), l->family);
    write_counts(l, t, &e);
    write_goodput(l, &t->goodput, &e);
    for (int i = 0; i < t->n_rows; i++) {
        write_row(l, &t->rows[i], &e);
    }
    lt_expo_process(&e, l->start_unix_s);
    lt_expo_end(&e);
    free(t);
    if (e.failed) {
        lt_expo_free(&e);
        LT_FAIL(LT_ERR_OOM, "metrics");
    }
    *out = (lt_answer){.type = lt_expo_content_type(e.format), .text = e.data, .bytes = e.n};
    return LT_OK;
}

static const lt_listen_route routes[] = {{"/metrics", answer_metrics}};

/* ---- Opening ---- */

lt_err lt_live_open(lt_live **out, const char *at, const char *run_folder, const char *family,
                    int64_t target) {
    lt_err err = LT_OK;
    char name[LT_RUN_NAME_BYTES];
    lt_live *l = calloc(1, sizeof *l);

    if (l == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "metrics.listen");
    }
    l->start_unix_s = l->told.step_unix_s = l->told.save_unix_s = lt_clock_unix_s();
    l->told.saved_step = l->told.mirrored_step = -1;
    l->target = target;
    (void)pthread_mutex_init(&l->lock, NULL);
    (void)lt_expo_label(l->run, sizeof l->run, lt_run_name(name, run_folder));
    (void)lt_expo_label(l->family, sizeof l->family, family);
    LT_TRY_DONE(lt_listen_open(&l->listener, "metrics.listen", at, routes, 1, l));
    *out = l;
    l = NULL;
done:
    lt_live_close(l);
    return err;
}

const char *lt_live_address(const lt_live *l) {
    return lt_listen_address(l->listener);
}

void lt_live_close(lt_live *l) {
    if (l == NULL) {
        return;
    }
    lt_listen_close(l->listener);
    (void)pthread_mutex_destroy(&l->lock);
    free(l);
}

/* ---- What the training loop tells ---- */

void lt_live_step(lt_live *l, int64_t step, bool applied, const lt_goodput *goodput) {
    if (l == NULL) {
        return;
    }
    pthread_mutex_lock(&l->lock);
    l->told.step = step;
    l->told.steps++;
    l->told.skipped += !applied;
    l->told.step_unix_s = lt_clock_unix_s();
    l->told.goodput = *goodput;
    pthread_mutex_unlock(&l->lock);
}

void lt_live_goodput(lt_live *l, const lt_goodput *goodput) {
    if (l == NULL) {
        return;
    }
    pthread_mutex_lock(&l->lock);
    l->told.goodput = *goodput;
    pthread_mutex_unlock(&l->lock);
}

void lt_live_saved(lt_live *l, int64_t step) {
    if (l == NULL) {
        return;
    }
    pthread_mutex_lock(&l->lock);
    if (l->told.saves > 0) {
        l->told.save_interval_s = lt_clock_s() - l->told.save_s;
    }
    l->told.save_s = lt_clock_s();
    l->told.saves++;
    l->told.saved_step = step;
    l->told.save_unix_s = lt_clock_unix_s();
    pthread_mutex_unlock(&l->lock);
}

void lt_live_mirrored(lt_live *l, int64_t step, int64_t failed) {
    if (l == NULL) {
        return;
    }
    pthread_mutex_lock(&l->lock);
    l->told.mirrored_step = step;
    l->told.mirror_failed = failed;
    pthread_mutex_unlock(&l->lock);
}

/* The row of this kind, or a new one; NULL: there is no room. */
static last_row *row_of(told *t, const char *kind) {
    for (int i = 0; i < t->n_rows; i++) {
        if (strcmp(t->rows[i].kind, kind) == 0) {
            return &t->rows[i];
        }
    }
    return t->n_rows < MAX_TABLES ? &t->rows[t->n_rows++] : NULL;
}

lt_err lt_live_row(void *live, const char *kind, const lt_metric *table, int n,
                   const double *values, const bool *present) {
    lt_live *l = live;
    last_row *r;

    LT_ASSERT(n <= MAX_VALUES);
    pthread_mutex_lock(&l->lock);
    r = row_of(&l->told, kind);
    if (r != NULL) {
        snprintf(r->kind, sizeof r->kind, "%s", kind);
        r->table = table;
        r->n = n;
        memcpy(r->values, values, (size_t)n * sizeof *values);
        memcpy(r->present, present, (size_t)n * sizeof *present);
    }
    pthread_mutex_unlock(&l->lock);
    return LT_OK;
}
