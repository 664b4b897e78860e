/* schedule_view.c: see schedule_view.h.
 *
 *     LEFT            WIDE                                RIGHT
 *     rank 0 | F0 F1 F2 F3 .  .  .  B0   F4  B1 ... |  idle  held
 *
 * In the SVG, F is blue, B green, W amber; the chunks of a rank differ in shade. */
#include "parallel/schedule_view.h"

#include <math.h>
#include <string.h>

#define LEFT     64.0 /* Pixels. */
#define RIGHT    118.0
#define WIDE     900.0
#define ROW      30.0
#define BAR      26.0
#define TOP      58.0
#define GLYPH    6.3 /* Width of a letter at 11 pixels. */
#define CELL_MAX 24

double lt_schedule_idle(const lt_schedule *t, const lt_schedule_times *times, int rank) {
    (void)t;
    return times->makespan_s > 0 ? 1.0 - times->busy_s[rank] / times->makespan_s : 0.0;
}

double lt_schedule_idle_all(const lt_schedule *t, const lt_schedule_times *times) {
    double sum = 0;
    for (int rank = 0; rank < t->shape.ranks; rank++) {
        sum += lt_schedule_idle(t, times, rank);
    }
    return sum / t->shape.ranks;
}

static double held_shares(const lt_schedule *t, int rank) {
    return (double)t->rows[rank].held / t->shape.chunks;
}

/* "F12"; with several chunks, "F12b". */
static int label_of(const lt_schedule *t, const lt_schedule_op *op, char out[CELL_MAX]) {
    return t->shape.chunks == 1
               ? snprintf(out, CELL_MAX, "%c%d", LT_SCHEDULE_LETTERS[op->kind], (int)op->micro)
               : snprintf(out, CELL_MAX, "%c%d%c", LT_SCHEDULE_LETTERS[op->kind], (int)op->micro,
                          'a' + op->chunk % 26);
}

/* ---- Text ---- */

static int cell_width(const lt_schedule *t) {
    char label[CELL_MAX];
    const lt_schedule_op op = {.micro = (int32_t)(t->shape.micros - 1)};
    return label_of(t, &op, label) + 1;
}

static void fill(FILE *out, char c, long n, int width) {
    for (long i = 0; i < n; i++) {
        (void)fprintf(out, "%c%*s", c, width - 1, "");
    }
}

static void text_row(FILE *out, const lt_schedule *t, const lt_schedule_times *times, int rank,
                     double unit_s, int width) {
    const lt_schedule_row *row = &t->rows[rank];
    long at = 0; /* Number of cells written. */
    (void)fprintf(out, "rank %-3d ", rank);
    for (int64_t i = 0; i < row->n_ops; i++) {
        char label[CELL_MAX];
        const long from = lround(times->start_s[row->first + i] / unit_s),
                   to = lround(times->end_s[row->first + i] / unit_s);
        const int n = label_of(t, &row->ops[i], label);
        fill(out, '.', from - at, width);
        at = from > at ? from : at;
        if (to > at) {
            (void)fprintf(out, "%s", label);
            for (long k = n; k < (to - at) * width - 1; k++) {
                (void)fputc('=', out);
            }
            (void)fputc(' ', out);
            at = to;
        }
    }
    (void)fputc('\n', out);
}

static void text_summary(FILE *out, const lt_schedule *t, const lt_schedule_times *times) {
    (void)fprintf(out, "\n%-6s %10s %8s %12s %10s %8s\n", "rank", "busy", "idle", "activations",
                  "receives", "buffers");
    for (int rank = 0; rank < t->shape.ranks; rank++) {
        const lt_schedule_row *row = &t->rows[rank];
        (void)fprintf(out, "%-6d %10.4g %7.1f%% %12.4g %10lld %8d\n", rank, times->busy_s[rank],
                      100.0 * lt_schedule_idle(t, times, rank), held_shares(t, rank),
                      (long long)row->n_receives, row->n_buffers);
    }
    (void)fprintf(out, "step %.6g, idle %.1f%% of all ranks' time\n", times->makespan_s,
                  100.0 * lt_schedule_idle_all(t, times));
}

