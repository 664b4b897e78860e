/* report.c: the page is a fixed text (report_page.h) with the data put in as JSON where it says so. JSON inside a <script> must not contain "</",
 * so every '<' is written as \u003c. */
#include "train/report.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/error.h"
#include "base/file.h"
#include "train/report_page.h"

#define DATA_MARK "/*DATA*/null"
#define MAX_ROWS  2000
#define READ_MAX  ((size_t)1 << 30)

/* Keep every line that is not "train"; of those, one in `stride`, and the last. */
static json_t *thin_rows(const char *text, size_t bytes, int64_t max_rows) {
    json_t *all = json_array(), *out = json_array(), *row;
    int64_t n_train = 0, seen = 0, stride;
    size_t i;

    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        const size_t next = end != NULL ? (size_t)(end - text) + 1 : bytes;
        row = json_loadb(text + at, next - at, JSON_DISABLE_EOF_CHECK, NULL);
        if (row != NULL) {
            const char *kind = json_string_value(json_object_get(row, "kind"));
            n_train += kind != NULL && strcmp(kind, "train") == 0;
            json_array_append_new(all, row);
        }
        at = next;
    }
    stride = (n_train + max_rows - 1) / max_rows;
    json_array_foreach(all, i, row) {
        const char *kind = json_string_value(json_object_get(row, "kind"));
        const bool is_train = kind != NULL && strcmp(kind, "train") == 0;
        if (is_train) {
            seen++;
        }
        if (!is_train || stride <= 1 || seen % stride == 0 || seen == n_train) {
            json_array_append(out, row);
        }
    }
    json_decref(all);
    return out;
}

lt_err lt_report_data(char **out, const char *run_folder, int64_t max_rows) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES], *recipe = NULL, *metrics = NULL;
    size_t metrics_bytes = 0;
    json_t *root = NULL;

    LT_TRY_DONE(lt_path_join(path, run_folder, "recipe.yaml"));
    LT_TRY_DONE(lt_file_read(&recipe, NULL, path, READ_MAX));
    LT_TRY_DONE(lt_path_join(path, run_folder, "metrics.jsonl"));
    LT_TRY_DONE(lt_file_read(&metrics, &metrics_bytes, path, READ_MAX));
    root = json_pack("{s:s, s:s, s:s, s:o}", "title", run_folder, "version", lt_version(), "recipe",
                     recipe, "rows", thin_rows(metrics, metrics_bytes, max_rows));
    *out = root == NULL ? NULL : json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(7));
    if (*out == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "report of %s", run_folder);
    }
done:
    json_decref(root);
    free(recipe);
    free(metrics);
    return err;
}

/* The page with `data` in place of the mark; free() it. */
static char *page_with(const char *data) {
    const char *mark = strstr(lt_report_page, DATA_MARK);
    const size_t head = (size_t)(mark - lt_report_page), n = strlen(data);
    char *out = malloc(strlen(lt_report_page) + 6 * n + 1), *to;
    if (out == NULL) {
        return NULL;
    }
    memcpy(out, lt_report_page, head);
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

lt_err lt_report_write(const char *run_folder) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES], *data = NULL, *page = NULL;

    LT_TRY_DONE(lt_report_data(&data, run_folder, MAX_ROWS));
    page = page_with(data);
    if (page == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "report of %s", run_folder);
    }
    LT_TRY_DONE(lt_path_join(path, run_folder, "report.html"));
    LT_TRY_DONE(lt_file_write_atomic(path, page, strlen(page)));
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

lt_err lt_report_plot(char **out, const double *values, int64_t n, int width, int height) {
    double low = INFINITY, high = -INFINITY, columns[256];
    size_t used = 0, room;
    char *text;

    LT_ASSERT(width > 0 && width <= 256 && height > 1);
    if (n < width) {
        width = n > 0 ? (int)n : 1;
    }
    for (int c = 0; c < width; c++) {
        columns[c] = n > 0 ? column_mean(values, n, c, width) : 0.0;
        low = fmin(low, columns[c]);
        high = fmax(high, columns[c]);
    }
    room = (size_t)height * ((size_t)width * 3 + 16) + 1;
    text = malloc(room);
    if (text == NULL) {
        LT_FAIL(LT_ERR_OOM, "plot of %d x %d", width, height);
    }
    for (int row = 0; row < height; row++) {
        const double at = high - (high - low) * row / (height - 1);
        used += (size_t)snprintf(text + used, room - used, "%8.3f |", at);
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
