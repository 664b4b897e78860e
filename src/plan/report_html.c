/* report_html.c: the report with pictures: one file, no scripts, no network; every picture is
 * inline SVG.
 *
 *     memory per GPU of the best layouts          stacked bars against the GPU's memory
 *     the step of one pipeline                    slots of lt_plan_pipeline_simulate, forward and
 *                                                 backward
 *     where a step's time goes                    stacked bars of the best layouts
 *     strong scaling                              the same batch, searched again at other GPU
 *                                                 counts, against the straight line
 *     goodput against checkpoint interval         lt_plan_ettr_exact, Young's and Daly's choice
 *                                                 marked
 *     layout map                                  which axis lives on which tier of the network
 *
 * Colours are one palette of eight, checked for contrast on white; order and labels tell them apart
 * as well. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "plan/plan.h"
#include "plan/report.h"

#define WIDE        760.0 /* Width of a picture, in pixels. */
#define LEFT        215.0
#define MAX_SLOTS   60000
#define SHOW_STAGES 16
#define SHOW_MICROS 24

static const char *const palette[] = {"#3366aa", "#e07b39", "#5aa469", "#b04a5a", "#8a6bb8",
                                      "#c9a227", "#4ba3a8", "#7a7a7a", "#d48aa7", "#9c5f33",
                                      "#2f2f2f", "#7fb7e6", "#b9b9b9"};

typedef struct {
    char *text;
    size_t n, room;
    bool failed;
} page;

static void LT_PRINTF(2, 3) put(page *p, const char *fmt, ...) {
    va_list args;
    int n;
    va_start(args, fmt);
    n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0 || p->failed) {
        p->failed = true;
        return;
    }
    if (p->n + (size_t)n + 1 > p->room) {
        const size_t room = 2 * (p->n + (size_t)n) + 65536;
        char *grown = realloc(p->text, room);
        if (grown == NULL) {
            p->failed = true;
            return;
        }
        p->text = grown;
        p->room = room;
    }
    va_start(args, fmt);
    vsnprintf(p->text + p->n, p->room - p->n, fmt, args);
    va_end(args);
    p->n += (size_t)n;
}

/* Names come from files, so they are escaped. */
static void put_escaped(page *p, const char *s) {
    for (; *s != 0; s++) {
        if (*s == '<' || *s == '>' || *s == '&' || *s == '"') {
            put(p, "&#%d;", *s);
        } else {
            put(p, "%c", *s);
        }
    }
}

static void svg_open(page *p, double height, const char *label) {
    put(p, "<svg viewBox='0 0 %.0f %.0f' role='img' aria-label='%s'>\n", WIDE, height, label);
}

static void rect(page *p, double x, double y, double w, double h, const char *fill,
                 const char *title) {
    put(p,
        "<rect x='%.2f' y='%.2f' width='%.2f' height='%.2f' fill='%s'><title>%s</title></rect>\n",
        x, y, lt_plan_max(w, 0.0), h, fill, title);
}

static void text(page *p, double x, double y, const char *anchor, const char *s) {
    put(p, "<text x='%.1f' y='%.1f' text-anchor='%s'>", x, y, anchor);
    put_escaped(p, s);
    put(p, "</text>\n");
}

static void legend(page *p, const char *const *names, int n) {
    put(p, "<p class='legend'>");
    for (int i = 0; i < n; i++) {
        put(p, "<span><i style='background:%s'></i>%s</span> ", palette[i], names[i]);
    }
    put(p, "</p>\n");
}

