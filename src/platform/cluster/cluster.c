/* cluster.c: collects what the page of a cluster shows: see lateen/cluster.h. Two tables list the
 * queries to Prometheus and the commands of Slurm. Their answers go unchanged to the page, which
 * draws them (page.html). */
#include "lateen/cluster.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "platform/cluster/page.h"
#include "platform/cluster/prometheus.h"
#include "platform/command.h"
#include "platform/telemetry/listen.h"

/* Points of a curve over the window: enough for the width of a phone. */
#define POINTS     120
#define COMMAND_S  15.0
#define CONNECT_S  3.0
#define ANSWER_S   10.0
#define MAX_FIELDS 12

/* Expressions; curve: evaluated over the window. $step is the time between two points. */
static const struct {
    const char *name;
    bool curve;
    const char *expression;
} questions[] = {
    {"up", false, "up{job=~\"lateen-.*\"}"},
    {"health", false, "lateen_health_result"},
    {"checks", false, "lateen_health_check_result > 0"},
    {"values", false, "lateen_health_check_value and (lateen_health_check_result > 0)"},
    {"gpu_use", false, "DCGM_FI_DEV_GPU_UTIL"},
    {"gpu_temperature", false, "DCGM_FI_DEV_GPU_TEMP"},
    {"info", false, "lateen_train_info"},
    {"step", false, "lateen_train_current_step"},
    {"target", false, "lateen_train_target_step"},
    {"step_s", false, "lateen_train_step_seconds"},
    {"step_age", false, "time() - lateen_train_last_step_timestamp_seconds"},
    {"checkpoint_age", false, "time() - lateen_train_checkpoint_timestamp_seconds"},
    {"loss", false, "lateen_train_loss"},
    {"straggler", false, "lateen_train_straggler"},
    {"straggler_share", false, "lateen_train_straggler_share"},
    {"tokens_per_s", false, "lateen_train_tokens_per_second"},
    {"goodput", true, "sum by (run, kind) (increase(lateen_train_seconds_total[$step]))"},
    {"losses", true, "max by (run) (lateen_train_loss)"},
    {"alerts", true, "ALERTS{alertstate=\"firing\"}"},
};

/* Commands of Slurm, which print lines of fields with `separator` between. A name may contain any
 * character except control characters, so these are the separators if Slurm lets us choose. */
#define UNIT "\037"
static const struct {
    const char *name;
    const char *words[12];
    char separator;
    const char *fields[MAX_FIELDS];
} commands[] = {
    {"nodes",
     {"sinfo", "--noheader", "--Node", "--format",
      "%N" UNIT "%R" UNIT "%T" UNIT "%c" UNIT "%G" UNIT "%E"},
     UNIT[0],
     {"node", "partition", "state", "cpus", "gres", "reason"}},
    {"jobs",
     {"squeue", "--noheader", "--format",
      "%A" UNIT "%j" UNIT "%a" UNIT "%u" UNIT "%P" UNIT "%T" UNIT "%D" UNIT "%M" UNIT "%L" UNIT
      "%b" UNIT "%N" UNIT "%r"},
     UNIT[0],
     {"id", "name", "tenant", "user", "partition", "state", "nodes", "time", "left", "gres", "on",
      "reason"}},
    {"hours",
     {"sacct", "--noheader", "--parsable2", "--allusers", "--allocations", "--starttime",
      "now-7days", "--format", "Account,ElapsedRaw,AllocTRES"},
     '|',
     {"tenant", "seconds", "tres"}},
};

/* ---- Asking ---- */

/* Note why a part is missing; the first reason is kept. */
static void note_error(json_t *errors, const char *part) {
    if (json_object_get(errors, part) == NULL) {
        (void)json_object_set_new(errors, part, json_string(lt_error_message()));
    }
}

/* The expression with its step, in seconds. */
static void fill_step(char *out, size_t room, const char *expression, double step_s) {
    const char *mark = strstr(expression, "$step");
    if (mark == NULL) {
        snprintf(out, room, "%s", expression);
        return;
    }
    snprintf(out, room, "%.*s%.0fs%s", (int)(mark - expression), expression, step_s,
             mark + strlen("$step"));
}

