/* experiment_page.h: the HTML page of an experiment, which experiment_page.c includes in the
 * binary. */
#ifndef LT_ALIGN_EXPERIMENT_PAGE_H
#define LT_ALIGN_EXPERIMENT_PAGE_H

extern const char lt_experiment_page[]; /* 0-terminated; for lt_report_fill. */

#endif
