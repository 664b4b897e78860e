/* verb.h: one verb of the command line: `lateen <name> ...`. Each verb is a file verb_<name>.c with
 * one public function; the table in main.c lists them. A verb returns its exit status: 0 done, 1
 * failed, 2 usage, 75 (EX_TEMPFAIL of sysexits.h) stopped with everything saved, so that the same
 * command continues, 76 (EX_PROTOCOL) another rank of the run failed. The status tells a script
 * whether a run has finished or must be queued again. */
#ifndef LT_CLI_VERB_H
#define LT_CLI_VERB_H

#include <signal.h>
#include <stdbool.h>

#include "base/option.h"

#define LT_EXIT_DONE        0
#define LT_EXIT_FAILED      1
#define LT_EXIT_USAGE       2
#define LT_EXIT_DEVICE      74 /* EX_IOERR: the device failed. */
#define LT_EXIT_INTERRUPTED 75
#define LT_EXIT_LOST        76 /* Another rank of the run failed. */
#define LT_EXIT_REPLACED    77 /* EX_NOPERM: a later attempt has taken the run folder. */
/* Ranks do not hold the same bits; sysexits.h has no status for this. */
#define LT_EXIT_CORRUPT 78

typedef struct {
    const char *name;
    const char *summary;               /* One line of `lateen --help`. */
    int (*run)(int argc, char **argv); /* argv[0] is the verb's name. */
    /* For shell completion; NULL if the verb has only sub-verbs. */
    const lt_option_table *options;
} lt_verb;

/* Print "lateen: <message of the last error>", with --verbose also its trace, and return the exit
 * status for it. */
int lt_verb_fail(lt_err err);

/* For a verb that serves until it is stopped. SIGTERM and SIGINT write their number to the int that
 * the result points to, which is 0 before; SIGPIPE is ignored. */
const volatile sig_atomic_t *lt_verb_stop_signal(void);

/* Read the defaults, then the flags of argv. False (--help, or a bad flag): exit with *status.
 * usage: the synopsis after "usage: lateen "; prose: the text that --help prints between synopsis
 * and options. */
bool lt_verb_parse(const lt_option_table *t, void *obj, int argc, char **argv, const char *usage,
                   const char *prose, const char **positional, int max_positional,
                   int *n_positional, int *status);

/* An option of a verb that has an effect only together with others. */
typedef struct {
    const char *name;
    bool used;         /* The given options make something read it. */
    const char *needs; /* What would make it effective, for the message. */
} lt_verb_use;

/* ARG: an option that would have no effect does not have its default value. The message names the
 * option and what it needs. */
LT_MUST_USE lt_err lt_verb_idle(const lt_option_table *t, const void *obj, const lt_verb_use *uses,
                                size_t n);

#endif
