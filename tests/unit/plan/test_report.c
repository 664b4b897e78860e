/* The pictures of the report show what the plan says: bars are as long as their values, on one
 * scale; the dashed line is the GPU's memory; the schedule has each forward and backward pass;
 * the curve of strong scaling is that of separate searches, on logarithmic axes; boxes of the map
 * end where the ranks do. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"
#include "plan/report.h"

enum { LEFT = 215, WIDE = 760, MOST = 4096 };

typedef struct {
    double x, y, width;
    char title[96];
} bar;

static lt_plan_report r;
static char *html;

static void near(const char *what, double got, double want, double within) {
    if (!(fabs(got - want) <= within)) {
        fail_msg("%s: %.6g, not %.6g", what, got, want);
    }
}

static void load(const char *model, const char *cluster, lt_plan_query q, bool sensitivity) {
    r = (lt_plan_report){.query = q};
    if (lt_plan_model_load(&r.model, model) != LT_OK ||
        lt_plan_cluster_load(&r.cluster, cluster) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    r.tokens = 1e12;
    if (lt_plan_report_make(&r, 0, false, sensitivity) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

static void draw(void) {
    char path[] = "/tmp/test_report_XXXXXX";
    const int fd = mkstemp(path);
    size_t n;
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(lt_plan_report_html(&r, path), LT_OK);
    free(html);
    assert_int_equal(lt_file_read(&html, &n, path, (size_t)16 << 20), LT_OK);
    unlink(path);
}

static void done(void) {
    free(html);
    html = NULL;
    lt_plan_report_close(&r);
}

/* The picture with that label, as a separate text; free it. */
static char *picture(const char *label) {
    char begin[96];
    snprintf(begin, sizeof begin, "aria-label='%s'", label);
    const char *const from = strstr(html, begin);
    if (from == NULL) {
        fail_msg("no picture '%s'", label);
    }
    return strndup(from, (size_t)(strstr(from, "</svg>") - from));
}

static int bars_of(const char *svg, bar *out) {
    int n = 0;
    for (const char *p = svg; (p = strstr(p, "<rect x='")) != NULL; p++) {
        assert_true(n < MOST);
        bar *b = &out[n++];
        b->title[0] = '\0';
        assert_true(sscanf(p, "<rect x='%lf' y='%lf' width='%lf'", &b->x, &b->y, &b->width) == 3);
        const char *const title = strstr(p, "<title>"), *const end = strstr(p, "\n");
        if (title != NULL && title < end) {
            snprintf(b->title, sizeof b->title, "%.*s", (int)(strchr(title + 7, '<') - title - 7),
                     title + 7);
        }
    }
    return n;
}

/* The place of the text that begins with these words; false: there is none. */
static bool find_text(const char *svg, const char *words, double *x, double *y) {
    char end[128];
    snprintf(end, sizeof end, "'>%s", words);
    const char *const at = strstr(svg, end);
    const char *from = at;
    while (from != NULL && from > svg && strncmp(from, "<text", 5) != 0) {
        from--;
    }
    return from != NULL && sscanf(from, "<text x='%lf' y='%lf'", x, y) == 2;
}

static void one_scale(const char *label, bool memory) {
    static bar bars[MOST];
    const char *const unit = memory ? "GiB" : "s";
    const int n_rows = r.found.n_best < 5 ? (int)r.found.n_best : 5;
    const int n_parts = memory ? 6 : LT_PLAN_PART_COUNT;
    char *const svg = picture(label);
    double scale, x, y, line = 0;
    char frame[128];
    assert_int_equal(bars_of(svg, bars), n_rows * n_parts);
    /* The longest bar, or the GPU's memory, takes all but 2 % of the width. */
    scale = (WIDE - LEFT - 100) / 1.02 /
            (memory ? r.cluster.gpu.memory_bytes : r.found.best[n_rows - 1].time.step_s);
    for (int i = 0; i < n_rows; i++) {
        const lt_plan_memory *m = &r.found.best[i].memory;
        const lt_plan_time *t = &r.found.best[i].time;
        const double mem[] = {m->weights, m->gradients, m->optimiser, m->activations + m->logits,
                              m->buffers, m->margin};
#define VALUE(field, key, text) t->field,
        const double times[] = {LT_PLAN_PART_MAP(VALUE)};
        double at = LEFT;
        char total[64];
        for (int k = 0; k < n_parts; k++) {
            const bar *b = &bars[i * n_parts + k];
            const double v = memory ? mem[k] : times[k];
            char value[64];
            snprintf(value, sizeof value, memory ? ": %.1f %s" : ": %.3f %s",
                     memory ? v / 1073741824.0 : v, unit);
            assert_non_null(strstr(b->title, value));
            near(b->title, b->x, at, 0.02 * (k + 1));
            near(b->title, b->width, v * scale, 0.02);
            near(b->title, b->y, 34 * i + 4, 0.01);
            at += v * scale;
        }
        snprintf(total, sizeof total, memory ? "%.1f GiB<" : "%.3f s<",
                 memory ? m->total / 1073741824.0 : t->step_s);
        assert_true(find_text(svg, total, &x, &y));
    }
    snprintf(frame, sizeof frame, "<svg viewBox='0 0 760 %d' role='img' aria-label='%s'>",
             34 * n_rows + 26, label);
    assert_non_null(strstr(html, frame));
    if (memory) {
        assert_int_equal(sscanf(strstr(svg, "<line x1='"), "<line x1='%lf'", &line), 1);
        near("the GPU's memory", line, LEFT + r.cluster.gpu.memory_bytes * scale, 0.1);
        assert_true(find_text(svg, "80 GiB: the GPU", &x, &y));
    }
    free(svg);
}