static void bar_rows(page *p, const lt_plan_report *r, bool memory) {
    static const char *const kinds[] = {
        "weights", "gradients", "optimiser", "activations and logits", "buffers", "margin"};
    static const char *const parts[] = {
#define PART_TEXT(field, key, words) words,
        LT_PLAN_PART_MAP(PART_TEXT)};
    const int n = r->found.n_best < 5 ? (int)r->found.n_best : 5;
    const double gib = r->cluster.gpu.memory_bytes;
    const double whole = memory ? gib * 1.02 : r->found.best[n - 1].time.step_s * 1.02;
    const double scale = (WIDE - LEFT - 100.0) / whole;
    char label[LT_PLAN_TEXT_BYTES], title[LT_PLAN_TEXT_BYTES];

    svg_open(p, 34.0 * n + 26.0, memory ? "memory per GPU" : "time of a step");
    for (int i = 0; i < n; i++) {
        const lt_plan_choice *c = &r->found.best[i];
        const lt_plan_memory *m = &c->memory;
        const double mem[] = {m->weights, m->gradients, m->optimiser, m->activations + m->logits,
                              m->buffers, m->margin};
        double time[LT_PLAN_PART_COUNT], x = LEFT;
        int k = 0;
#define PART_VALUE(field, key, words) time[k++] = c->time.field;
        LT_PLAN_PART_MAP(PART_VALUE)
        snprintf(label, sizeof label, "TP%d PP%d%s%.0d%s%.0d%s%.0d DP%d mb%lld%s", c->layout.tp,
                 c->layout.pp, c->layout.vpp > 1 ? "x" : "", c->layout.vpp > 1 ? c->layout.vpp : 0,
                 c->layout.cp > 1 ? " CP" : "", c->layout.cp > 1 ? c->layout.cp : 0,
                 c->layout.ep > 1 ? " EP" : "", c->layout.ep > 1 ? c->layout.ep : 0, c->layout.dp,
                 (long long)c->layout.micro,
                 c->layout.recompute == 0   ? ""
                 : c->layout.recompute == 1 ? " sel."
                                            : " full");
        text(p, LEFT - 8, 34.0 * i + 19, "end", label);
        for (k = 0; k < (memory ? 6 : LT_PLAN_PART_COUNT); k++) {
            const double v = memory ? mem[k] : time[k];
            snprintf(title, sizeof title, memory ? "%s: %.1f GiB" : "%s: %.3f s",
                     memory ? kinds[k] : parts[k], memory ? v / LT_PLAN_GIB : v);
            rect(p, x, 34.0 * i + 4, v * scale, 22, palette[k], title);
            x += v * scale;
        }
        snprintf(label, sizeof label, memory ? "%.1f GiB" : "%.3f s",
                 memory ? m->total / LT_PLAN_GIB : c->time.step_s);
        text(p, x + 6, 34.0 * i + 19, "start", label);
    }
    if (memory) {
        put(p, "<line x1='%.1f' y1='0' x2='%.1f' y2='%.1f' class='limit'/>\n", LEFT + gib * scale,
            LEFT + gib * scale, 34.0 * n + 4);
        snprintf(label, sizeof label, "%.0f GiB: the GPU", gib / LT_PLAN_GIB);
        text(p, LEFT + gib * scale, 34.0 * n + 20, "end", label);
    }
    put(p, "</svg>\n");
    legend(p, memory ? kinds : parts, memory ? 6 : LT_PLAN_PART_COUNT);
}

