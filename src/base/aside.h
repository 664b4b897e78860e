/* aside.h: files that have a temporary name, such as "x.gguf.tmp", until they are complete. If
 * SIGINT, SIGTERM or SIGHUP ends the process before that, they are removed, because they would
 * leave gigabytes that nothing uses. A signal that the process ignores, or handles itself, is left
 * as it is. */
#ifndef LT_BASE_ASIDE_H
#define LT_BASE_ASIDE_H

/* Call it before the file is made; until lt_aside_end a signal removes the file. -1: a signal will
 * not remove it, because there are too many such files or its path is too long. Any thread may call
 * it. */
int lt_aside_begin(const char *path);
/* The file was renamed or removed. Accepts -1. */
void lt_aside_end(int aside);

#endif
