/* plan_schedule.c: `lateen plan schedule`: the table of a pipeline, printed and drawn. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/plan/plan_verbs.h"
#include "parallel/schedule_view.h"

#define SCHEDULE_OPTIONS(X)                                                                        \
    X(ENUM, schedule, "schedule", "1f1b", 0, 0, LT_SCHEDULE_CHOICES "|all",                        \
      "order of the work; all: one line about each")                                               \
    X(I64, pp, "pp", "4", 1, 1024, "ranks", "ranks of the pipeline")                               \
    X(I64, micros, "micros", "8", 1, 1e6, "", "micro-batches of a step")                           \
    X(I64, chunks, "chunks", "0", 0, 64, "", "chunks of layers a rank (0: the schedule's fewest)") \
    X(F64, forward, "forward", "1", 1e-6, 1e6, "", "time of a rank's forward pass")                \
    X(F64, backward, "backward", "1", 1e-6, 1e6, "", "time of the gradient of its input")          \
    X(F64, weights, "weights", "1", 0, 1e6, "", "time of the gradient of its weights")             \
    X(F64, send, "send", "0", 0, 1e6, "", "time of a message between two ranks")                   \
    X(F64, head, "head", "0", 0, 1e6, "",                                                          \
      "time of the output head and the loss, forward; twice that backward")                        \
    X(STR, svg, "svg", "", 0, 0, "file", "draw the table into this file")                          \
    X(BOOL, json, "json", "false", 0, 0, "", "print JSON")

typedef struct {
    SCHEDULE_OPTIONS(LT_OPTION_FIELD)
} schedule_options;
#define LT_OPTION_STRUCT schedule_options
static const lt_option rows[] = {SCHEDULE_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("plan schedule", rows);

static const char prose[] =
    "Make the table that a pipeline of ranks runs, check it, and print how long a step takes, how\n"
    "long each rank is idle, and how many micro-batches' activations it holds (in units of its "
    "own\n"
    "layers). F: forward. B: backward; W: gradient of the weights, if it is computed separately.";

typedef struct {
    lt_schedule schedule;
    lt_schedule_times times;
} made;

static void made_close(made *m) {
    lt_schedule_times_close(&m->times);
    lt_schedule_close(&m->schedule);
}

/* A stage takes its share of a rank's times; the last one also the head's. */
static void stage_times(double *f, double *b, double *w, const schedule_options *o,
                        const lt_schedule *t) {
    const int v = t->shape.chunks, stages = t->shape.ranks * v;
    for (int s = 0; s < stages; s++) {
        f[s] = o->forward / v;
        b[s] = (t->split_backward ? o->backward : o->backward + o->weights) / v;
        w[s] = o->weights / v;
    }
    f[stages - 1] += o->head;
    b[stages - 1] += t->split_backward ? o->head : 2.0 * o->head;
    w[stages - 1] += o->head;
}

static lt_err make(made *m, lt_schedule_kind kind, const schedule_options *o) {
    lt_err err = LT_OK;
    const int least = lt_schedule_fewest_chunks(kind);
    const lt_schedule_shape s = {.kind = kind,
                                 .ranks = (int)o->pp,
                                 .chunks = o->chunks > 0 ? (int)o->chunks : least,
                                 .micros = o->micros};
    const size_t stages = (size_t)s.ranks * (size_t)s.chunks;
    double *all = calloc(3 * stages, sizeof *all);

    if (all == NULL) {
        LT_FAIL(LT_ERR_OOM, "schedule of %zu stages", stages);
    }
    LT_TRY_DONE(lt_schedule_open(&m->schedule, &s));
    stage_times(all, all + stages, all + 2 * stages, o, &m->schedule);
    const lt_schedule_costs c = {all, all + stages, all + 2 * stages, o->send};
    LT_TRY_DONE(lt_schedule_simulate(&m->times, &m->schedule, &c));
done:
    free(all);
    return err;
}

static double most_held(const lt_schedule *t) {
    int most = 0;
    for (int rank = 0; rank < t->shape.ranks; rank++) {
        most = t->rows[rank].held > most ? t->rows[rank].held : most;
    }
    return (double)most / t->shape.chunks;
}

