/* problem_task.c: see problem_task.h. */
#include "align/problem_task.h"

#include <stdlib.h>
#include <string.h>

#include "align/problems.h"
#include "base/error.h"
#include "base/json.h"

static const char *content_of(const json_t *message) {
    return json_string_value(json_object_get(message, "content"));
}

lt_err lt_problem_task_check(const json_t *line) {
    char *nothing = "";
    lt_check_verdict verdict;
    json_t *messages = lt_problem_messages(line), *judged = NULL;
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    lt_err err = LT_OK;
    if (content_of(last) == NULL) {
        err = lt_error_set(LT_ERR_FORMAT, "\"messages\" has no text of a user to answer");
    }
    err = err == LT_OK ? lt_problem_task_judge(&judged, &verdict, line, &nothing, 1) : err;
    json_decref(judged);
    json_decref(messages);
    return err;
}

void lt_problem_task_prompt(const json_t *line, lt_json_out *out) {
    json_t *messages = lt_problem_messages(line);
    const char *text = content_of(json_array_get(messages, json_array_size(messages) - 1));
    lt_out_raw(out, text, strlen(text));
    lt_out_raw(out, "\n", 1);
    json_decref(messages);
}

char *lt_problem_task_text(const json_t *message) {
    const char *thought = json_string_value(json_object_get(message, "reasoning_content"));
    const char *text = content_of(message);
    char *all = NULL;
    text = text != NULL ? text : "";
    if (thought == NULL) {
        return strdup(text);
    }
    if (asprintf(&all, "<think>%s</think>%s", thought, text) < 0) {
        return NULL;
    }
    return all;
}

lt_err lt_problem_task_judge(json_t **out, lt_check_verdict *verdict, const json_t *line,
                             char *const *texts, int64_t n) {
    json_t *judged = json_copy((json_t *)line), *completions = json_array(), *right = json_array();
    lt_err err = LT_OK;
    for (int64_t i = 0; i < n; i++) {
        json_array_append_new(completions, json_string(texts[i]));
    }
    (void)json_object_del(judged, "completion");
    if (json_object_set(judged, "completions", completions) != 0 ||
        json_array_size(completions) != (size_t)n) {
        LT_FAIL_DONE(LT_ERR_OOM, "%lld responses to a problem", (long long)n);
    }
    LT_TRY_DONE(lt_check_line(verdict, judged, LT_ANSWER_STRICT));
    for (int i = 0; i < verdict->n; i++) {
        json_array_append_new(right, json_boolean(verdict->right[i]));
    }
    if (json_object_set(judged, "right", right) != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "verdicts of a problem");
    }
    *out = judged;
    judged = NULL;
done:
    json_decref(judged);
    json_decref(completions);
    json_decref(right);
    return err;
}
