/* The reports of a run: lines of metrics and which of them a resumed run keeps, the report's rows
 * and page, the curve for a terminal, memory. */
#include "unit/model/golden.h"

#include <jansson.h>
#include <string.h>
#include <sys/mman.h>

#include "base/file.h"
#include "train/recipe/memory.h"
#include "train/report/metrics.h"
#include "train/report/report.h"

static char folder[] = "/tmp/lateen-report-XXXXXX", metrics[64];

static int make(void **state) {
    char path[64];
    (void)state;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", folder);
    (void)snprintf(path, sizeof path, "%s/recipe.yaml", folder);
    must(lt_file_write_atomic(path, "a: 1 # </script>\n", 17), path);
    return 0;
}

static int unmake(void **state) {
    (void)state;
    return lt_file_remove_tree(folder) == LT_OK ? 0 : 1;
}

#define STEPS_KEPT                                                                                 \
    "{\"kind\":\"start\",\"step\":0}\n{\"kind\":\"eval\",\"step\":2}\n{\"kind\":\"train\","        \
    "\"step\":4}\n"
#define EVALUATED                                                                                  \
    "{\"kind\":\"eval\",\"step\":4}\n{\"kind\":\"rl_eval\",\"step\":4}\n"                          \
    "{\"kind\":\"sample\",\"step\":4}\n"

static void lines(void **state) {
    static const char expected[] = "{\"kind\":\"train\",\"step\":1,\"loss\":0.333333333}\n"
                                   "{\"kind\":\"eval\",\"step\":2,\"loss\":null}\n";
    static const char evaluated[] = STEPS_KEPT EVALUATED "{\"kind\":\"train\",\"step\":5}\n";
    lt_metrics m;
    char *text = NULL;
    (void)state;
    must(lt_metrics_open(&m, metrics, &(lt_metrics_from){0}, NULL), "open");
    must(lt_metrics_put(&m,
                        json_pack("{s:s, s:i, s:f}", "kind", "train", "step", 1, "loss", 1 / 3.)),
         "put");
    must(lt_metrics_row(&m, "eval", lt_eval_metrics, 2, (const double[]){2, NAN},
                        (const bool[]){true, true}),
         "row");
    must(lt_file_read(&text, NULL, metrics, 1000), "flushed"); /* Before it is closed. */
    assert_string_equal(text, expected);
    free(text);
    assert_int_equal(lt_metrics_put(&m, NULL), LT_ERR_OOM);
    lt_metrics_close(&m);
    lt_metrics_close(&m);

    must(lt_file_write_atomic(
             metrics, "{\"step\":1}\n{\"step\":3}\nnonsense\n{\"step\":2}\n{\"step\":1", 51),
         metrics);
    /* Step 3, nonsense and the incomplete line are removed. */
    must(lt_metrics_open(&m, metrics, &(lt_metrics_from){.step = 2}, NULL), "open");
    lt_metrics_close(&m);
    must(lt_file_read(&text, NULL, metrics, 1000), "kept");
    assert_string_equal(text, "{\"step\":1}\n{\"step\":2}\n");
    free(text);

    /* Before its first step and after its last, a run samples and evaluates again; at other steps
     * it did so before the checkpoint from which it resumes. */
    for (int again = 0; again < 2; again++) {
        must(lt_file_write_atomic(metrics, evaluated, sizeof evaluated - 1), metrics);
        must(lt_metrics_open(&m, metrics, &(lt_metrics_from){.step = 4, .evaluates = again}, NULL),
             "open");
        lt_metrics_close(&m);
        must(lt_file_read(&text, NULL, metrics, 1000), "kept");
        assert_string_equal(text, again ? STEPS_KEPT : STEPS_KEPT EVALUATED);
        free(text);
    }
    assert_int_equal(lt_metrics_open(&m, "/no/such/folder/m", &(lt_metrics_from){0}, NULL),
                     LT_ERR_IO);
}

static void write_run(int n_steps) {
    FILE *f = fopen(metrics, "w");
    assert_non_null(f);
    fputs("{\"kind\":\"start\",\"step\":0}\n", f);
    for (int i = 1; i <= n_steps; i++) {
        fprintf(f, "{\"kind\":\"train\",\"step\":%d}\n", i);
        if (i % 7 == 0) {
            fprintf(f, "{\"kind\":\"eval\",\"step\":%d}\n", i);
        }
    }
    fputs("{\"kind\":\"train\",\"st", f); /* A crash. */
    fclose(f);
}

/* Steps of the training lines in the report, and the number of other lines. */
static int rows_of(int64_t max_rows, int64_t *steps, int *others) {
    char *data = NULL;
    json_t *root, *rows;
    int n = 0;
    must(lt_report_data(&data, folder, max_rows), "data");
    root = json_loads(data, 0, NULL);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "recipe")), "a: 1 # </script>\n");
    rows = json_object_get(root, "rows");
    *others = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        if (strcmp(json_string_value(json_object_get(row, "kind")), "train") == 0) {
            steps[n++] = json_integer_value(json_object_get(row, "step"));
        } else {
            (*others)++;
        }
    }
    json_decref(root);
    free(data);
    return n;
}

