/* code_tasks.h: tasks of lateen eval whose answers are programs, judged by their tests in the
 * sandbox (unit_tests.h):
 *
 *     humaneval  prompt, test, entry_point: the response continues the prompt
 *     mbpp       text (or prompt), test_list: the response is the code, up to [DONE]
 *
 * Prompts are those of lm-evaluation-harness (humaneval, mbpp). As messages to a model with a chat
 * template they are those of its humaneval_instruct and mbpp_instruct without the beginning of the
 * answer, and the code of a response is its last block. */
#ifndef LT_ALIGN_CODE_TASKS_H
#define LT_ALIGN_CODE_TASKS_H

#include <jansson.h>
#include <stdbool.h>

#include "align/unit_tests.h"
#include "serve/api/json_out.h"

typedef enum { LT_CODE_NONE, LT_CODE_HUMANEVAL, LT_CODE_MBPP } lt_code_kind;

/* FORMAT: a line is not a question of this kind. */
LT_MUST_USE lt_err lt_code_check(lt_code_kind kind, const json_t *line);

void lt_code_prompt(lt_code_kind kind, const json_t *line, bool chat, lt_json_out *out);
/* mbpp: a solved example, before the prompt. */
void lt_code_example(const json_t *line, lt_json_out *out);

/* Verdicts (n) of n responses (n), where response i answers questions[i / samples]. */
LT_MUST_USE lt_err lt_code_judge(lt_code_kind kind, const lt_unit_tests_options *o, bool chat,
                                 json_t *const *questions, int64_t samples, char *const *responses,
                                 int64_t n, lt_unit_verdict *out);

#endif
