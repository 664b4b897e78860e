/* report.h: report.html, the one page that shows a run: curves, rates, samples, configuration. It
 * opens from the disk and loads nothing else. Served by `lateen train --page PORT`, the same page
 * fetches the newest metrics every few seconds. */
#ifndef LT_TRAIN_REPORT_H
#define LT_TRAIN_REPORT_H

#include "platform/agent/lease.h"

#define LT_REPORT_ROWS 1000 /* Most training lines in the page. */

/* Write RUN/report.html from RUN/recipe.yaml and RUN/metrics.jsonl. title: the run's name. */
LT_MUST_USE lt_err lt_report_write(const char *run_folder, const lt_lease *lease);

/* The page's data as JSON text ({"title", "recipe", "rows": [...]}), with long runs thinned to
 * about max_rows training lines; free() it. */
LT_MUST_USE lt_err lt_report_data(char **out, const char *run_folder, int64_t max_rows);

/* `page` with its mark replaced by `data`, a JSON text; free() it. NULL: out of memory. */
char *lt_report_fill(const char *page, const char *data);

/* A loss curve in characters for a terminal, `width` x `height`, into out (free() it). values: n
 * losses, oldest first. */
LT_MUST_USE lt_err lt_report_plot(char **out, const double *values, int64_t n, int width,
                                  int height);

/* Serve the report of run_folder on 127.0.0.1:port from its own thread. */
typedef struct lt_page lt_page;
LT_MUST_USE lt_err lt_page_open(lt_page **out, const char *run_folder, int port);
void lt_page_close(lt_page *p);

#endif
