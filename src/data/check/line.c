/* line.c: see line.h. Two answers are equal when the checker that has the first as its true answer
 * accepts the second. An answer that cannot be a true answer of the line's kind is compared as
 * text. */
#include "data/check/line.h"

#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "data/check/checker.h"

/* The text of answer i, or NULL if it has another type. */
static const json_t *text_of(const json_t *line, size_t i) {
    const json_t *many = json_object_get(line, "completions"), *messages, *last;
    const json_t *one = json_object_get(line, "completion"), *content;
    if (many != NULL) {
        one = json_array_get(many, i);
    } else if (one == NULL) {
        messages = json_object_get(line, "messages");
        last = json_array_get(messages, json_array_size(messages) - 1);
        content = json_object_get(last, "role");
        one = json_is_string(content) && strcmp(json_string_value(content), "assistant") == 0
                  ? json_object_get(last, "content")
                  : NULL;
    }
    return json_is_string(one) ? one : NULL;
}

static lt_err count_answers(int *n, const json_t *line) {
    const json_t *many = json_object_get(line, "completions");
    const size_t size = many != NULL ? json_array_size(many) : 1;
    if (many != NULL && size == 0) {
        LT_FAIL(LT_ERR_FORMAT, "\"completions\" is not a list of texts, or it is empty");
    }
    if (size > LT_SCORE_ANSWERS) {
        LT_FAIL(LT_ERR_LIMIT, "%zu completions; at most %d", size, LT_SCORE_ANSWERS);
    }
    for (size_t i = 0; i < size; i++) {
        if (text_of(line, i) == NULL && many != NULL) {
            LT_FAIL(LT_ERR_FORMAT, "completions[%zu] is not a text", i);
        }
        if (text_of(line, i) == NULL) {
            LT_FAIL(LT_ERR_NOT_FOUND, "no \"completions\", no \"completion\", and no \"messages\" "
                                      "that end with the assistant's");
        }
    }
    *n = (int)size;
    return LT_OK;
}

/* Find the class of an answer, a new one if it equals no earlier answer. */
static lt_err classify(lt_check_verdict *v, lt_checker **classes, lt_check_kind kind,
                       const char *answer, size_t n, unsigned allowed, bool right) {
    bool same = false;
    for (int c = 0; c < v->n_classes; c++) {
        LT_TRY(lt_checker_judge(classes[c], answer, n, allowed, &same));
        if (same && v->class_right[c] == right) {
            v->counts[c]++;
            return LT_OK;
        }
    }
    if (kind == LT_CHECK_REGEX ||
        lt_checker_open(&classes[v->n_classes], kind, answer, n) != LT_OK) {
        if (n >= LT_CHECK_GOLD_BYTES) {
            return LT_OK; /* It is too long to vote. */
        }
        LT_TRY(lt_checker_open(&classes[v->n_classes], LT_CHECK_TEXT, answer, n));
    }
    v->counts[v->n_classes] = 1;
    v->class_right[v->n_classes++] = right;
    return LT_OK;
}

lt_err lt_check_line(lt_check_verdict *out, const json_t *line, unsigned allowed) {
    lt_checker *gold = NULL, *classes[LT_SCORE_ANSWERS] = {NULL};
    const char *answer = NULL, *checker = NULL;
    lt_check_kind kind;
    lt_err err = LT_OK;

    out->n_classes = out->n_right = out->n_found = 0;
    LT_TRY_DONE(lt_json_str(line, "answer", &answer, false, "the line"));
    LT_TRY_DONE(lt_json_str(line, "checker", &checker, false, "the line"));
    LT_TRY_DONE(lt_check_kind_find(&kind, checker));
    LT_TRY_DONE(lt_checker_open(&gold, kind, answer, strlen(answer)));
    LT_TRY_DONE(count_answers(&out->n, line));
    for (int i = 0; i < out->n; i++) {
        const json_t *text = text_of(line, (size_t)i);
        const char *found = json_string_value(text);
        size_t begin, end;
        out->mark[i] = lt_answer_find(found, json_string_length(text), allowed, &begin, &end);
        out->right[i] = false;
        if (out->mark[i] == LT_ANSWER_NONE) {
            continue;
        }
        found += begin;
        LT_TRY_DONE(lt_checker_judge(gold, found, end - begin, allowed, &out->right[i]));
        LT_TRY_DONE(classify(out, classes, kind, found, end - begin, allowed, out->right[i]));
        out->n_right += out->right[i];
        out->n_found++;
    }
done:
    for (int c = 0; c < out->n_classes; c++) {
        lt_checker_close(classes[c]);
    }
    lt_checker_close(gold);
    return err;
}
