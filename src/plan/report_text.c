/* report_text.c: the page a person reads: the answer first, then the best layouts with bars, then
 * warnings. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan/report.h"

#define BAR_CELLS 30

/* One letter per part of lt_plan_time, in its order. */
static const char *const part_letters = "GAELtcepdboij";

static void put_bar(FILE *to, const double *part, const char *letters, int n, double whole) {
    double sum = 0;
    int at = 0;
    for (int i = 0; i < n; i++) {
        sum += part[i];
        for (; at < BAR_CELLS && at + 0.5 < sum / whole * BAR_CELLS; at++) {
            fputc(letters[i], to);
        }
    }
    for (; at < BAR_CELLS; at++) {
        fputc('.', to);
    }
}

static void time_parts(const lt_plan_time *t, double out[LT_PLAN_PART_COUNT]) {
    int i = 0;
#define COPY_PART(field, key, text) out[i++] = t->field;
    LT_PLAN_PART_MAP(COPY_PART)
#undef COPY_PART
}

const char *lt_plan_big(double x, char out[32]) {
    static const char *const unit[] = {"", " k", " M", " B", " T"};
    int u = 0;
    while (fabs(x) >= 1000 && u < 4) {
        x /= 1000;
        u++;
    }
    snprintf(out, 32, "%.3g%s", x, unit[u]);
    return out;
}

static void head(const lt_plan_report *r, FILE *to) {
    const lt_plan_choice *b = &r->found.best[0];
    char x[32], y[32];
    fprintf(to, "%s (%s parameters) on %lld x %s, %s tokens: fits.\n\n", r->model.name,
            lt_plan_big(lt_plan_model_params(&r->model).total, x), (long long)r->query.gpus,
            r->cluster.gpu.name, lt_plan_big(r->tokens, y));
    if (r->days < 2) {
        fprintf(to, "  %.1f hours", 24 * r->days);
    } else {
        fprintf(to, "  %.1f days", r->days);
    }
    fprintf(to, "   $%s   MFU %.1f %%   ETTR %.1f %%   %.3g %s\n", lt_plan_big(r->money, x),
            100 * b->time.mfu, 100 * r->goodput.ettr, r->mwh >= 1000 ? r->mwh / 1000 : r->mwh,
            r->mwh >= 1000 ? "GWh" : "MWh");
    fprintf(to, "  %.3f s a step of %s tokens, %.0f tokens/s a GPU, %s GPU hours\n", b->time.step_s,
            lt_plan_big((double)(r->query.batch_seqs * r->model.max_seq), x), b->time.tokens_s_gpu,
            lt_plan_big(r->gpu_hours, y));
    fprintf(to,
            "  a failure every %.1f h; save every %.1f min (%.3g TB, blocks %.1f s); goodput %.1f "
            "%%; %lld spare nodes\n\n",
            r->goodput.mtbf_s / 3600.0, r->goodput.interval_s / 60.0,
            r->goodput.checkpoint_bytes / 1e12, r->goodput.block_s, 100 * r->goodput.goodput,
            (long long)r->goodput.spares);
}

static void layouts(const lt_plan_report *r, FILE *to, int n_layouts) {
    double parts[LT_PLAN_PART_COUNT];
    char text[LT_PLAN_TEXT_BYTES];
    const double all = r->cluster.gpu.memory_bytes;
    fprintf(to, "  %-3s %-46s %8s %6s  %-*s %6s  %s\n", "", "layout", "s/step", "MFU %", BAR_CELLS,
            "step", "GiB", "memory");
    for (int i = 0; i < n_layouts && (size_t)i < r->found.n_best; i++) {
        const lt_plan_choice *x = &r->found.best[i];
        const lt_plan_memory *m = &x->memory;
        const double mem[6] = {m->weights, m->gradients, m->optimiser, m->activations + m->logits,
                               m->buffers, m->margin};
        time_parts(&x->time, parts);
        fprintf(to, "  %-3d %-46s %8.3f %6.1f  ", i + 1, lt_plan_layout_text(text, &x->layout),
                x->time.step_s, 100 * x->time.mfu);
        put_bar(to, parts, part_letters, LT_PLAN_PART_COUNT, x->time.step_s);
        fprintf(to, " %6.1f  ", m->total / LT_PLAN_GIB);
        put_bar(to, mem, "WGOABm", 6, all);
        fputc('\n', to);
    }
    fprintf(to,
            "\n  step    G products A attention E elementwise L launch  t tensor c context e "
            "expert p pipeline d data parallel\n"
            "          b bubble o optimiser i data j jitter     memory  W weights G gradients O "
            "optimiser A activations B buffers m margin\n");
}

void lt_plan_report_text(const lt_plan_report *r, FILE *to, int n_layouts) {
    const lt_plan_choice *b = &r->found.best[0];
    const double compute = b->time.gemm + b->time.attention + b->time.elementwise;
    head(r, to);
    layouts(r, to, n_layouts);
    fprintf(to, "\n  communication / computation %.2f, of it exposed %.0f %%\n",
            b->time.comm_total_s / compute,
            b->time.comm_total_s > 0 ? 100 *
                                           (b->time.tp_comm + b->time.cp_comm + b->time.ep_comm +
                                            b->time.pp_comm + b->time.dp_comm) /
                                           b->time.comm_total_s
                                     : 0.0);
    fprintf(to, "  %zu layouts tried in %.2f s, %zu fit", r->found.n_tried, r->found.seconds,
            r->found.n_fit);
    {
        static const char *const why[] = {
#define PRUNE_TEXT(code, text) text,
            LT_PLAN_PRUNE_MAP(PRUNE_TEXT)};
        for (int i = 0; i < LT_PLAN_PRUNE_COUNT; i++) {
            if (r->found.pruned[i] > 0) {
                fprintf(to, ", %zu %s", r->found.pruned[i], why[i]);
            }
        }
    }
    fputs("\n", to);
    if (r->n_what_ifs > 0) {
        fputs("\n  what would make it faster\n", to);
        for (int i = 0; i < r->n_what_ifs; i++) {
            const double gain = 100 * (b->time.step_s / r->what_if[i].step_s - 1);
            fprintf(to, "    %-36s %+6.1f %%%s\n", r->what_if[i].change, gain,
                    gain >= 20 ? "  <- 20 %" : "");
        }
    }
    for (int i = 0; i < r->n_warnings; i++) {
        fprintf(to, "%s  ! %s\n", i == 0 ? "\n" : "", r->warning[i]);
    }
}
