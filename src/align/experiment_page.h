/* experiment_page.h: the page of an experiment, put into the binary by experiment_page.c. */
#ifndef LT_ALIGN_EXPERIMENT_PAGE_H
#define LT_ALIGN_EXPERIMENT_PAGE_H

extern const char lt_experiment_page[]; /* 0-terminated; for lt_report_fill. */

#endif