static void bars_are_as_long_as_their_values(void **state) {
    const lt_plan_query q = {.gpus = 64,
                             .batch_seqs = 256,
                             .zero = -1,
                             .recompute = -1,
                             .tp = 2,
                             .cp = 2,
                             .precision = LT_PLAN_BF16,
                             .max_results = 7};
    (void)state;
    load("llama3-8b", "dgx-h100", q, true);
    snprintf(r.model.name, sizeof r.model.name, "a<b>&\"c");
    r.tokens = 2e12;
    r.mwh = 2500;
    r.days = 1.5;
    draw();
    assert_memory_equal(html, "<!doctype html><html lang='en'>", 31);
    assert_non_null(strstr(html, "<b>2.5 GWh</b>"));
    assert_non_null(strstr(html, "<b>36.0 hours</b>"));
    one_scale("time of a step", false);
    one_scale("memory per GPU", true);
    assert_non_null(strstr(html, "<h1>a&#60;b&#62;&#38;&#34;c on 64 &times; "));
    assert_non_null(strstr(html, "for 2 T tokens")); /* Its number is the one in the plan. */
    char layout[128];
    const lt_plan_layout *l = &r.found.best[0].layout;
    snprintf(layout, sizeof layout, ">TP2 PP%d%s CP2 DP%d mb%lld", l->pp, l->vpp > 1 ? "x" : "",
             l->dp, (long long)l->micro);
    assert_non_null(strstr(html, layout));
    assert_true(r.n_what_ifs > 0);
    for (int i = 0; i < r.n_what_ifs; i++) {
        char gain[160];
        snprintf(gain, sizeof gain, "<td>%s</td><td class='n'>%+.1f %%</td>", r.what_if[i].change,
                 100 * r.found.best[0].time.step_s / r.what_if[i].step_s - 100);
        assert_non_null(strstr(html, gain));
    }
    done();
}

/* 1F1B: each micro-batch runs forward and backward on each stage, and none begins before the
 * previous one has ended. */
static void the_schedule_is_complete(void **state) {
    static bar bars[MOST];
    const lt_plan_query q = {.gpus = 64,
                             .batch_seqs = 640,
                             .zero = 1,
                             .recompute = -1,
                             .tp = 2,
                             .pp = 4,
                             .vpp = 1,
                             .micro = 1,
                             .precision = LT_PLAN_BF16};
    double x, y;
    (void)state;
    load("llama3-8b", "dgx-h100", q, false);
    draw();
    char *const svg = picture("timeline of one pipeline");
    const int n = bars_of(svg, bars);
    int of_stage[4] = {0};
    double end[4] = {0}, last = 0;
    assert_int_equal(r.found.best[0].layout.accum, 80);
    assert_int_equal(n, 4 * 2 * 24);
    for (int i = 0; i < n; i++) {
        const int stage = (int)((bars[i].y - 2) / 20);
        assert_true(stage >= 0 && stage < 4);
        of_stage[stage]++;
        assert_true(bars[i].x >= 62 - 0.01);
        last = fmax(last, bars[i].x + bars[i].width);
        end[stage] = fmax(end[stage], bars[i].x + bars[i].width);
    }
    for (int stage = 0; stage < 4; stage++) {
        assert_int_equal(of_stage[stage], 48);
    }
    near("the whole width", last, WIDE - 8, 0.5);
    near("the first stage ends last", end[0], last, 0.1);
    assert_true(find_text(svg, "stage 3", &x, &y));
    near("its row", y, 75, 0.1);
    assert_non_null(strstr(svg, "s: 24 of 80 micro-batches<"));
    free(svg);
    done();
}

