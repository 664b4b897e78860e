/* report.c: the page is a fixed text (report_page.h) into which the data is inserted as JSON at a
 * mark. JSON inside a <script> must not contain "</", so every '<' is written as \u003c. */
#include "train/report/report.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/error.h"
#include "base/file.h"
#include "train/report/metrics.h"
#include "train/report/report_page.h"

#define DATA_MARK "/*DATA*/null"
#define READ_MAX  ((size_t)1 << 24)

/* The kind is the first field of a line (metrics.c keeps the order), so a line can be counted
 * without parsing. */
static bool is_kind(const char *line, const char *kind) {
    static const char head[] = "{\"kind\":\"";
    const size_t n = sizeof head - 1, n_kind = strlen(kind);
    return strncmp(line, head, n) == 0 && strncmp(line + n, kind, n_kind) == 0 &&
           line[n + n_kind] == '"';
}

/* Whether the line has an objective's numbers of a step, which follow the line of the step. */
static bool is_of_step(const char *line) {
    return is_kind(line, "preference") || is_kind(line, "rl") || is_kind(line, "distill");
}

/* Keep every line that is neither of a step nor "ranks": of the former one in `stride`, and the
 * last; of the latter the last. The file is read twice, line by line: so a long run needs no more
 * memory than a short one. */
static lt_err thin_rows(json_t **out, const char *path, int64_t max_rows) {
    lt_err err = LT_OK;
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t room = 0;
    ssize_t bytes;
    int64_t n_train = 0, seen = 0, n_ranks = 0, ranks_seen = 0, stride;
    bool skipped = false; /* The step. */
    json_t *rows = json_array();

    if (f == NULL || rows == NULL) {
        LT_FAIL_DONE(LT_ERR_IO, "%s: %s", path, strerror(errno));
    }
    while (getline(&line, &room, f) > 0) {
        n_train += is_kind(line, "train");
        n_ranks += is_kind(line, "ranks");
    }
    stride = (n_train + max_rows - 1) / max_rows;
    rewind(f);
    while ((bytes = getline(&line, &room, f)) > 0) {
        const bool is_train = is_kind(line, "train"), is_ranks = is_kind(line, "ranks");
        json_t *row;
        seen += is_train;
        ranks_seen += is_ranks;
        skipped = is_train ? stride > 1 && seen % stride != 0 && seen != n_train : skipped;
        if ((skipped && (is_train || is_of_step(line))) || (is_ranks && ranks_seen != n_ranks)) {
            continue;
        }
        row = json_loadb(line, (size_t)bytes, 0, NULL);
        if (row != NULL) { /* A line that a crash truncated is not parsed. */
            json_array_append_new(rows, row);
        }
    }
    *out = rows;
    rows = NULL;
done:
    json_decref(rows);
    free(line);
    if (f != NULL) {
        fclose(f);
    }
    return err;
}

lt_err lt_report_data(char **out, const char *run_folder, int64_t max_rows) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES], *recipe = NULL;
    json_t *root = NULL, *rows = NULL;

    LT_TRY_DONE(lt_path_join(path, run_folder, "recipe.yaml"));
    LT_TRY_DONE(lt_file_read(&recipe, NULL, path, READ_MAX));
    LT_TRY_DONE(lt_path_join(path, run_folder, "metrics.jsonl"));
    LT_TRY_DONE(thin_rows(&rows, path, max_rows));
    root = json_pack("{s:s, s:s, s:s, s:o, s:o}", "title", run_folder, "version", lt_version(),
                     "recipe", recipe, "rows", rows, "metrics", lt_metrics_described());
    *out = root == NULL ? NULL : json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(7));
    if (*out == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "report of %s", run_folder);
    }
done:
    json_decref(root);
    free(recipe);
    return err;
}

char *lt_report_fill(const char *page, const char *data) {
    const char *mark = strstr(page, DATA_MARK);
    const size_t head = (size_t)(mark - page), n = strlen(data);
    size_t n_angles = 0;
    char *out, *to;

    for (size_t i = 0; i < n; i++) {
        n_angles += data[i] == '<';
    }
    out = malloc(strlen(page) + n + 5 * n_angles + 1);
    if (out == NULL) {
        return NULL;
    }
    memcpy(out, page, head);
    to = out + head;
    for (size_t i = 0; i < n; i++) {
        if (data[i] == '<') {
            memcpy(to, "\\u003c", 6);
            to += 6;
        } else {
            *to++ = data[i];
        }
    }
    snprintf(to, strlen(mark) + 1, "%s", mark + strlen(DATA_MARK));
    return out;
}

lt_err lt_report_write(const char *run_folder, const lt_lease *lease) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES], *data = NULL, *page = NULL;

    LT_TRY_DONE(lt_report_data(&data, run_folder, LT_REPORT_ROWS));
    page = lt_report_fill(lt_report_page, data);
    if (page == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "report of %s", run_folder);
    }
    LT_TRY_DONE(lt_path_join(path, run_folder, "report.html"));
    LT_TRY_DONE(lt_lease_write(lease, path, page, strlen(page)));
done:
    free(data);
    free(page);
    return err;
}

/* Mean of the values that fall into column c of `width`. */
static double column_mean(const double *values, int64_t n, int c, int width) {
    const int64_t from = n * c / width,
                  to = n * (c + 1) / width > from ? n * (c + 1) / width : from + 1;
    double sum = 0.0;
    for (int64_t i = from; i < to; i++) {
        sum += values[i];
    }
    return sum / (double)(to - from);
}

/* Decimals of labels, enough that no two are equal: 3 to 9. */
static int plot_decimals(double between) {
    return between > 0.0 ? (int)fmin(fmax(ceil(-log10(between)), 3.0), 9.0) : 3;
}

lt_err lt_report_plot(char **out, const double *values, int64_t n, int width, int height) {
    double low = INFINITY, high = -INFINITY, columns[256];
    size_t used = 0, room;
    char *text;
    int decimals;

    LT_ASSERT(width > 0 && width <= 256 && height > 1);
    if (n < width) {
        width = n > 0 ? (int)n : 1;
    }
    for (int c = 0; c < width; c++) {
        columns[c] = n > 0 ? column_mean(values, n, c, width) : 0.0;
        low = fmin(low, columns[c]);
        high = fmax(high, columns[c]);
    }
    decimals = plot_decimals((high - low) / (height - 1));
    room = (size_t)height * ((size_t)width * 3 + 32) + 1;
    text = malloc(room);
    if (text == NULL) {
        LT_FAIL(LT_ERR_OOM, "plot of %d x %d", width, height);
    }
    for (int row = 0; row < height; row++) {
        const double at = high - (high - low) * row / (height - 1);
        used += (size_t)snprintf(text + used, room - used, "%*.*f |", 5 + decimals, decimals, at);
        for (int c = 0; c < width; c++) {
            const double place = high > low ? (high - columns[c]) / (high - low) * (height - 1)
                                            : 0.0;
            used += (size_t)snprintf(text + used, room - used, "%s",
                                     (int)(place + 0.5) == row ? "•" : " ");
        }
        used += (size_t)snprintf(text + used, room - used, "\n");
    }
    *out = text;
    return LT_OK;
}
