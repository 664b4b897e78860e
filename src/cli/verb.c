/* verb.c: how every verb handles its arguments and its failure. */
#include "cli/verb.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"

static volatile sig_atomic_t stop_signal;

static void on_signal(int number) {
    stop_signal = number;
}

const volatile sig_atomic_t *lt_verb_stop_signal(void) {
    (void)signal(SIGTERM, on_signal);
    (void)signal(SIGINT, on_signal);
    (void)signal(SIGPIPE, SIG_IGN);
    return &stop_signal;
}

int lt_verb_fail(lt_err err) {
    char trace[LT_ERROR_TRACE_BYTES], text[LT_ERROR_MESSAGE_BYTES];
    if (lt_log_is_json()) {
        lt_log_error("%s", lt_error_message());
    } else {
        (void)snprintf(text, sizeof text, "%s", lt_error_message());
        lt_log_tame(text, true);
        fprintf(stderr, "lateen: %s\n", text);
    }
    if (lt_log_shows(LT_LOG_DEBUG)) {
        fputs(lt_error_trace_text(trace), stderr);
    }
    return err == LT_ERR_ARG           ? LT_EXIT_USAGE
           : err == LT_ERR_INTERRUPTED ? LT_EXIT_INTERRUPTED
                                       : LT_EXIT_FAILED;
}

bool lt_verb_parse(const lt_option_table *t, void *obj, int argc, char **argv, const char *usage,
                   const char *prose, const char **positional, int max_positional,
                   int *n_positional, int *status) {
    bool help = false;
    lt_err err;

    lt_options_default(t, obj);
    err = lt_options_parse(t, obj, argc, argv, positional, max_positional, n_positional, &help);
    if (err != LT_OK) {
        *status = lt_verb_fail(err);
        fprintf(stderr, "usage: lateen %s\n", usage);
        return false;
    }
    if (help) {
        printf("usage: lateen %s\n\n%s\n%s", usage, prose, t->n_rows > 0 ? "\noptions:\n" : "");
        lt_options_help(t, stdout);
        *status = LT_EXIT_DONE;
        return false;
    }
    return true;
}

/* The default in the form of lt_option_text, where "4GiB" is a number of bytes. */
static void default_text(const lt_option *row, char *out, size_t out_bytes) {
    union {
        int64_t whole;
        char text[LT_OPTION_STR_BYTES];
    } value;
    lt_option one = *row;
    one.offset = 0;
    lt_options_default(&(lt_option_table){.title = row->name, .rows = &one, .n_rows = 1}, &value);
    lt_option_text(&one, &value, out, out_bytes);
}

lt_err lt_verb_idle(const lt_option_table *t, const void *obj, const lt_verb_use *uses, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const lt_option *row = lt_option_find(t, uses[i].name);
        char value[LT_OPTION_STR_BYTES], usual[LT_OPTION_STR_BYTES];
        LT_ASSERT(row != NULL);
        lt_option_text(row, obj, value, sizeof value);
        default_text(row, usual, sizeof usual);
        if (!uses[i].used && strcmp(value, usual) != 0) {
            LT_FAIL(LT_ERR_ARG, "--%s %s has no effect without %s", row->name, value,
                    uses[i].needs);
        }
    }
    return LT_OK;
}
