/* engine.h: copies a list of files over several connections. Each connection has a thread, which
 * takes the next part, reads it from the source and writes it to the target. The parts of a file
 * are taken in order, and added to its checksum in order, while later parts are still being read;
 * several small files are copied at the same time. The first failure stops all threads; parts
 * that have arrived are kept for the next try. */
#ifndef LT_PLATFORM_COPY_ENGINE_H
#define LT_PLATFORM_COPY_ENGINE_H

#include "platform/copy/target.h"

typedef struct {
    const lt_copy_source *source;
    const lt_target *target;
    const lt_items *items; /* Their field `to` is set. */
    const lt_copy_options *options;
    lt_web_shared *shared;
} lt_engine_work;

LT_MUST_USE lt_err lt_engine_run(const lt_engine_work *w, lt_copy_report *report);

#endif
