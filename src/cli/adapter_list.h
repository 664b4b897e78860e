/* adapter_list.h: the values of --lora, which may be given many times. */
#ifndef LT_CLI_ADAPTER_LIST_H
#define LT_CLI_ADAPTER_LIST_H

#include "lateen/base.h"

typedef struct {
    char **rows; /* "NAME=PATH" or "PATH", a local one. */
    int n;
} lt_adapter_list;

/* Read every --lora of the command line, in order; each may name several, separated by commas. A
 * folder that is elsewhere (hf://, s3://, https://) is fetched. Free with lt_adapter_list_free,
 * also after a failure. */
LT_MUST_USE lt_err lt_adapter_list_read(lt_adapter_list *out, int argc, char **argv);
void lt_adapter_list_free(lt_adapter_list *l);

#endif