/* The winner's schedule with at most SHOW_MICROS micro-batches, so that slots stay visible. */
static lt_err pipeline_picture(page *p, const lt_plan_report *r) {
    const lt_plan_choice *b = &r->found.best[0];
    const lt_plan_layout *l = &b->layout;
    const int64_t unit = l->vpp > 1 ? l->pp : 1,
                  fit = SHOW_MICROS / unit > 0 ? SHOW_MICROS / unit * unit : unit;
    lt_plan_pipeline pipe = {.stages = l->pp,
                             .chunks = l->vpp,
                             .micros = l->accum < fit ? l->accum : fit,
                             .schedule = l->schedule,
                             .forward_s = b->time.forward_s,
                             .backward_s = b->time.backward_s,
                             .weight_share = 0.4};
    lt_err err = LT_OK;
    lt_plan_slot *slots = NULL;
    const int shown = l->pp < SHOW_STAGES ? l->pp : SHOW_STAGES;
    size_t n = 0;
    double end = 0, scale;
    char label[LT_PLAN_TEXT_BYTES];

    if (l->pp == 1) {
        put(p,
            "<p>No pipeline: every GPU runs all layers (forward %.1f ms, backward %.1f ms a "
            "micro-batch, %lld of them a step).</p>\n",
            1e3 * b->time.forward_s, 1e3 * b->time.backward_s, (long long)l->accum);
        return LT_OK;
    }
    slots = calloc(MAX_SLOTS, sizeof *slots);
    if (slots == NULL) {
        LT_FAIL(LT_ERR_OOM, "the picture of a pipeline of %d stages", l->pp);
    }
    LT_TRY_DONE(lt_plan_pipeline_simulate(&pipe, &end, slots, MAX_SLOTS, &n));
    scale = (WIDE - 70.0) / end;
    svg_open(p, 20.0 * shown + 24.0, "timeline of one pipeline");
    for (size_t i = 0; i < n; i++) {
        const lt_plan_slot *s = &slots[i];
        const bool f = s->kind == 'F';
        char fill[32];
        if (s->stage >= shown) {
            continue;
        }
        snprintf(fill, sizeof fill, "hsl(%d,%d%%,%d%%)", f ? 213 : 24, f ? 52 : 70,
                 (f ? 46 : 50) + (s->chunk * 28) / (l->vpp > 1 ? l->vpp - 1 + (l->vpp == 1) : 1));
        put(p,
            "<rect x='%.2f' y='%.1f' width='%.2f' height='17' fill='%s' stroke='#fff' "
            "stroke-width='.4'/>\n",
            62 + s->start_s * scale, 20.0 * s->stage + 2, (s->end_s - s->start_s) * scale, fill);
    }
    for (int s = 0; s < shown; s++) {
        snprintf(label, sizeof label, "stage %d", s);
        text(p, 56, 20.0 * s + 15, "end", label);
    }
    snprintf(label, sizeof label, "%.2f s: %lld of %lld micro-batches%s", end,
             (long long)pipe.micros, (long long)l->accum,
             l->pp > shown ? ", the first stages" : "");
    text(p, WIDE - 8, 20.0 * shown + 18, "end", label);
    put(p, "</svg>\n<p class='legend'><span><i "
           "style='background:hsl(213,52%%,46%%)'></i>forward</span> <span><i "
           "style='background:hsl(24,70%%,50%%)'></i>backward</span> lighter: later virtual "
           "stages; white: bubble</p>\n");
done:
    free(slots);
    return err;
}

typedef struct {
    double x0, x1, y0, y1; /* Data range; x is logarithmic. */
    double top, bottom;
    bool log_y;
} axes;

static double ax(const axes *a, double x) {
    return 62 + (WIDE - 90) * log(x / a->x0) / log(a->x1 / a->x0);
}

static double ay(const axes *a, double y) {
    const double share = a->log_y ? log(y / a->y0) / log(a->y1 / a->y0)
                                  : (y - a->y0) / (a->y1 - a->y0);
    return a->bottom - (a->bottom - a->top) * share;
}

static void grid(page *p, const axes *a, const char *y_fmt, double y_unit) {
    char label[64];
    for (int i = 0; i <= 4; i++) {
        const double y = a->log_y ? a->y0 * pow(a->y1 / a->y0, i / 4.0)
                                  : a->y0 + (a->y1 - a->y0) * i / 4;
        put(p, "<line x1='62' y1='%.1f' x2='%.1f' y2='%.1f' class='grid'/>\n", ay(a, y), WIDE - 28,
            ay(a, y));
        snprintf(label, sizeof label, y_fmt, y * y_unit);
        text(p, 56, ay(a, y) + 4, "end", label);
    }
}