void lt_schedule_text(FILE *out, const lt_schedule *t, const lt_schedule_times *times,
                      double unit_s) {
    const int width = cell_width(t);
    for (int rank = 0; rank < t->shape.ranks; rank++) {
        text_row(out, t, times, rank, unit_s, width);
    }
    text_summary(out, t, times);
}

/* ---- Picture ---- */

static const struct {
    double hue, saturation, light;
} colours[] = {{212, 58, 45}, {145, 42, 40}, {36, 78, 52}};

static void colour(char out[CELL_MAX * 2], const lt_schedule *t, const lt_schedule_op *op) {
    const double step = t->shape.chunks > 1 ? 26.0 / (t->shape.chunks - 1) : 0.0;
    (void)snprintf(out, CELL_MAX * 2, "hsl(%.0f,%.0f%%,%.0f%%)", colours[op->kind].hue,
                   colours[op->kind].saturation, colours[op->kind].light + step * op->chunk);
}

static void bar(FILE *out, const lt_schedule *t, const lt_schedule_op *op, double x, double y,
                double wide) {
    char fill_with[CELL_MAX * 2], label[CELL_MAX], number[CELL_MAX];
    const bool dark = t->shape.chunks > 1 && op->chunk * 2 >= t->shape.chunks;
    const char *text = label;
    colour(fill_with, t, op);
    (void)fprintf(out,
                  "<rect x='%.2f' y='%.1f' width='%.2f' height='%.0f' rx='2' fill='%s' "
                  "stroke='#fff' stroke-width='%.2f'/>\n",
                  x, y, wide, BAR, fill_with, wide > 8.0 ? 0.8 : wide * 0.1);
    /* If there is no room for the letter, the colour shows the kind. */
    if ((double)label_of(t, op, label) * GLYPH > wide) {
        text = number;
        (void)snprintf(number, sizeof number, "%d", (int)op->micro);
    }
    if ((double)strlen(text) * GLYPH <= wide + 1.0) {
        (void)fprintf(out, "<text x='%.2f' y='%.1f' fill='%s' text-anchor='middle'>%s</text>\n",
                      x + wide / 2, y + BAR / 2 + 4.0, dark ? "#1b1b1b" : "#fff", text);
    }
}

/* A round number of units between marks, so that there are about ten. */
static double mark_step(double units) {
    double step = pow(10.0, floor(log10(units / 10.0)));
    while (units / step > 16.0) {
        step *= units / (2.0 * step) <= 16.0 ? 2.0 : 5.0;
    }
    return step < 1.0 ? 1.0 : step;
}

static void axis(FILE *out, double units, double scale, double bottom) {
    const double step = mark_step(units);
    for (double u = 0; u <= units + 1e-9; u += step) {
        const double x = LEFT + u * scale;
        (void)fprintf(out,
                      "<line x1='%.2f' y1='%.0f' x2='%.2f' y2='%.1f' stroke='#d5d9de'/>\n"
                      "<text x='%.2f' y='%.1f' fill='#5a6270' text-anchor='middle'>%g</text>\n",
                      x, TOP - 4.0, x, bottom + 2.0, x, bottom + 16.0, u);
    }
}

