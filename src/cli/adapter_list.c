/* adapter_list.c: see adapter_list.h. The table of options also has the flag, for the help text;
 * but it keeps only the last value of a flag that is given twice. */
#include "cli/adapter_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/platform/copying.h"
#include "model/lora/lora_pool.h"

#define FLAG "--lora"

/* The next value; *at starts at 1. NULL: there is none. */
static const char *next_value(int argc, char **argv, int *at) {
    const size_t n = sizeof FLAG - 1;
    while (*at < argc && strcmp(argv[*at], "--") != 0) {
        const char *word = argv[(*at)++];
        if (strncmp(word, FLAG, n) == 0 && word[n] == '=') {
            return word + n + 1;
        }
        if (strcmp(word, FLAG) == 0 && *at < argc) {
            return argv[(*at)++];
        }
    }
    return NULL;
}

/* Add one of n bytes. */
static lt_err add(lt_adapter_list *l, const char *text, size_t n) {
    char row[2 * LT_PATH_BYTES], folder[LT_PATH_BYTES], *equals;
    int64_t rank;
    char **rows = realloc(l->rows, ((size_t)l->n + 1) * sizeof *rows);
    l->rows = rows != NULL ? rows : l->rows;
    if (n == 0 || n >= LT_PATH_BYTES) {
        LT_FAIL(LT_ERR_ARG, "--lora: NAME=PATH of 1 to %d bytes is expected", LT_PATH_BYTES - 1);
    }
    (void)snprintf(row, sizeof row, "%.*s", (int)n, text);
    equals = strchr(row, '=');
    LT_TRY(lt_cli_bring(folder, equals != NULL ? equals + 1 : row));
    /* Check it now, because a server has already printed its address when it loads adapters. */
    if (lt_lora_rank_of(&rank, folder) != LT_OK) {
        return lt_error_prefix(LT_ERR_ARG, "--lora %.*s", (int)n, text);
    }
    (void)snprintf(equals != NULL ? equals + 1 : row, LT_PATH_BYTES, "%s", folder);
    if (rows != NULL) {
        rows[l->n] = strdup(row);
    }
    if (rows == NULL || rows[l->n] == NULL) {
        LT_FAIL(LT_ERR_OOM, "--lora");
    }
    l->n++;
    return LT_OK;
}

lt_err lt_adapter_list_read(lt_adapter_list *out, int argc, char **argv) {
    int at = 1;
    *out = (lt_adapter_list){NULL, 0};
    for (const char *p = next_value(argc, argv, &at); p != NULL; p = next_value(argc, argv, &at)) {
        if (*p == '\0') {
            LT_FAIL(LT_ERR_ARG, "--lora is empty: NAME=PATH is expected");
        }
        while (*p != '\0') {
            const size_t n = strcspn(p, ",");
            LT_TRY(add(out, p, n));
            p += n + (p[n] == ',');
        }
    }
    return LT_OK;
}

void lt_adapter_list_free(lt_adapter_list *l) {
    for (int i = 0; i < l->n; i++) {
        free(l->rows[i]);
    }
    free(l->rows);
    *l = (lt_adapter_list){NULL, 0};
}