static void scaling_picture(page *p, const lt_plan_report *r) {
    double x[9], y[9];
    int n = 0;
    axes a = {.top = 16, .bottom = 210, .log_y = true};
    char label[64];
    for (int k = -4; k <= 3; k++) {
        const int64_t gpus = k < 0 ? r->query.gpus >> -k : r->query.gpus << k;
        lt_plan_query q = r->query;
        lt_plan_cluster c = r->cluster;
        lt_plan_found f = {0};
        q.gpus = gpus;
        q.progress = NULL;
        c.gpus = gpus > c.gpus ? gpus : c.gpus;
        if (gpus >= 1 && (k >= 0 || (r->query.gpus >> -k) << -k == r->query.gpus) &&
            lt_plan_search(&r->model, &c, &q, &f) == LT_OK && f.n_fit > 0) {
            x[n] = (double)gpus;
            y[n++] = f.best[0].time.tokens_s;
        }
        lt_plan_found_free(&f);
    }
    if (n < 2) {
        put(p, "<p>No other GPU count divides this batch.</p>\n");
        return;
    }
    a.x0 = x[0] * 0.9;
    a.x1 = x[n - 1] * 1.1;
    a.y0 = y[0] * 0.5;
    a.y1 = y[0] / x[0] * x[n - 1] * 1.2;
    svg_open(p, 250, "strong scaling");
    grid(p, &a, "%.2g M", 1e-6);
    put(p, "<polyline class='ideal' points='%.1f,%.1f %.1f,%.1f", ax(&a, x[0]), ay(&a, y[0]),
        ax(&a, x[n - 1]), ay(&a, y[0] / x[0] * x[n - 1]));
    put(p, "'/>\n<polyline class='line' points='");
    for (int i = 0; i < n; i++) {
        put(p, "%.1f,%.1f ", ax(&a, x[i]), ay(&a, y[i]));
    }
    put(p, "'/>\n");
    for (int i = 0; i < n; i++) {
        const bool here = (int64_t)x[i] == r->query.gpus;
        put(p, "<circle cx='%.1f' cy='%.1f' r='%d' fill='%s'/>\n", ax(&a, x[i]), ay(&a, y[i]),
            here ? 6 : 4, here ? palette[1] : palette[0]);
        snprintf(label, sizeof label, "%.0f", x[i]);
        text(p, ax(&a, x[i]), 226, "middle", label);
        snprintf(label, sizeof label, "%.0f %%", 100 * y[i] / x[i] / (y[0] / x[0]));
        text(p, ax(&a, x[i]), ay(&a, y[i]) + 20, "middle", label);
    }
    text(p, WIDE / 2, 244, "middle",
         "GPUs, the same batch, best layout of each; tokens a second (dashed: linear) and "
         "efficiency");
    put(p, "</svg>\n");
}

static void goodput_picture(page *p, const lt_plan_report *r) {
    const lt_plan_goodput *g = &r->goodput;
    const double young = lt_plan_young_s(g->mtbf_s, g->block_s);
    axes a = {.x0 = g->interval_s / 20,
              .x1 = lt_plan_min(g->interval_s * 40, 3 * g->mtbf_s),
              .y0 = 0.5,
              .y1 = 1.0,
              .top = 12,
              .bottom = 190};
    const double at[] = {60, 300, 900, 3600, 3 * 3600.0, 12 * 3600.0, 86400};
    static const char *const names[] = {"1 min", "5 min", "15 min", "1 h", "3 h", "12 h", "1 day"};
    char label[96];
    if (a.x1 <= a.x0 * 2) {
        a.x1 = a.x0 * 100;
    }
    a.y0 = g->ettr > 0.85 ? 0.6 : g->ettr > 0.5 ? 0.2 : 0.0; /* Ticks at round shares. */
    svg_open(p, 232, "goodput against checkpoint interval");
    grid(p, &a, "%.0f %%", 100);
    put(p, "<polyline class='line' points='");
    for (int i = 0; i <= 120; i++) {
        const double tau = a.x0 * pow(a.x1 / a.x0, i / 120.0);
        const double e = lt_plan_ettr_exact(g->mtbf_s, g->block_s, g->restart_s, tau);
        if (e >= a.y0) {
            put(p, "%.1f,%.1f ", ax(&a, tau), ay(&a, e));
        }
    }
    put(p, "'/>\n");
    for (int i = 0; i < 7; i++) {
        if (at[i] > a.x0 && at[i] < a.x1) {
            text(p, ax(&a, at[i]), 206, "middle", names[i]);
        }
    }
    put(p, "<circle cx='%.1f' cy='%.1f' r='6' fill='%s'/>\n", ax(&a, g->interval_s),
        ay(&a, lt_plan_max(a.y0, g->ettr)), palette[1]);
    snprintf(label, sizeof label, "%.1f min: %.1f %%", g->interval_s / 60, 100 * g->ettr);
    text(p, ax(&a, g->interval_s), ay(&a, lt_plan_max(a.y0, g->ettr)) + 24, "middle", label);
    snprintf(label, sizeof label,
             "between saves; Young %.1f min, Daly %.1f min; a failure every %.1f h", young / 60,
             lt_plan_daly_s(g->mtbf_s, g->block_s) / 60, g->mtbf_s / 3600);
    text(p, WIDE / 2, 226, "middle", label);
    put(p, "</svg>\n");
}

