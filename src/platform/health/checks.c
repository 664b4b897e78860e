/* checks.c: see checks.h. */
#include "platform/health/checks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define XID_ROW(number, levels, help) {"gpu.xid_" #number, "", help, LT_SIDE_ABOVE, LT_KIND_VALUE},
#define CHECK_ROW(id, name, unit, side, kind, levels, help)                                        \
    {name, unit, help, LT_SIDE_##side, LT_KIND_##kind},
const lt_check_row lt_check_rows[LT_CHECK_COUNT] = {LT_HEALTH_XID_MAP(XID_ROW)
                                                        LT_HEALTH_CHECK_MAP(CHECK_ROW)};
#undef XID_ROW
#undef CHECK_ROW

#define LEVELS_OPTION(check, name_, levels, help_)                                                 \
    {.type = LT_OPTION_STR,                                                                        \
     .offset = offsetof(lt_check_levels, text[check]),                                             \
     .name = name_,                                                                                \
     .fallback = levels,                                                                           \
     .max = 1,                                                                                     \
     .unit = "WARN, DRAIN, EVICT",                                                                 \
     .help = help_},
#define XID_OPTION(number, levels, help)                                                           \
    LEVELS_OPTION(LT_CHECK_XID_##number, "gpu.xid_" #number, levels, help)
#define CHECK_OPTION(id, name, unit, side, kind, levels, help)                                     \
    LEVELS_OPTION(LT_CHECK_##id, name, levels, help)
static const lt_option options[] = {LT_HEALTH_XID_MAP(XID_OPTION)
                                        LT_HEALTH_CHECK_MAP(CHECK_OPTION)};
static const lt_option_table table = LT_OPTION_TABLE("levels", options);

static const char *const results[] = {
#define RESULT_TEXT(name, text) text,
    LT_HEALTH_RESULT_MAP(RESULT_TEXT)
#undef RESULT_TEXT
};

const char *lt_health_result_text(lt_health_result r) {
    return results[r];
}

static const char separators[] = " \t,[]";

/* Read one word of a row: a number, or "off". */
static lt_err read_level(double *out, const char *word, const char *name, const char *origin) {
    char *end = NULL;
    *out = NAN;
    if (strcmp(word, "off") == 0) {
        return LT_OK;
    }
    *out = strtod(word, &end);
    if (end == word || *end != '\0' || !isfinite(*out)) {
        LT_FAIL(LT_ERR_ARG, "%s: %s: '%s' is neither a number nor off", origin, name, word);
    }
    return LT_OK;
}

/* A worse result needs a worse value. */
static lt_err check_order(const double *level, const lt_check_row *row, const char *origin) {
    double before = NAN;
    for (int r = LT_HEALTH_WARN; r < LT_HEALTH_RESULT_COUNT; r++) {
        /* NAN compares false. */
        const bool swapped = row->side == LT_SIDE_ABOVE ? level[r] < before : level[r] > before;
        if (swapped) {
            LT_FAIL(LT_ERR_ARG, "%s: %s: %s at %g is milder than the level before it, %g", origin,
                    row->name, results[r], level[r], before);
        }
        before = isnan(level[r]) ? before : level[r];
    }
    return LT_OK;
}

static lt_err read_row(lt_check_levels *l, int check, const char *origin) {
    const lt_check_row *row = &lt_check_rows[check];
    char copy[LT_OPTION_STR_BYTES], *rest = copy, *word;
    int n = 0;

    memcpy(copy, l->text[check], sizeof copy);
    while ((word = strsep(&rest, separators)) != NULL) {
        if (word[0] == '\0') {
            continue;
        }
        if (++n < LT_HEALTH_RESULT_COUNT) {
            LT_TRY(read_level(&l->level[check][n], word, row->name, origin));
        }
    }
    if (n != LT_HEALTH_RESULT_COUNT - 1) {
        LT_FAIL(LT_ERR_ARG, "%s: %s: '%s' has %d levels, not the three of warn, drain and evict",
                origin, row->name, l->text[check], n);
    }
    return check_order(l->level[check], row, origin);
}

lt_err lt_check_levels_load(lt_check_levels *l, const char *path) {
    lt_options_default(&table, l);
    if (path[0] != '\0') {
        LT_TRY(lt_options_load_yaml(&table, l, path));
    }
    for (int check = 0; check < LT_CHECK_COUNT; check++) {
        LT_TRY(read_row(l, check, path[0] != '\0' ? path : "levels"));
    }
    return LT_OK;
}

void lt_check_levels_print(const lt_check_levels *l, FILE *to) {
    for (int check = 0; check < LT_CHECK_COUNT; check++) {
        const lt_check_row *row = &lt_check_rows[check];
        fprintf(to, "# %s%s%s: bad %s a level\n%s: \"%s\"\n", row->help,
                row->unit[0] != '\0' ? ", " : "", row->unit,
                row->side == LT_SIDE_ABOVE ? "at or above" : "below", row->name, l->text[check]);
    }
}

lt_health_result lt_check_judge(const lt_check_levels *l, lt_health_check_id check, double value,
                                double *limit) {
    *limit = NAN;
    for (int r = LT_HEALTH_EVICT; r > LT_HEALTH_OK; r--) {
        const double level = l->level[check][r];
        if (lt_check_rows[check].side == LT_SIDE_ABOVE ? value >= level : value < level) {
            *limit = level;
            return (lt_health_result)r;
        }
    }
    return LT_HEALTH_OK;
}

lt_health_check_id lt_check_of_xid(long number) {
#define XID_NUMBER(n, levels, help) n,
    static const int numbers[] = {LT_HEALTH_XID_MAP(XID_NUMBER)};
#undef XID_NUMBER
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i] == number) {
            return (lt_health_check_id)i;
        }
    }
    return LT_CHECK_GPU_XID_OTHER;
}
