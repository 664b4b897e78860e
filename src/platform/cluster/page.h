/* page.h: the text of page.html, which page.c includes in the binary. */
#ifndef LT_PLATFORM_CLUSTER_PAGE_H
#define LT_PLATFORM_CLUSTER_PAGE_H

extern const char lt_cluster_page[]; /* 0-terminated. */

#endif
