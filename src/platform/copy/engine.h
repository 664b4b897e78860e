/* engine.h: the connections of a copy at work on its list of files. Each is a thread that takes the
 * next part: reads a range from the source, writes it to the target. A file's parts are taken in
 * order, and held to the source's checksum in order, while later ones are still on their way; small
 * files go side by side. The first failure ends all; what has arrived stays for the next try. */
#ifndef LT_PLATFORM_COPY_ENGINE_H
#define LT_PLATFORM_COPY_ENGINE_H

#include "platform/copy/target.h"

typedef struct {
    const lt_copy_source *source;
    const lt_target *target;
    const lt_items *items; /* With `to`. */
    const lt_copy_options *options;
    lt_web_shared *shared;
} lt_engine_work;

LT_MUST_USE lt_err lt_engine_run(const lt_engine_work *w, lt_copy_report *report);

#endif
