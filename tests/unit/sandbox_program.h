/* sandbox_program.h: lets a test program take the place of lateen, which lt_sandbox_jobs_ask
 * starts as
 *
 *     PROGRAM sandbox --jobs FILE --kind KIND --parallel N
 */
#ifndef LT_TESTS_UNIT_SANDBOX_PROGRAM_H
#define LT_TESTS_UNIT_SANDBOX_PROGRAM_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "platform/sandbox/jobs.h"

static inline bool is_sandbox_program(int argc, char **argv) {
    return argc == 8 && strcmp(argv[1], "sandbox") == 0;
}

static inline int be_sandbox_program(char **argv) {
    const lt_sandbox_job base = {.kind = strcmp(argv[5], "rlimits") == 0 ? LT_SANDBOX_RLIMITS
                                                                         : LT_SANDBOX_NAMESPACES,
                                 .limits = LT_SANDBOX_LIMITS};
    json_t *jobs = NULL, *results = NULL;
    lt_err err = lt_json_load(&jobs, argv[3], 1 << 24);
    err = err == LT_OK ? lt_sandbox_jobs_run(&results, jobs, &base, atoi(argv[7])) : err;
    if (err == LT_OK) {
        (void)json_dumpf(results, stdout, 0);
    } else {
        (void)fprintf(stderr, "%s\n", lt_error_message());
    }
    json_decref(jobs);
    json_decref(results);
    return err == LT_OK ? 0 : 1;
}

#endif
