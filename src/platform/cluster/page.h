/* page.h: the text of page.html, put into the binary by page.c. */
#ifndef LT_PLATFORM_CLUSTER_PAGE_H
#define LT_PLATFORM_CLUSTER_PAGE_H

extern const char lt_cluster_page[]; /* 0-terminated. */

#endif