static int count(const char *text, const char *what) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)) != NULL; p++) {
        n++;
    }
    return n;
}

/* Interleaved stages take micro-batches in groups of as many as there are stages: 20 of at most
 * 24. */
static void interleaved_stages_show_whole_groups(void **state) {
    static bar bars[MOST];
    const lt_plan_query q = {.gpus = 40,
                             .batch_seqs = 80,
                             .zero = 1,
                             .recompute = -1,
                             .tp = 8,
                             .pp = 5,
                             .vpp = 2,
                             .micro = 1,
                             .precision = LT_PLAN_BF16};
    (void)state;
    load("llama3-70b", "dgx-h100", q, false);
    draw();
    char *const svg = picture("timeline of one pipeline");
    assert_int_equal(bars_of(svg, bars), 5 * 2 * 2 * 20);
    assert_non_null(strstr(svg, "s: 20 of 80 micro-batches<"));
    free(svg);
    done();
}

/* The axis has five labels, and the curve of saves has its points above it. */
static void the_curve_of_saves_is_drawn(void **state) {
    const lt_plan_query q = {.gpus = 64,
                             .batch_seqs = 256,
                             .zero = -1,
                             .recompute = -1,
                             .ep = 8,
                             .precision = LT_PLAN_BF16};
    char interval[64];
    double x, y;
    (void)state;
    load("mixtral-8x7b", "dgx-h100", q, false);
    draw();
    char *svg = picture("goodput against checkpoint interval");
    assert_int_equal(count(svg, "<text x='56.0'"), 5);
    const char *const points = strstr(svg, "class='line' points='") + 21;
    char *const line = strndup(points, strcspn(points, "'"));
    assert_true(count(line, ",") > 60);
    free(line);
    snprintf(interval, sizeof interval, "%.1f min: %.1f %%<", r.goodput.interval_s / 60,
             100 * r.goodput.ettr);
    assert_true(find_text(svg, interval, &x, &y));
    snprintf(interval, sizeof interval, "a failure every %.1f h<", r.goodput.mtbf_s / 3600);
    assert_non_null(strstr(svg, interval));
    free(svg);
    svg = picture("time of a step");
    assert_non_null(strstr(svg, " EP8 DP"));
    free(svg);
    done();
}

static void scaling_is_that_of_other_searches(void **state) {
    const lt_plan_query q = {
        .gpus = 24, .batch_seqs = 96, .zero = -1, .recompute = -1, .precision = LT_PLAN_BF16};
    double x[9], y[9], speed[9], gpus[9];
    int n = 0;
    (void)state;
    load("llama3-8b", "dgx-h100", q, false);
    draw();
    char *const svg = picture("strong scaling");
    for (int64_t count = 3; count <= 192; count *= 2) { /* Halves and doubles of 24. */
        lt_plan_query other = q;
        lt_plan_found f = {0};
        char words[32];
        other.gpus = count;
        if (lt_plan_search(&r.model, &r.cluster, &other, &f) == LT_OK && f.n_fit > 0) {
            gpus[n] = (double)count;
            speed[n] = f.best[0].time.tokens_s;
            snprintf(words, sizeof words, "%lld<", (long long)count);
            if (!find_text(svg, words, &x[n], &y[n])) {
                fail_msg("no point of %lld GPUs", (long long)count);
            }
            n++;
        }
        lt_plan_found_free(&f);
    }
    assert_true(n >= 4);
    for (int i = 0; i < n; i++) {
        char words[32];
        near("its place", (x[i] - x[0]) / (x[n - 1] - x[0]),
             log(gpus[i] / gpus[0]) / log(gpus[n - 1] / gpus[0]), 2e-3);
        snprintf(words, sizeof words, "%.0f %%<", 100 * speed[i] / gpus[i] / (speed[0] / gpus[0]));
        assert_true(find_text(svg, words, &(double){0}, &(double){0}));
    }
    /* The line through the first point has the slope of the axes. */
    double at[4], point[2][2];
    assert_int_equal(sscanf(strstr(svg, "class='ideal' points='") + 22, "%lf,%lf %lf,%lf", &at[0],
                            &at[1], &at[2], &at[3]),
                     4);
    assert_int_equal(sscanf(strstr(svg, "class='line' points='") + 21, "%lf,%lf %lf,%lf",
                            &point[0][0], &point[0][1], &point[1][0], &point[1][1]),
                     4);
    near("the first point", point[0][1], at[1], 0.11);
    near("the second, below the line by its efficiency",
         (point[0][1] - point[1][1]) / (at[1] - at[3]),
         log(speed[1] / speed[0]) / log(gpus[n - 1] / gpus[0]), 2e-3);
    assert_int_equal(count(svg, "r='6'"), 1); /* The requested one. */
    free(svg);
    done();
}