static lt_err ask_prometheus(json_t *data, json_t *errors, const lt_cluster_options *o) {
    lt_err err = LT_OK;
    lt_web_shared shared;
    lt_prometheus p = {.url = o->prometheus};
    const double step_s = fmax(ceil(o->window_s / POINTS), 1.0);

    lt_web_shared_open(&shared);
    shared.connect_s = CONNECT_S;
    shared.stall_s = ANSWER_S;
    LT_TRY_DONE(lt_web_open(&p.web, &shared));
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        char expression[256];
        json_t *result = NULL;
        fill_step(expression, sizeof expression, questions[i].expression, step_s);
        if (lt_prometheus_ask(&result, &p, expression, questions[i].curve ? o->window_s : 0.0,
                              step_s) != LT_OK) {
            note_error(errors, "prometheus");
            break; /* The other queries would wait as long. */
        }
        (void)json_object_set_new(data, questions[i].name, result);
    }
done:
    lt_web_close(p.web);
    lt_web_shared_close(&shared);
    return err;
}

/* A line of fields as an object; fields that the line lacks are omitted. Text that is not UTF-8
 * becomes null. */
static json_t *read_line(char *line, char separator, const char *const *fields) {
    const char between[2] = {separator, '\0'};
    json_t *o = json_object();
    for (int i = 0; i < MAX_FIELDS && fields[i] != NULL && line != NULL; i++) {
        const char *word = strsep(&line, between);
        json_t *value = json_string(word);
        (void)json_object_set_new(o, fields[i], value != NULL ? value : json_null());
    }
    return o;
}

static void ask_slurm(json_t *data, json_t *errors, const lt_cluster_options *o) {
    for (size_t i = 0; i < sizeof commands / sizeof *commands && *o->stop == 0; i++) {
        char *text = NULL, *rest, *line;
        json_t *lines;
        if (lt_command_run(&text, commands[i].words, COMMAND_S) != LT_OK) {
            note_error(errors, commands[i].words[0]);
            continue;
        }
        lines = json_array();
        rest = text;
        while ((line = strsep(&rest, "\n")) != NULL) {
            if (line[0] != '\0') {
                (void)json_array_append_new(
                    lines, read_line(line, commands[i].separator, commands[i].fields));
            }
        }
        (void)json_object_set_new(data, commands[i].name, lines);
        free(text);
    }
}

lt_err lt_cluster_data(char **out, const lt_cluster_options *o) {
    lt_err err = LT_OK;
    json_t *data = json_pack("{s:f, s:f}", "time", lt_clock_unix_s(), "window_s", o->window_s);
    json_t *errors = json_object();

    if (data == NULL || errors == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "data of the cluster");
    }
    if (o->prometheus[0] != '\0') {
        LT_TRY_DONE(ask_prometheus(data, errors, o));
    }
    if (o->slurm) {
        ask_slurm(data, errors, o);
    }
    (void)json_object_set(data, "errors", errors);
    *out = json_dumps(data, JSON_COMPACT);
    if (*out == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "data of the cluster");
    }
done:
    json_decref(errors);
    json_decref(data);
    return err;
}

/* ---- Serving: all answers are made on the listener's one thread ---- */

typedef struct {
    const lt_cluster_options *o;
    char *data; /* NULL: there was no request yet. */
    double made_s;
} server;

static lt_err give(lt_answer *out, const char *type, const char *text) {
    out->text = strdup(text);
    if (out->text == NULL) {
        LT_FAIL(LT_ERR_OOM, "page of the cluster");
    }
    out->type = type;
    out->bytes = strlen(text);
    return LT_OK;
}

static lt_err answer_data(void *ctx, const char *accept, lt_answer *out) {
    server *s = ctx;
    (void)accept;
    if (s->data == NULL || lt_clock_s() - s->made_s > s->o->fresh_s) {
        char *data = NULL;
        LT_TRY(lt_cluster_data(&data, s->o));
        free(s->data);
        s->data = data;
        s->made_s = lt_clock_s();
    }
    return give(out, "application/json", s->data);
}

static lt_err answer_page(void *ctx, const char *accept, lt_answer *out) {
    (void)ctx;
    (void)accept;
    return give(out, "text/html; charset=utf-8", lt_cluster_page);
}

static const lt_listen_route routes[] = {{"/", answer_page}, {"/data.json", answer_data}};

lt_err lt_cluster_serve(const lt_cluster_options *o) {
    static const struct timespec nap = {.tv_nsec = 200000000};
    server s = {.o = o};
    lt_listener *listener = NULL;

    LT_TRY(lt_listen_open(&listener, "listen", o->listen, routes,
                          (int)(sizeof routes / sizeof *routes), &s));
    o->on_listen(lt_listen_address(listener));
    while (*o->stop == 0) {
        (void)nanosleep(&nap, NULL);
    }
    lt_listen_close(listener);
    free(s.data);
    return LT_OK;
}