static json_t *as_json(const made *m) {
    const lt_schedule *t = &m->schedule;
    json_t *ranks = json_array();
    for (int rank = 0; rank < t->shape.ranks; rank++) {
        const lt_schedule_row *row = &t->rows[rank];
        json_t *ops = json_array();
        for (int64_t i = 0; i < row->n_ops; i++) {
            const lt_schedule_op *op = &row->ops[i];
            const char letter[2] = {LT_SCHEDULE_LETTERS[op->kind], '\0'};
            json_array_append_new(ops,
                                  json_pack("{s:s, s:i, s:i, s:f, s:f, s:i, s:i, s:i}", "op",
                                            letter, "micro", (int)op->micro, "chunk", op->chunk,
                                            "start", m->times.start_s[row->first + i], "end",
                                            m->times.end_s[row->first + i], "set", op->set, "from",
                                            op->from, "to", op->to));
        }
        json_array_append_new(ranks,
                              json_pack("{s:i, s:f, s:f, s:f, s:o}", "rank", rank, "busy",
                                        m->times.busy_s[rank], "idle_share",
                                        lt_schedule_idle(t, &m->times, rank), "held",
                                        (double)row->held / t->shape.chunks, "operations", ops));
    }
    return json_pack(
        "{s:s, s:i, s:i, s:I, s:f, s:f, s:o}", "schedule", lt_schedule_name(t->shape.kind), "pp",
        t->shape.ranks, "chunks", t->shape.chunks, "micros", (json_int_t)t->shape.micros, "step",
        m->times.makespan_s, "idle_share", lt_schedule_idle_all(t, &m->times), "ranks", ranks);
}

static void print_json(json_t *root) {
    json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    (void)putchar('\n');
    json_decref(root);
}

static lt_err draw(const made *m, const char *path, double unit_s) {
    FILE *out = fopen(path, "w");
    if (out == NULL) {
        LT_FAIL(LT_ERR_IO, "%s: %s", path, strerror(errno));
    }
    lt_schedule_svg(out, &m->schedule, &m->times, unit_s);
    if (fclose(out) != 0) {
        LT_FAIL(LT_ERR_IO, "%s: %s", path, strerror(errno));
    }
    return LT_OK;
}

/* Print a line for each schedule that has the requested chunks. */
static lt_err compare(const schedule_options *o) {
    json_t *list = json_array();
    if (!o->json) {
        (void)printf("%-12s %7s %12s %8s %6s\n", "schedule", "chunks", "step", "idle", "held");
    }
    for (int kind = 0; kind < LT_SCHEDULE_COUNT; kind++) {
        made m = {0};
        const lt_err err = make(&m, (lt_schedule_kind)kind, o);
        if (err == LT_ERR_ARG && o->chunks > 0) {
            continue;
        }
        if (err != LT_OK) {
            made_close(&m);
            json_decref(list);
            return err;
        }
        const double idle = lt_schedule_idle_all(&m.schedule, &m.times),
                     held = most_held(&m.schedule);
        json_array_append_new(list, json_pack("{s:s, s:i, s:f, s:f, s:f}", "schedule",
                                              lt_schedule_name((lt_schedule_kind)kind), "chunks",
                                              m.schedule.shape.chunks, "step", m.times.makespan_s,
                                              "idle_share", idle, "held", held));
        if (!o->json) {
            (void)printf("%-12s %7d %12.6g %7.1f%% %6.4g\n",
                         lt_schedule_name((lt_schedule_kind)kind), m.schedule.shape.chunks,
                         m.times.makespan_s, 100.0 * idle, held);
        }
        made_close(&m);
    }
    if (o->json) {
        print_json(json_incref(list));
    }
    json_decref(list);
    return LT_OK;
}

static double least_time(const schedule_options *o, const lt_schedule *t) {
    double least = o->forward < o->backward ? o->forward : o->backward;
    least = t->split_backward && o->weights > 0 && o->weights < least ? o->weights : least;
    return least / t->shape.chunks;
}

static lt_err run(const schedule_options *o) {
    lt_err err = LT_OK;
    made m = {0};
    if (o->schedule == LT_SCHEDULE_COUNT) {
        if (o->svg[0] != '\0') {
            LT_FAIL(LT_ERR_ARG, "--svg draws one schedule: --schedule all contradicts it");
        }
        return compare(o);
    }
    LT_TRY_DONE(make(&m, (lt_schedule_kind)o->schedule, o));
    if (o->svg[0] != '\0') {
        LT_TRY_DONE(draw(&m, o->svg, o->forward));
    }
    if (o->json) {
        print_json(as_json(&m));
    } else {
        lt_schedule_text(stdout, &m.schedule, &m.times, least_time(o, &m.schedule));
    }
done:
    made_close(&m);
    return err;
}

int lt_plan_schedule_verb(int argc, char **argv) {
    schedule_options o;
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;
    if (!lt_verb_parse(&table, &o, argc, argv,
                       "plan schedule --schedule 1f1b --pp 4 --micros 8 [options]", prose, NULL, 0,
                       &n, &status)) {
        return status;
    }
    err = run(&o);
    return err != LT_OK ? lt_verb_fail(err) : LT_EXIT_DONE;
}
