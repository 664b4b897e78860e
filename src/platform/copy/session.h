/* session.h: the state of a running copy: the services that it uses, and the data that its
 * connections share. */
#ifndef LT_PLATFORM_COPY_SESSION_H
#define LT_PLATFORM_COPY_SESSION_H

#include "platform/copy/engine.h"

typedef struct {
    lt_copy_source source;
    lt_target target;
    lt_s3 *s3;
    lt_hub *hub;
    lt_web_shared shared;
    lt_web *http;
} lt_copying;

/* Open the services that source.at and target.at need, which are set. Close it in any case. */
LT_MUST_USE lt_err lt_copying_open(lt_copying *c, const lt_copy_options *o);
void lt_copying_close(lt_copying *c);

LT_MUST_USE lt_err lt_copy_check_options(const lt_copy_options *o);
/* Keep only the items that match the patterns of the options. */
void lt_copy_choose(lt_items *items, const lt_copy_options *o);

#endif