static void legend(FILE *out, const lt_schedule *t) {
    static const char *const names[] = {"forward", "backward", "weight gradients"};
    double x = LEFT;
    for (int kind = 0; kind < (t->split_backward ? 3 : 2); kind++) {
        for (int chunk = 0; chunk < t->shape.chunks && chunk < 4; chunk++) {
            char with[CELL_MAX * 2];
            const lt_schedule_op op = {.kind = (lt_schedule_op_kind)kind, .chunk = chunk};
            colour(with, t, &op);
            (void)fprintf(out, "<rect x='%.1f' y='34' width='12' height='12' rx='2' fill='%s'/>\n",
                          x, with);
            x += 15.0;
        }
        (void)fprintf(out, "<text x='%.1f' y='44' fill='#2b3240'>%s</text>\n", x + 2.0,
                      names[kind]);
        x += 24.0 + GLYPH * (double)strlen(names[kind]);
    }
    if (t->shape.chunks > 1) {
        (void)fprintf(out, "<text x='%.1f' y='44' fill='#5a6270'>one shade a chunk</text>\n", x);
    }
}

static void picture_row(FILE *out, const lt_schedule *t, const lt_schedule_times *times, int rank,
                        double scale) {
    const lt_schedule_row *row = &t->rows[rank];
    const double y = TOP + ROW * rank;
    (void)fprintf(out,
                  "<text x='%.0f' y='%.1f' fill='#2b3240' text-anchor='end'>rank %d</text>\n"
                  "<rect x='%.0f' y='%.1f' width='%.1f' height='%.0f' fill='#f1f3f5'/>\n",
                  LEFT - 8.0, y + BAR / 2 + 4.0, rank, LEFT, y, WIDE, BAR);
    for (int64_t i = 0; i < row->n_ops; i++) {
        const double start = times->start_s[row->first + i], end = times->end_s[row->first + i];
        bar(out, t, &row->ops[i], LEFT + start * scale, y, (end - start) * scale);
    }
    (void)fprintf(out,
                  "<text x='%.0f' y='%.1f' fill='#2b3240' text-anchor='end'>%.1f %%</text>\n"
                  "<text x='%.0f' y='%.1f' fill='#2b3240' text-anchor='end'>%.4g</text>\n",
                  LEFT + WIDE + 56.0, y + BAR / 2 + 4.0, 100.0 * lt_schedule_idle(t, times, rank),
                  LEFT + WIDE + RIGHT - 8.0, y + BAR / 2 + 4.0, held_shares(t, rank));
}

void lt_schedule_svg(FILE *out, const lt_schedule *t, const lt_schedule_times *times,
                     double unit_s) {
    const lt_schedule_shape *s = &t->shape;
    const double bottom = TOP + ROW * s->ranks, width = LEFT + WIDE + RIGHT,
                 scale = times->makespan_s > 0 ? WIDE / times->makespan_s : 1.0;
    (void)fprintf(out,
                  "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %.0f %.0f' "
                  "font-family='system-ui, sans-serif' font-size='11'>\n"
                  "<title>%s, %d ranks, %lld micro-batches</title>\n"
                  "<rect width='100%%' height='100%%' fill='#fff'/>\n"
                  "<text x='%.0f' y='20' font-size='14' font-weight='600' fill='#1b1b1b'>%s: %d "
                  "ranks, %lld micro-batches",
                  width, bottom + 28.0, lt_schedule_name(s->kind), s->ranks, (long long)s->micros,
                  LEFT, lt_schedule_name(s->kind), s->ranks, (long long)s->micros);
    if (s->chunks > 1) {
        (void)fprintf(out, ", %d chunks a rank", s->chunks);
    }
    (void)fprintf(out,
                  "; idle %.1f %%</text>\n"
                  "<text x='%.0f' y='44' fill='#5a6270' text-anchor='end'>idle</text>\n"
                  "<text x='%.0f' y='44' fill='#5a6270' text-anchor='end'>held</text>\n",
                  100.0 * lt_schedule_idle_all(t, times), LEFT + WIDE + 56.0,
                  LEFT + WIDE + RIGHT - 8.0);
    legend(out, t);
    axis(out, times->makespan_s / unit_s, scale * unit_s, bottom);
    for (int rank = 0; rank < s->ranks; rank++) {
        picture_row(out, t, times, rank, scale);
    }
    (void)fprintf(out, "</svg>\n");
}
