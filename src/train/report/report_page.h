/* report_page.h: the text of report.html, embedded in the binary by report_page.c. */
#ifndef LT_TRAIN_REPORT_PAGE_H
#define LT_TRAIN_REPORT_PAGE_H

extern const char lt_report_page[]; /* 0-terminated. */

#endif