static void the_map_ends_where_ranks_do(void **state) {
    static bar bars[MOST];
    const lt_plan_query q = {.gpus = 64,
                             .batch_seqs = 256,
                             .zero = 1,
                             .recompute = -1,
                             .tp = 4,
                             .pp = 2,
                             .precision = LT_PLAN_BF16};
    const double whole = WIDE - LEFT - 20;
    double line, x, y;
    (void)state;
    load("llama3-8b", "dgx-h100", q, false);
    assert_int_equal(r.found.best[0].layout.cp, 1);
    r.found.best[0].layout.dp_outer = false; /* Megatron's order: tensor, data, pipeline. */
    draw();
    char *svg = picture("layout on the topology");
    assert_int_equal(bars_of(svg, bars), 3);
    assert_string_equal(bars[0].title, "tensor");
    assert_string_equal(bars[1].title, "data");
    assert_string_equal(bars[2].title, "pipeline");
    near("tensor", bars[0].x + bars[0].width, LEFT + whole * log2(5) / log2(65), 0.02);
    near("data", bars[1].x, bars[0].x + bars[0].width, 0.02);
    near("data", bars[1].x + bars[1].width, LEFT + whole * log2(33) / log2(65), 0.02);
    near("pipeline", bars[2].x + bars[2].width, LEFT + whole, 0.02);
    assert_true(find_text(svg, "data x 8<", &x, &y));
    near("the second row", y, 51, 0.1);
    assert_true(find_text(svg, "links: 8<", &x, &y)); /* Between the eight GPUs of a node. */
    assert_int_equal(sscanf(strstr(svg, "<line x1='"), "<line x1='%lf'", &line), 1);
    near("links", line, LEFT + whole * log2(9) / log2(65), 0.1);
    near("their text", x, line, 0.1);
    int ends = r.cluster.gpu.domain_gpus <= 64;
    for (int i = 0; i < r.cluster.n_tiers && i < 3; i++) {
        ends += r.cluster.tier[i].gpus <= 64;
    }
    assert_int_equal(count(svg, "class='limit'"), ends);
    assert_non_null(strstr(svg, "neighbouring ranks, logarithmic"));
    free(svg);
    r.found.best[0].layout.dp_outer = true; /* Llama 3's order. */
    draw();
    svg = picture("layout on the topology");
    assert_int_equal(bars_of(svg, bars), 3);
    assert_string_equal(bars[1].title, "pipeline");
    near("pipeline", bars[1].x + bars[1].width, LEFT + whole * log2(9) / log2(65), 0.02);
    free(svg);
    done();
}

/* A schedule that cannot be simulated is an error, and does not mean a layout without a
 * pipeline. */
static void a_pipeline_that_fails_is_an_error(void **state) {
    char path[] = "/tmp/lateen-report-XXXXXX";
    const lt_plan_query q = {.gpus = 64,
                             .batch_seqs = 256,
                             .zero = 1,
                             .recompute = -1,
                             .tp = 4,
                             .pp = 2,
                             .precision = LT_PLAN_BF16};
    const int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    close(fd);
    load("llama3-8b", "dgx-h100", q, false);
    lt_plan_layout *l = &r.found.best[0].layout;
    assert_int_equal(l->pp, 2);
    l->schedule = LT_PLAN_INTERLEAVED;
    l->vpp = 2;
    l->accum = 3; /* Not a multiple of the stages. */
    assert_int_equal(lt_plan_report_html(&r, path), LT_ERR_ARG);
    unlink(path);
    done();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bars_are_as_long_as_their_values),
        cmocka_unit_test(the_schedule_is_complete),
        cmocka_unit_test(interleaved_stages_show_whole_groups),
        cmocka_unit_test(the_curve_of_saves_is_drawn),
        cmocka_unit_test(scaling_is_that_of_other_searches),
        cmocka_unit_test(the_map_ends_where_ranks_do),
        cmocka_unit_test(a_pipeline_that_fails_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