/* Nested boxes: which axis stays inside which part of the machine. */
static void map_picture(page *p, const lt_plan_report *r) {
    const lt_plan_layout *l = &r->found.best[0].layout;
    const int64_t inner[] = {l->tp, l->cp, l->dp_outer ? l->pp : l->dp,
                             l->dp_outer ? l->dp : l->pp};
    const char *const names[] = {"tensor", "context", l->dp_outer ? "pipeline" : "data",
                                 l->dp_outer ? "data" : "pipeline"};
    int64_t span = 1;
    char label[LT_PLAN_TEXT_BYTES];
    int row = 0;
    svg_open(p, 168, "layout on the topology");
    for (int i = 0; i < 4; i++) {
        const double w0 = log2((double)span + 1), all = log2((double)r->query.gpus + 1);
        if (inner[i] == 1) {
            continue;
        }
        span *= inner[i];
        rect(p, LEFT + (WIDE - LEFT - 20) * w0 / all, 30.0 * row + 6,
             (WIDE - LEFT - 20) * (log2((double)span + 1) - w0) / all, 20, palette[i], names[i]);
        snprintf(label, sizeof label, "%s x %lld", names[i], (long long)inner[i]);
        text(p, LEFT - 8, 30.0 * row + 21, "end", label);
        row++;
    }
    {
        const double all = log2((double)r->query.gpus + 1);
        const int64_t marks[] = {r->cluster.gpu.domain_gpus,
                                 r->cluster.n_tiers > 0 ? r->cluster.tier[0].gpus : 0,
                                 r->cluster.n_tiers > 1 ? r->cluster.tier[1].gpus : 0,
                                 r->cluster.n_tiers > 2 ? r->cluster.tier[2].gpus : 0};
        for (int i = 0; i < 4; i++) {
            if (marks[i] > 0 && marks[i] <= r->query.gpus) {
                const double x = LEFT + (WIDE - LEFT - 20) * log2((double)marks[i] + 1) / all;
                put(p, "<line x1='%.1f' y1='0' x2='%.1f' y2='%.1f' class='limit'/>\n", x, x,
                    30.0 * row + 8);
                snprintf(label, sizeof label, i == 0 ? "links: %lld" : "tier: %lld",
                         (long long)marks[i]);
                text(p, x, 30.0 * row + 22 + 14.0 * (i % 2), "middle", label);
            }
        }
        text(p, WIDE - 10, 30.0 * row + 52, "end",
             "neighbouring ranks, logarithmic; dashed: where links and switch tiers end");
    }
    put(p, "</svg>\n");
}

static void answer(page *p, const lt_plan_report *r) {
    const lt_plan_choice *b = &r->found.best[0];
    char layout[LT_PLAN_TEXT_BYTES], tokens[32], money[32], hours[32];
    const bool brief = r->days < 2;
    put(p, "<h1>");
    put_escaped(p, r->model.name);
    put(p, " on %lld &times; ", (long long)r->query.gpus);
    put_escaped(p, r->cluster.gpu.name);
    put(p,
        "</h1>\n<div class='cards'>"
        "<div><b>%.1f %s</b>for %s tokens</div><div><b>$ %s</b>%s GPU "
        "hours</div><div><b>%.1f %%</b>MFU, %.0f tokens/s a GPU</div>"
        "<div><b>%.1f %%</b>ETTR, a failure every %.1f h</div><div><b>%.3g %s</b>power swing %.1f "
        "MW</div></div>\n",
        brief ? 24 * r->days : r->days, brief ? "hours" : "days", lt_plan_big(r->tokens, tokens),
        lt_plan_big(r->money, money), lt_plan_big(r->gpu_hours, hours), 100 * b->time.mfu,
        b->time.tokens_s_gpu, 100 * r->goodput.ettr, r->goodput.mtbf_s / 3600,
        r->mwh >= 1000 ? r->mwh / 1000 : r->mwh, r->mwh >= 1000 ? "GWh" : "MWh", r->swing_mw);
    put(p, "<p>Best layout <code>");
    put_escaped(p, lt_plan_layout_text(layout, &b->layout));
    put(p,
        "</code>: %.3f s a step of %.2f M tokens, %.1f of %.0f GiB. %zu layouts tried, %zu fit. "
        "Cluster <code>",
        b->time.step_s, (double)(r->query.batch_seqs * r->model.max_seq) / 1e6,
        b->memory.total / LT_PLAN_GIB, r->cluster.gpu.memory_bytes / LT_PLAN_GIB, r->found.n_tried,
        r->found.n_fit);
    put_escaped(p, r->cluster.name);
    put(p, "</code>, software <code>");
    put_escaped(p, r->cluster.stack.name);
    put(p, "</code>.</p>\n");
    for (int i = 0; i < r->n_warnings; i++) {
        put(p, "<p class='warn'>");
        put_escaped(p, r->warning[i]);
        put(p, "</p>\n");
    }
}

