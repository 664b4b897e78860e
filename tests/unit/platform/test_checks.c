/* The levels of checks: which value is bad at which level, and in which direction; what a file of
 * levels may contain; which check an XID belongs to. Expected results are worked out by hand from
 * the levels. */
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
#include "platform/health/checks.h"

static lt_check_levels l;
static char path[] = "/tmp/lt_levels_XXXXXX";

static lt_err load(const char *text) {
    FILE *to = fopen(path, "we");
    assert_true(to != NULL && fputs(text, to) >= 0 && fclose(to) == 0);
    return lt_check_levels_load(&l, path);
}

enum { OK = LT_HEALTH_OK, W = LT_HEALTH_WARN, D = LT_HEALTH_DRAIN, E = LT_HEALTH_EVICT };

/* Above: at the level and beyond it; below: under it. */
static void values_are_judged(void **state) {
    static const struct {
        lt_health_check_id check;
        double value;
        int result;
        double limit;
    } rows[] = {
        {LT_CHECK_GPU_TEMPERATURE, 86.9, OK, NAN},
        {LT_CHECK_GPU_TEMPERATURE, 87.0, W, 87.0},
        {LT_CHECK_GPU_TEMPERATURE, 92.9, W, 87.0},
        {LT_CHECK_GPU_TEMPERATURE, 93.0, D, 93.0},
        {LT_CHECK_GPU_TEMPERATURE, 1e9, D, 93.0},
        {LT_CHECK_GPU_MISSING, 0.0, OK, NAN},
        {LT_CHECK_GPU_MISSING, 1.0, E, 1.0},
        {LT_CHECK_FS_FREE, 0.1, OK, NAN},
        {LT_CHECK_FS_FREE, 0.0999, W, 0.1},
        {LT_CHECK_FS_FREE, 0.02, W, 0.1},
        {LT_CHECK_FS_FREE, 0.0199, D, 0.02},
        {LT_CHECK_FS_FREE, 0.0, D, 0.02},
        {LT_CHECK_IB_SPEED, 0.0, OK, NAN}, /* Its levels are off. */
        {LT_CHECK_GPU_WIDTH, 1.0, OK, NAN},
        {LT_CHECK_GPU_WIDTH, 0.5, W, 1.0},
        {LT_CHECK_XID_79, 1.0, E, 1.0},
        {LT_CHECK_XID_48, 1.0, D, 1.0},
        {LT_CHECK_XID_63, 1.0, W, 1.0},
        {LT_CHECK_GPU_XID_OTHER, 100.0, OK, NAN},
        {LT_CHECK_LEMON_SCORE, 2.0, W, 1.0},
        {LT_CHECK_LEMON_SCORE, 3.0, D, 3.0},
    };
    (void)state;
    assert_int_equal(lt_check_levels_load(&l, ""), LT_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double limit = 5.0;
        const int got = (int)lt_check_judge(&l, rows[i].check, rows[i].value, &limit);
        if (got != rows[i].result ||
            (isnan(rows[i].limit) ? !isnan(limit) : limit != rows[i].limit)) {
            fail_msg("%s = %g: result %d, limit %g", lt_check_rows[rows[i].check].name,
                     rows[i].value, got, limit);
        }
    }
}

static void files_of_levels(void **state) {
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"gpu.temperature_c: [1, 2]", "'1,2' has 2 levels, not the three of warn, drain and evict"},
        {"gpu.temperature_c: [1, 2, 3, 4]", "has 4 levels"},
        {"gpu.temperature_c: [1]", "has 1 levels"},
        {"gpu.temperature_c: [90, 80, off]", "drain at 80 is milder than the level before it, 90"},
        {"gpu.temperature_c: [90, off, 80]", "evict at 80 is milder than the level before it, 90"},
        {"fs.free_share: [0.1, 0.2, off]", "drain at 0.2 is milder than the level before it, 0.1"},
        {"gpu.temperature_c: [80, 90x, off]", "'90x' is neither a number nor off"},
        {"gpu.temperature_c: [80, inf, off]", "'inf' is neither a number nor off"},
        {"gpu.temperature_c: [80, null, off]", "is a list with a null"},
        {"gpu.temperature_c: {}", "is an empty mapping"},
        {"gpu.temperatures_c: [80, 90, off]", "did you mean 'gpu.temperature_c'?"},
    };
    double limit;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (load(bad[i].text) != LT_ERR_ARG || strstr(lt_error_message(), bad[i].says) == NULL ||
            strstr(lt_error_message(), path) == NULL) {
            fail_msg("%s: %s", bad[i].text, lt_error_message());
        }
    }
    assert_int_equal(load("gpu.temperature_c: [50, 50, off]\nfs.free_share: \"off 0.5 [0.4]\"\n"),
                     LT_OK);
    assert_int_equal(lt_check_judge(&l, LT_CHECK_GPU_TEMPERATURE, 50.0, &limit), D);
    assert_int_equal(lt_check_judge(&l, LT_CHECK_FS_FREE, 0.45, &limit), D);
    assert_int_equal(lt_check_judge(&l, LT_CHECK_FS_FREE, 0.39, &limit), E);
    /* From the table. */
    assert_int_equal(lt_check_judge(&l, LT_CHECK_GPU_CLOCK, 0.4, &limit), W);
}

/* What is printed is a file of levels with the same meaning. */
static void levels_are_printed(void **state) {
    static lt_check_levels before;
    FILE *to = fopen(path, "we");
    (void)state;
    assert_int_equal(lt_check_levels_load(&before, ""), LT_OK);
    assert_non_null(to);
    lt_check_levels_print(&before, to);
    assert_int_equal(fclose(to), 0);
    char *text = NULL;
    size_t bytes;
    assert_int_equal(lt_file_read(&text, &bytes, path, 1 << 16), LT_OK);
    assert_non_null(strstr(text, "# temperature, C: bad at or above a level\n"
                                 "gpu.temperature_c: \"87, 93, off\"\n"));
    assert_non_null(strstr(text, "# share of space that is free: bad below a level\n"));
    free(text);
    assert_int_equal(lt_check_levels_load(&l, path), LT_OK);
    assert_memory_equal(l.text, before.text, sizeof l.text);
}

static void checks_of_xids(void **state) {
    (void)state;
    assert_int_equal(lt_check_of_xid(48), LT_CHECK_XID_48);
    assert_int_equal(lt_check_of_xid(79), LT_CHECK_XID_79);
    assert_int_equal(lt_check_of_xid(140), LT_CHECK_XID_140);
    assert_int_equal(lt_check_of_xid(13), LT_CHECK_GPU_XID_OTHER);
    assert_int_equal(lt_check_of_xid(0), LT_CHECK_GPU_XID_OTHER);
    assert_string_equal(lt_health_result_text(LT_HEALTH_DRAIN), "drain");
    assert_string_equal(lt_check_rows[LT_CHECK_XID_79].name, "gpu.xid_79");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_judged), cmocka_unit_test(files_of_levels),
        cmocka_unit_test(levels_are_printed), cmocka_unit_test(checks_of_xids)};
    const int fd = mkstemp(path);
    const int failed = fd >= 0 ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
    (void)close(fd);
    (void)unlink(path);
    return failed;
}
