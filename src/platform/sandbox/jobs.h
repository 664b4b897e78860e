/* jobs.h: jobs and results of the sandbox as JSON, and many jobs at once.
 *
 *     job     {"command": ["python3", "a.py"], "stdin": "5\n", "files": {"a.py": "print(1)"},
 *              "wall_s": 2, "cpu_s": 2, "memory_bytes": ..., "disk_bytes": ...,
 *              "output_bytes": ..., "processes": 8, "open_files": 64}
 *     result  {"status": 0, "signal": null, "limit": null, "wall_s": 0.02, "cpu_s": 0.01,
 *              "peak_bytes": ..., "stdout": "1\n", "stderr": "", "stdout_bytes": 2,
 *              "stderr_bytes": 0}
 *     or      {"error": "sandbox: start python4: No such file or directory"}
 *
 * Only the command of a job is required; limits that it does not name are those of the base job.
 * Bytes of the output that are not UTF-8 become U+FFFD. */
#ifndef LT_PLATFORM_SANDBOX_JOBS_H
#define LT_PLATFORM_SANDBOX_JOBS_H

#include <jansson.h>

#include "platform/sandbox/sandbox.h"

/* A result as JSON, to be released with json_decref; NULL: out of memory. */
json_t *lt_sandbox_result_json(const lt_sandbox_result *r);

/* Run a list of jobs here, each forked from this process, `parallel` at a time. *results: a list in
 * their order. base: kind, limits and binds. FORMAT: one of them is not a job; the message has its
 * number. UNSUPPORTED: the kind is refused. */
LT_MUST_USE lt_err lt_sandbox_jobs_run(json_t **results, const json_t *jobs,
                                       const lt_sandbox_job *base, int parallel);

/* The same in a separate process, which is small: `program` sandbox --jobs FILE. For lateen itself
 * the program is "/proc/self/exe". */
LT_MUST_USE lt_err lt_sandbox_jobs_ask(json_t **results, const json_t *jobs, const char *program,
                                       lt_sandbox_kind kind, int parallel);

#endif