static void what_if_table(page *p, const lt_plan_report *r) {
    put(p, "<table>");
    for (int i = 0; i < r->n_what_ifs; i++) {
        const double gain = 100 * (r->found.best[0].time.step_s / r->what_if[i].step_s - 1);
        put(p,
            "<tr><td>%s</td><td class='n'>%+.1f %%</td><td><i "
            "style='width:%.0fpx;background:%s'></i></td></tr>\n",
            r->what_if[i].change, gain, lt_plan_min(300, lt_plan_max(0, gain * 6)),
            gain >= 20 ? palette[1] : palette[0]);
    }
    put(p, "</table>\n");
}

static const char head_text[] =
    "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' "
    "content='width=device-width'><title>lateen plan</title>\n<style>"
    "body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:800px;margin:32px auto;padding:0 "
    "20px;background:#fff}"
    "h1{font-size:26px;margin:0 0 14px}h2{font-size:17px;margin:34px 0 "
    "8px}svg{width:100%;height:auto;display:block}"
    "text{font:12px system-ui,sans-serif;fill:#333}.cards{display:flex;flex-wrap:wrap;gap:10px}"
    ".cards div{flex:1 1 118px;background:#f3f5f8;border-radius:8px;padding:10px "
    "14px;font-size:13px;color:#555}.cards b{display:block;font-size:20px;color:#111}"
    ".legend{font-size:13px;color:#444;margin:6px 0}.legend "
    "span{margin-right:12px;white-space:nowrap}.legend "
    "i{display:inline-block;width:11px;height:11px;"
    "margin-right:5px;border-radius:2px}.warn{background:#fff4e5;border-left:4px solid "
    "#e07b39;padding:6px 12px;margin:8px 0}"
    ".limit{stroke:#b04a5a;stroke-width:1.2;stroke-dasharray:4 "
    "3}.grid{stroke:#e3e3e3}.line{fill:none;stroke:#3366aa;stroke-width:2.5}"
    ".ideal{fill:none;stroke:#aaa;stroke-dasharray:5 "
    "4}table{border-collapse:collapse}td{padding:3px 14px 3px 0}td.n{text-align:right;"
    "font-variant-numeric:tabular-nums}td "
    "i{display:block;height:10px;border-radius:2px}code{background:#f3f5f8;padding:1px "
    "5px;border-radius:4px}"
    "</style>\n";

lt_err lt_plan_report_html(const lt_plan_report *r, const char *path) {
    page p = {0};
    lt_err err = LT_OK;
    LT_ASSERT(r != NULL && path != NULL && r->found.n_best > 0);
    put(&p, "%s", head_text);
    answer(&p, r);
    put(&p, "<h2>Where a step's time goes</h2>\n");
    bar_rows(&p, r, false);
    put(&p, "<h2>Memory of the fullest GPU</h2>\n");
    bar_rows(&p, r, true);
    put(&p, "<h2>One pipeline</h2>\n");
    LT_TRY_DONE(pipeline_picture(&p, r));
    put(&p, "<h2>Strong scaling</h2>\n");
    scaling_picture(&p, r);
    put(&p, "<h2>Effective time against the interval between saves</h2>\n");
    goodput_picture(&p, r);
    if (r->query.gpus > 1) {
        put(&p, "<h2>Layout on the machine</h2>\n");
        map_picture(&p, r);
    }
    if (r->n_what_ifs > 0) {
        put(&p, "<h2>What would make it faster</h2>\n");
        what_if_table(&p, r);
    }
    put(&p, "<p class='legend'>lateen %s</p></html>\n", lt_version());
    err = p.failed ? lt_error_set(LT_ERR_OOM, "report %s", path)
                   : lt_file_write_atomic(path, p.text, p.n);
done:
    free(p.text);
    return err;
}
