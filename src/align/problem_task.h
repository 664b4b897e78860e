/* problem_task.h: the task `problems` of `lateen eval`: problems of `lateen data make`, or any
 * lines of messages with `answer` and `checker`. A model answers them, and the answers are judged
 * as rewards judge them (data/check/line.h): by the strict marks, in what follows the last
 * </think>. */
#ifndef LT_ALIGN_PROBLEM_TASK_H
#define LT_ALIGN_PROBLEM_TASK_H

#include "data/check/line.h"
#include "serve/api/json_out.h"

/* FORMAT or NOT_FOUND: the line has no question, or has an answer that its checker cannot read. */
LT_MUST_USE lt_err lt_problem_task_check(const json_t *line);
/* The question as a text: the user's last message and a newline, as in `--form text`. */
void lt_problem_task_prompt(const json_t *line, lt_json_out *out);
/* The text that the model wrote, from a message of the server's reply: the reasoning, which the
 * server returns in a separate member, is put back between <think> and </think>. The caller frees
 * it; NULL: out of memory. */
char *lt_problem_task_text(const json_t *message);
/* Judge n texts. *out: the line with them as "completions" and with "right", as `lateen data check`
 * reads and writes it; the caller frees it. */
LT_MUST_USE lt_err lt_problem_task_judge(json_t **out, lt_check_verdict *verdict,
                                         const json_t *line, char *const *texts, int64_t n);

#endif
