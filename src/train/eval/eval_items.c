/* eval_items.c: see eval_items.h. A task is a row of a table: how its lines are read, and the words
 * around them. */
#include "train/eval/eval_items.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "data/text_reader.h"

#ifndef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
#define TEXT_BYTES ((size_t)1 << 16) /* The longest context of any task is a few thousand bytes. */
#else
#define TEXT_BYTES ((size_t)1 << 10)
#endif

typedef lt_err (*line_reader)(lt_eval_item *item, const json_t *line, const char *suffix,
                              const char *what);

lt_err lt_eval_items_add(lt_eval_items *items, lt_eval_item **added) {
    if (items->n == items->room) {
        const int64_t room = items->room == 0 ? 256 : 2 * items->room;
        lt_eval_item *grown = realloc(items->items, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "%lld questions", (long long)room);
        }
        items->items = grown;
        items->room = room;
    }
    *added = &items->items[items->n++];
    **added = (lt_eval_item){0};
    return LT_OK;
}

lt_err lt_eval_item_pair(lt_eval_item *item, const char *context, const char *continuation) {
    if (item->n_pairs == LT_EVAL_MAX_CHOICES) {
        LT_FAIL(LT_ERR_LIMIT, "more than %d choices", LT_EVAL_MAX_CHOICES);
    }
    item->contexts[item->n_pairs] = strdup(context);
    item->continuations[item->n_pairs] = strdup(continuation);
    item->n_pairs++;
    if (item->contexts[item->n_pairs - 1] == NULL ||
        item->continuations[item->n_pairs - 1] == NULL) {
        LT_FAIL(LT_ERR_OOM, "question");
    }
    return LT_OK;
}

void lt_eval_items_free(lt_eval_items *items) {
    for (int64_t i = 0; i < items->n; i++) {
        for (int p = 0; p < items->items[i].n_pairs; p++) {
            free(items->items[i].contexts[p]);
            free(items->items[i].continuations[p]);
        }
    }
    free(items->items);
    *items = (lt_eval_items){0};
}

/* " " + text, with the target delimiter of lm-evaluation-harness. */
static lt_err pair_with_space(lt_eval_item *item, const char *context, const char *text,
                              const char *what) {
    char continuation[TEXT_BYTES];
    if (snprintf(continuation, sizeof continuation, " %s", text) >= (int)sizeof continuation) {
        LT_FAIL(LT_ERR_LIMIT, "%s: a text of more than %zu bytes", what, TEXT_BYTES);
    }
    return lt_eval_item_pair(item, context, continuation);
}

static lt_err read_gold(lt_eval_item *item, const json_t *line, const char *what) {
    int64_t gold = -1;
    LT_TRY(lt_json_i64(line, "gold", &gold, false, what));
    if (gold < 0 || gold >= item->n_pairs) {
        LT_FAIL(LT_ERR_FORMAT, "%s: gold is %lld of %d choices", what, (long long)gold,
                item->n_pairs);
    }
    item->gold = (int)gold;
    return LT_OK;
}

static lt_err read_choices(lt_eval_item *item, const json_t *line, const char *suffix,
                           const char *what) {
    const json_t *choices = json_object_get(line, "choices");
    const char *query = NULL;
    char context[TEXT_BYTES];
    size_t n;

    LT_TRY(lt_json_str(line, "query", &query, false, what));
    for (n = strlen(query); n > 0 && strchr(" \n\t\r", query[n - 1]) != NULL; n--) {}
    if (snprintf(context, sizeof context, "%.*s%s", (int)n, query, suffix) >= (int)sizeof context) {
        LT_FAIL(LT_ERR_LIMIT, "%s: a query of %zu bytes", what, n);
    }
    for (size_t i = 0; i < json_array_size(choices); i++) {
        const char *choice = json_string_value(json_array_get(choices, i));
        if (choice == NULL) {
            LT_FAIL(LT_ERR_FORMAT, "%s: choice %zu is not a text", what, i);
        }
        LT_TRY(pair_with_space(item, context, choice, what));
    }
    return read_gold(item, line, what);
}

static lt_err read_contexts(lt_eval_item *item, const json_t *line, const char *suffix,
                            const char *what) {
    const json_t *contexts = json_object_get(line, "context_options");
    const char *continuation = NULL;
    (void)suffix;
    LT_TRY(lt_json_str(line, "continuation", &continuation, false, what));
    for (size_t i = 0; i < json_array_size(contexts); i++) {
        const char *context = json_string_value(json_array_get(contexts, i));
        if (context == NULL) {
            LT_FAIL(LT_ERR_FORMAT, "%s: context %zu is not a text", what, i);
        }
        LT_TRY(pair_with_space(item, context, continuation, what));
    }
    return read_gold(item, line, what);
}

static lt_err read_last_word(lt_eval_item *item, const json_t *line, const char *suffix,
                             const char *what) {
    const char *context = NULL, *continuation = NULL;
    (void)suffix;
    LT_TRY(lt_json_str(line, "context", &context, false, what));
    LT_TRY(lt_json_str(line, "continuation", &continuation, false, what));
    return pair_with_space(item, context, continuation + strspn(continuation, " "), what);
}

static const struct {
    const char *name;
    lt_eval_metric metric;
    line_reader read;
    const char *suffix;
} tasks[] = {
    {"arc_easy", LT_EVAL_CHOICE, read_choices, "\nAnswer:"},
    {"arc_challenge", LT_EVAL_CHOICE, read_choices, "\nAnswer:"},
    {"piqa", LT_EVAL_CHOICE, read_choices, "\nAnswer:"},
    {"openbookqa", LT_EVAL_CHOICE, read_choices, ""},
    {"winogrande", LT_EVAL_CHOICE_RAW, read_contexts, ""},
    {"lambada", LT_EVAL_LAST_WORD, read_last_word, ""},
};

static lt_err read_lines(lt_eval_items *out, size_t task, const char *data, int64_t limit) {
    static const lt_text_options options = {
        .format = LT_TEXT_PLAIN, .split_on = "line", .utf8 = LT_UTF8_FAIL};
    lt_err err = LT_OK;
    lt_text_reader *reader = NULL;
    lt_text_record record;
    json_t *line = NULL;
    bool more = true;

    LT_TRY(lt_text_reader_open(&reader, data, &options));
    while (limit == 0 || out->n < limit) {
        char what[512];
        lt_eval_item *item;
        LT_TRY_DONE(lt_text_reader_next(reader, &record, &more));
        if (!more) {
            break;
        }
        if (record.bytes == 0) {
            continue;
        }
        snprintf(what, sizeof what, "%s:%llu", data, (unsigned long long)record.line);
        LT_TRY_DONE(lt_json_parse(&line, record.data, record.bytes, what));
        LT_TRY_DONE(lt_eval_items_add(out, &item));
        LT_TRY_DONE(tasks[task].read(item, line, tasks[task].suffix, what));
        json_decref(line);
        line = NULL;
    }
done:
    json_decref(line);
    lt_text_reader_close(reader);
    return err;
}

lt_err lt_eval_items_read(lt_eval_items *out, lt_eval_metric *metric, const char *task,
                          const char *data, int64_t limit, int64_t shots) {
    if (strcmp(task, "mmlu") == 0) {
        *metric = LT_EVAL_CHOICE_RAW;
        return lt_eval_mmlu_read(out, data, limit, shots);
    }
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++) {
        if (strcmp(tasks[i].name, task) == 0) {
            *metric = tasks[i].metric;
            return read_lines(out, i, data, limit);
        }
    }
    LT_FAIL(LT_ERR_ARG, "unknown task '%s'; `lateen help eval` lists them", task);
}