static void long_runs_are_thinned(void **state) {
    int64_t steps[64];
    int others, n;
    (void)state;
    write_run(20); /* With the broken line there are 21. */
    n = rows_of(21, steps, &others);
    assert_int_equal(n, 20);
    assert_int_equal(others, 3);
    n = rows_of(20, steps, &others); /* Every second. */
    assert_int_equal(n, 10);
    assert_true(steps[0] == 2 && steps[9] == 20);
    assert_int_equal(others, 3);
    n = rows_of(7, steps, &others); /* Every third. */
    assert_int_equal(n, 6);
    assert_true(steps[0] == 3 && steps[5] == 18);
    n = rows_of(1, steps, &others);
    assert_int_equal(n, 0); /* Only the last, which is broken. */
    assert_int_equal(others, 3);
    remove(metrics);
    char *data;
    assert_int_equal(lt_report_data(&data, folder, 10), LT_ERR_IO);
    assert_non_null(strstr(lt_error_message(), "metrics.jsonl"));
}

static void the_page(void **state) {
    char path[64], *page = NULL;
    size_t bytes;
    (void)state;
    write_run(3);
    must(lt_report_write(folder, NULL), "write");
    (void)snprintf(path, sizeof path, "%s/report.html", folder);
    must(lt_file_read(&page, &bytes, path, 1 << 20), path);
    assert_null(strstr(page, "/*DATA*/"));
    assert_non_null(strstr(page, "\"recipe\":\"a: 1 # \\u003c/script>\\n\""));
    assert_non_null(strstr(page, "{\"kind\":\"train\",\"step\":3}"));
    assert_memory_equal(page, "<!", 2);
    assert_memory_equal(page + bytes - 8, "</html>\n", 8);
    free(page);
}

static void curves(void **state) {
    static const double line[] = {4.0, 3.0, 2.0, 1.0}, flat[] = {2.0, 2.0},
                        close[] = {0.69315, 0.69305}, pairs[] = {4.0, 2.0, 1.0, 1.0, 0.0, 0.0};
    char *plot;
    (void)state;
    must(lt_report_plot(&plot, line, 4, 10, 4), "line");
    assert_string_equal(plot, "   4.000 |•   \n   3.000 | •  \n   2.000 |  • \n   1.000 |   •\n");
    free(plot);
    must(lt_report_plot(&plot, pairs, 6, 3, 4), "pairs"); /* Means 3, 1, 0. */
    assert_string_equal(plot, "   3.000 |•  \n   2.000 |   \n   1.000 | • \n   0.000 |  •\n");
    free(plot);
    must(lt_report_plot(&plot, close, 2, 2, 3), "labels differ");
    assert_string_equal(plot, "   0.69315 |• \n   0.69310 |  \n   0.69305 | •\n");
    free(plot);
    must(lt_report_plot(&plot, flat, 2, 2, 2), "flat");
    assert_string_equal(plot, "   2.000 |••\n   2.000 |  \n");
    free(plot);
    must(lt_report_plot(&plot, flat, 0, 5, 2), "nothing");
    assert_string_equal(plot, "   0.000 |•\n   0.000 | \n");
    free(plot);
}

static size_t status_kib(const char *key) {
    char line[128];
    size_t kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0) {
            kib = (size_t)strtoul(line + strlen(key), NULL, 10);
        }
    }
    fclose(f);
    return kib;
}

/* Within two MiB, because the system's counters lag. */
static void memory(void **state) {
    const size_t more = (size_t)64 << 20, near_bytes = (size_t)2 << 20;
    const size_t before = lt_memory_resident();
    assert_int_equal(lt_memory_grown(before + more), 0); /* A negative growth is not announced. */
    char *p = mmap(NULL, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)state;
    assert_true(p != MAP_FAILED);
    memset(p, 1, more);
    assert_true(lt_memory_resident() > before + more - near_bytes);
    assert_true(lt_memory_resident() < before + more + 4 * near_bytes);
    munmap(p, more);
    assert_true(lt_memory_resident() < before + more / 2);
    assert_true(lt_memory_peak() >= status_kib("VmHWM:") * 1024 - near_bytes &&
                lt_memory_peak() <= status_kib("VmHWM:") * 1024);
    assert_true(lt_memory_peak() > before + more - near_bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines),    cmocka_unit_test(long_runs_are_thinned),
        cmocka_unit_test(the_page), cmocka_unit_test(curves),
        cmocka_unit_test(memory),
    };
    return cmocka_run_group_tests(tests, make, unmake);
}
