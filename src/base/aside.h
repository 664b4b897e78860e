/* aside.h: files that have a name of their own until they are whole, "x.gguf.tmp". When SIGINT,
 * SIGTERM or SIGHUP ends the process meanwhile, they are removed: gigabytes would be left that
 * nothing uses. A signal that the process ignores, or handles itself, is left as it is. */
#ifndef LT_BASE_ASIDE_H
#define LT_BASE_ASIDE_H

/* From now, before the file is made, until lt_aside_end. -1: it is not among those that are
 * removed, since too many are, or its path is too long. From any thread. */
int lt_aside_begin(const char *path);
/* It was renamed or removed. Accepts -1. */
void lt_aside_end(int aside);

#endif
