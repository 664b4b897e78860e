/* report.h: a finished plan and its three formats: a page of text, JSON, and a self-contained HTML
 * file. */
#ifndef LT_PLAN_REPORT_H
#define LT_PLAN_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "lateen/plan.h"
#include "plan/plan.h"

#define LT_PLAN_WARNINGS 12
#define LT_PLAN_WHAT_IFS 12

typedef struct {
    char change[LT_PLAN_NAME_BYTES];
    double step_s; /* Of the best layout of a new search. */
} lt_plan_what_if;

typedef struct {
    lt_plan_model model;
    lt_plan_cluster cluster;
    lt_plan_query query;
    lt_plan_found found;
    lt_plan_goodput goodput;
    double tokens; /* Tokens of the whole run. */
    double steps, days_pure, days, gpu_hours, money, mwh, swing_mw;
    int n_warnings;
    char warning[LT_PLAN_WARNINGS][LT_PLAN_TEXT_BYTES];
    int n_what_ifs;
    lt_plan_what_if what_if[LT_PLAN_WHAT_IFS];
} lt_plan_report;

/* Search, then compute everything that follows from the best layout. interval_s 0: choose it. Free
 * with lt_plan_report_close. */
LT_MUST_USE lt_err lt_plan_report_make(lt_plan_report *r, double interval_s, bool async_save,
                                       bool sensitivity);
void lt_plan_report_close(lt_plan_report *r);

/* "1.2 M", "14.9 k", "350": three digits and a unit. */
const char *lt_plan_big(double x, char out[32]);
void lt_plan_report_text(const lt_plan_report *r, FILE *to, int n_layouts);
/* A new reference, or NULL if memory is exhausted. */
json_t *lt_plan_report_json(const lt_plan_report *r, int n_layouts);
LT_MUST_USE lt_err lt_plan_report_html(const lt_plan_report *r, const char *path);

#endif
