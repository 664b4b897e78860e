/* preference_data.c: see preference_data.h. Lines are read one after another, encoded by all
 * threads, and judged in order, so that messages and rows do not depend on the threads. */
#include "align/preference_data.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/thread.h"
#include "data/chat_shape.h"
#include "data/encode_workers.h"
#include "data/text_reader.h"
#include "data/tokenizer/bpe.h"

/* A line and its result. */
typedef struct {
    char *text;
    size_t bytes;
    const char *file;
    uint64_t number;
    lt_ids ids[2]; /* Ids of chosen and rejected, or of the completion. */
    size_t first[2];
    signed char *steps; /* For the ids of a completion in steps. */
    lt_preference what;
    lt_err err;
    char *why; /* Its message; NULL: there was no memory for it. */
    bool used;
} line;

typedef struct {
    const lt_preferences_options *o;
    line *lines;
    size_t n, room;
    lt_encode_workers workers;
    atomic_size_t next;
    uint64_t told;
} reading;

/* ---- The members of a line ---- */

static lt_err missing(const char *name) {
    LT_FAIL(LT_ERR_NOT_FOUND, "no member '%s'", name);
}

/* A text as a list of messages, a new reference. */
static lt_err messages_of(json_t **out, const json_t *object, const char *name, const char *role) {
    json_t *text = json_object_get(object, name);
    if (text == NULL || json_is_null(text)) {
        return missing(name);
    }
    *out = json_is_string(text)  ? json_pack("[{s:s, s:O}]", "role", role, "content", text)
           : json_is_array(text) ? json_copy(text)
                                 : NULL;
    if (*out == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "'%s' is neither a string nor a list of messages", name);
    }
    return LT_OK;
}

/* Encode the prompt with one completion. */
static lt_err encode_one(reading *r, int worker, const json_t *object, const json_t *prompt,
                         const json_t *completion, const char *name, lt_ids *ids, size_t *first) {
    static const char *const more[] = {"tools", "documents", "chat_template_kwargs"};
    lt_err err = LT_OK;
    size_t end;
    json_t *all = json_copy((json_t *)(uintptr_t)prompt);
    json_t *conversation = json_pack("{s:o}", r->o->rows->messages, all);
    if (json_array_size(completion) == 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "'%s' has no message of its own after the prompt", name);
    }
    if (conversation == NULL || json_array_extend(all, (json_t *)(uintptr_t)completion) != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "messages of a line");
    }
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        json_t *value = json_object_get(object, more[i]);
        if (value != NULL) {
            (void)json_object_set(conversation, more[i], value);
        }
    }
    /* A template may change messages. Both completions share the prompt, so each is rendered from
     * its own copy. */
    json_t *own = json_deep_copy(conversation);
    json_decref(conversation);
    conversation = own;
    if (own == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "messages of a line");
    }
    LT_TRY_DONE(lt_chat_rows_completion(r->o->rows, r->workers.scratch[worker], conversation,
                                        json_array_size(prompt), ids, first, &end));
    if (r->o->given != LT_ALIGN_SCORES) { /* A score judges the whole text. */
        ids->n = end;
    }
done:
    json_decref(conversation);
    return err;
}

/* Split two whole conversations into a prompt, their common beginning, and two completions. */
static lt_err take_prompt(json_t *prompt, json_t *chosen, json_t *rejected) {
    const char *role;
    while (json_array_size(chosen) > 0 && json_array_size(rejected) > 0 &&
           json_equal(json_array_get(chosen, 0), json_array_get(rejected, 0))) {
        (void)json_array_append(prompt, json_array_get(chosen, 0));
        (void)json_array_remove(chosen, 0);
        (void)json_array_remove(rejected, 0);
    }
    role = json_string_value(json_object_get(json_array_get(chosen, 0), "role"));
    if (json_array_size(prompt) == 0 && role != NULL && strcmp(role, "assistant") != 0) {
        LT_FAIL(LT_ERR_FORMAT, "chosen and rejected begin with different messages: they answer "
                               "different prompts");
    }
    return LT_OK;
}

static bool same_tokens(const line *l) {
    return l->ids[0].n == l->ids[1].n &&
           memcmp(l->ids[0].data, l->ids[1].data, l->ids[0].n * sizeof *l->ids[0].data) == 0;
}

static lt_err read_pair(reading *r, int worker, line *l, const json_t *object) {
    const json_t *chosen_text = json_object_get(object, "chosen");
    const json_t *prompt_text = json_object_get(object, "prompt");
    /* A prompt that is a string has no effect beside whole conversations. */
    const bool whole = json_is_array(chosen_text) && !json_is_array(prompt_text);
    lt_err err = LT_OK;
    json_t *prompt = NULL, *chosen = NULL, *rejected = NULL;

    LT_TRY_DONE(messages_of(&chosen, object, "chosen", "assistant"));
    LT_TRY_DONE(messages_of(&rejected, object, "rejected", "assistant"));
    if (whole) {
        prompt = json_array();
        LT_TRY_DONE(take_prompt(prompt, chosen, rejected));
    } else {
        LT_TRY_DONE(messages_of(&prompt, object, "prompt", "user"));
    }
    LT_TRY_DONE(lt_chat_shape_system(object, prompt));
    if (json_equal(chosen, rejected)) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "chosen and rejected are the same text");
    }
    LT_TRY_DONE(encode_one(r, worker, object, prompt, chosen, "chosen", &l->ids[0], &l->first[0]));
    LT_TRY_DONE(
        encode_one(r, worker, object, prompt, rejected, "rejected", &l->ids[1], &l->first[1]));
    if (same_tokens(l)) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "chosen and rejected are the same tokens");
    }
    if (r->o->given == LT_ALIGN_SCORES) {
        LT_TRY_DONE(lt_json_f64(object, "margin", &l->what.margin, true, "the line"));
        if (l->what.margin < 0.0) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "'margin' is %g, but must be at least 0", l->what.margin);
        }
    }
done:
    json_decref(prompt);
    json_decref(chosen);
    json_decref(rejected);
    return err;
}

/* The quantile of the reward among those of the reference model. */
static lt_err read_quantile(line *l, const json_t *object) {
    const json_t *refs = json_object_get(object, "ref_rewards");
    const size_t n = json_array_size(refs);
    double reward = 0.0, *rewards = NULL;
    lt_err err = LT_OK;
    LT_TRY(lt_json_f64(object, "reward", &reward, false, "the line"));
    if (n == 0) {
        LT_FAIL(LT_ERR_FORMAT, "'ref_rewards' is not a list of rewards of the reference model");
    }
    rewards = malloc(n * sizeof *rewards);
    if (rewards == NULL) {
        LT_FAIL(LT_ERR_OOM, "%zu rewards", n);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(refs, i);
        if (!json_is_number(value)) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "ref_rewards[%zu] is not a number", i);
        }
        rewards[i] = json_number_value(value);
    }
    LT_TRY_DONE(lt_align_quantile(reward, rewards, (int64_t)n, &l->what.quantile));
    l->what.n_refs = (int64_t)n;
done:
    free(rewards);
    return err;
}

static lt_err read_single(reading *r, int worker, line *l, const json_t *object) {
    const json_t *label = json_object_get(object, "label");
    lt_err err = LT_OK;
    json_t *prompt = NULL, *completion = NULL;

    LT_TRY_DONE(messages_of(&prompt, object, "prompt", "user"));
    LT_TRY_DONE(lt_chat_shape_system(object, prompt));
    LT_TRY_DONE(messages_of(&completion, object, "completion", "assistant"));
    if (r->o->quantiles) {
        LT_TRY_DONE(read_quantile(l, object));
    } else if (!json_is_boolean(label)) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "'label' is neither true nor false");
    }
    l->what.good = json_is_true(label);
    LT_TRY_DONE(
        encode_one(r, worker, object, prompt, completion, "completion", &l->ids[0], &l->first[0]));
done:
    json_decref(prompt);
    json_decref(completion);
    return err;
}

/* ---- Steps ---- */

static lt_err add_prompt(reading *r, int worker, const json_t *object, lt_ids *ids) {
    const json_t *prompt = json_object_get(object, "prompt");
    const lt_tokenizer *t = r->o->rows->tokenizer;
    const uint32_t bos = lt_tokenizer_describe(t).bos;
    json_t *conversation;
    lt_err err;
    if (json_is_string(prompt)) {
        LT_TRY(bos != LT_TOKEN_NONE ? lt_ids_append(ids, &bos, 1) : LT_OK);
        return lt_tokenizer_encode(t, r->workers.scratch[worker], json_string_value(prompt),
                                   json_string_length(prompt), LT_ENCODE_PARSE_SPECIAL, ids);
    }
    if (!json_is_array(prompt)) {
        LT_FAIL(LT_ERR_FORMAT, "'prompt' is neither a string nor a list of messages");
    }
    conversation = json_copy((json_t *)(uintptr_t)object);
    if (conversation == NULL || json_object_set(conversation, r->o->rows->messages,
                                                json_object_get(conversation, "prompt")) != 0) {
        json_decref(conversation);
        LT_FAIL(LT_ERR_OOM, "messages of a line");
    }
    err = lt_chat_rows_prompt(r->o->rows, r->workers.scratch[worker], conversation, ids);
    json_decref(conversation);
    return err;
}

/* A label: true or 1, false or 0, null for none. */
static lt_err read_label(const json_t *value, size_t i, signed char *out) {
    if (json_is_null(value)) {
        *out = -1;
        return LT_OK;
    }
    if (!json_is_boolean(value) &&
        !(json_is_integer(value) && (json_integer_value(value) & ~(json_int_t)1) == 0)) {
        LT_FAIL(LT_ERR_FORMAT, "labels[%zu] is neither true nor false", i);
    }
    *out = json_is_true(value) || json_integer_value(value) == 1;
    return LT_OK;
}

/* Append a step, whose label is at its last token. */
static lt_err add_step(reading *r, int worker, line *l, const json_t *step, const json_t *label,
                       size_t i) {
    const size_t had = l->ids[0].n;
    signed char value, *grown;
    LT_TRY(read_label(label, i, &value));
    if (!json_is_string(step)) {
        LT_FAIL(LT_ERR_FORMAT, "completions[%zu] is not a text", i);
    }
    LT_TRY(lt_steps_add(r->o->steps, r->workers.scratch[worker], json_string_value(step),
                        json_string_length(step), &l->ids[0]));
    grown = realloc(l->steps, l->ids[0].n);
    if (grown == NULL) {
        LT_FAIL(LT_ERR_OOM, "labels of a line");
    }
    l->steps = grown;
    memset(l->steps + had, -1, l->ids[0].n - had);
    l->steps[l->ids[0].n - 1] = value;
    return LT_OK;
}

static lt_err read_steps(reading *r, int worker, line *l, const json_t *object) {
    const json_t *steps = json_object_get(object, "completions");
    const json_t *labels = json_object_get(object, "labels");
    const size_t n = json_array_size(steps);
    if (n == 0 || json_array_size(labels) != n) {
        LT_FAIL(LT_ERR_FORMAT,
                "'completions' and 'labels' must be lists of the same length, at least 1; they "
                "have %zu and %zu elements",
                n, json_array_size(labels));
    }
    LT_TRY(add_prompt(r, worker, object, &l->ids[0]));
    l->first[0] = l->ids[0].n;
    l->steps = malloc(l->first[0] + 1);
    if (l->steps == NULL) {
        LT_FAIL(LT_ERR_OOM, "labels of a line");
    }
    memset(l->steps, -1, l->first[0]);
    for (size_t i = 0; i < n; i++) {
        LT_TRY(add_step(r, worker, l, json_array_get(steps, i), json_array_get(labels, i), i));
    }
    return LT_OK;
}

static lt_err read_line(reading *r, int worker, line *l) {
    json_error_t why;
    lt_err err;
    json_t *object = lt_json_loadb(l->text, l->bytes, LT_JSON_LINE, &why);
    if (object == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "column %d: %s", why.column, why.text);
    }
    if (!json_is_object(object)) {
        err = lt_error_set(LT_ERR_FORMAT, "column 1: a JSON object was expected");
    } else {
        err = r->o->given == LT_ALIGN_STEPS    ? read_steps(r, worker, l, object)
              : r->o->given == LT_ALIGN_SINGLE ? read_single(r, worker, l, object)
                                               : read_pair(r, worker, l, object);
    }
    json_decref(object);
    return err;
}

/* A thread takes lines until none is left. */
static void work(void *ctx, size_t worker) {
    reading *r = ctx;
    for (size_t i; (i = atomic_fetch_add(&r->next, 1)) < r->n;) {
        line *l = &r->lines[i];
        l->err = read_line(r, (int)worker, l);
        l->why = l->err != LT_OK ? strdup(lt_error_message()) : NULL;
        free(l->text);
        l->text = NULL;
    }
}

/* ---- The files ---- */

static lt_err add_line(reading *r, const char *path, const lt_text_record *record, const char *text,
                       size_t bytes) {
    line *l;
    if (r->n == r->room) {
        const size_t room = r->room == 0 ? 256 : 2 * r->room;
        line *grown = realloc(r->lines, room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "%zu lines of preferences", room);
        }
        r->lines = grown;
        r->room = room;
    }
    l = &r->lines[r->n++];
    *l = (line){.bytes = bytes, .file = path, .number = record->line, .text = malloc(bytes + 1)};
    if (l->text == NULL) {
        LT_FAIL(LT_ERR_OOM, "a line of %zu bytes", bytes);
    }
    memcpy(l->text, text, bytes);
    l->text[bytes] = '\0';
    return LT_OK;
}

static lt_err read_file(reading *r, const char *path) {
    lt_err err = LT_OK;
    lt_text_reader *reader = NULL;
    lt_text_buffer buffer = {0};
    lt_text_record record;
    bool more = true;

    LT_TRY_DONE(lt_text_reader_open(
        &reader, path, &(lt_text_options){.format = LT_TEXT_JSONL, .utf8 = LT_UTF8_REPLACE}));
    while (more) {
        const char *text;
        size_t bytes;
        LT_TRY_DONE(lt_text_reader_next(reader, &record, &more));
        if (more) {
            LT_TRY_DONE(lt_text_record_line(reader, &record, &buffer, &text, &bytes));
            LT_TRY_DONE(add_line(r, path, &record, text, bytes));
        }
    }
done:
    lt_text_buffer_free(&buffer);
    lt_text_reader_close(reader);
    return err;
}

/* ---- What is done with a line ---- */

static void tell(reading *r, const line *l, const char *what, const char *done) {
    if (r->told++ < LT_CONVERSATIONS_TOLD) {
        lt_log_warn("%s:%" PRIu64 ": %s; %s", l->file, l->number, what, done);
    } else if (r->told == LT_CONVERSATIONS_TOLD + 1) {
        lt_log_warn("%s: more such lines are counted, not named", l->file);
    }
}

static bool has_label(const line *l) {
    for (size_t i = 0; i < l->ids[0].n; i++) {
        if (l->steps[i] >= 0) {
            return true;
        }
    }
    return false;
}

/* Decide whether a row can be used, and truncate it if that is allowed. *what: why the example
 * cannot be used; "" if it can. */
static void judge_row(const reading *r, line *l, int side, char *what, size_t room, bool *cut) {
    const size_t longest = (size_t)r->o->longest;
    lt_ids *ids = &l->ids[side];
    const bool cuts = r->o->too_long == LT_TOO_LONG_CUT && r->o->given != LT_ALIGN_SCORES;
    const char *name = r->o->given == LT_ALIGN_STEPS    ? "completions"
                       : r->o->given == LT_ALIGN_SINGLE ? "completion"
                       : side == 0                      ? "chosen"
                                                        : "rejected";
    if (l->first[side] >= ids->n) {
        (void)snprintf(what, room, "'%s' is empty: it has no token to learn", name);
    } else if (ids->n > longest && !cuts) {
        (void)snprintf(what, room, "'%s' has %zu tokens, of which rows hold %zu", name, ids->n,
                       longest);
    } else if (ids->n > longest && l->first[side] >= longest) {
        (void)snprintf(what, room, "'%s' has %zu tokens, and the first %zu are all of the prompt",
                       name, ids->n, longest);
    } else if (ids->n > longest) {
        *cut = true;
        ids->n = longest;
    }
    if (what[0] == '\0' && l->steps != NULL && !has_label(l)) {
        (void)snprintf(what, room, "no step with a label ends within its %zu tokens", ids->n);
    }
}

/* Whether the line is used and, if not, why. */
static lt_err judge(reading *r, line *l, lt_preferences *p) {
    const lt_preferences_options *o = r->o;
    const bool fails = o->bad_rows == LT_BAD_ROWS_FAIL;
    char what[512] = "";
    bool cut = false;
    const bool longer = l->err == LT_OK &&
                        (l->ids[0].n > (size_t)o->longest || l->ids[1].n > (size_t)o->longest);

    if (l->err == LT_ERR_OOM) {
        LT_FAIL(LT_ERR_OOM, "%s:%" PRIu64 ": an example", l->file, l->number);
    }
    if (l->err != LT_OK) {
        (void)snprintf(what, sizeof what, "%s", l->why != NULL ? l->why : lt_err_text(l->err));
    }
    for (int side = 0; side < p->together && what[0] == '\0'; side++) {
        judge_row(r, l, side, what, sizeof what, &cut);
    }
    if (cut && what[0] == '\0' && p->together == 2 && same_tokens(l)) {
        (void)snprintf(what, sizeof what,
                       "chosen and rejected are the same in the %" PRId64 " tokens that rows hold",
                       o->longest);
    }
    if (what[0] != '\0') {
        if (fails || (longer && o->too_long == LT_TOO_LONG_FAIL)) {
            LT_FAIL(LT_ERR_FORMAT, "%s:%" PRIu64 ": %s", l->file, l->number, what);
        }
        tell(r, l, what, "the example is left out");
        p->left_out++;
        return LT_OK;
    }
    if (cut) {
        (void)snprintf(what, sizeof what, "more than %" PRId64 " tokens", o->longest);
        tell(r, l, what, "the end is cut off");
        p->cut++;
    }
    l->used = true;
    return LT_OK;
}

/* ---- Rows ---- */

static void put_row(lt_preferences *p, int64_t row, const lt_ids *ids, size_t first,
                    const signed char *steps) {
    int32_t *to = p->ids + p->start[row];
    for (size_t i = 0; i < ids->n; i++) {
        to[i] = (int32_t)ids->data[i];
    }
    if (steps != NULL) {
        memcpy(p->steps + p->start[row], steps, ids->n);
    }
    p->first[row] = (int32_t)first;
    p->start[row + 1] = p->start[row] + (int64_t)ids->n;
}

static lt_err collect(reading *r, lt_preferences *p) {
    size_t n_ids = 0, rows;
    for (size_t i = 0; i < r->n; i++) {
        line *l = &r->lines[i];
        LT_TRY(judge(r, l, p));
        p->n += l->used;
        n_ids += l->used ? l->ids[0].n + l->ids[1].n : 0;
    }
    if (p->n == 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s: no example to learn from: %" PRIu64 " were left out",
                r->o->paths[0], p->left_out);
    }
    rows = (size_t)(p->n * p->together);
    p->bytes = (size_t)p->n * sizeof *p->examples + n_ids * sizeof *p->ids +
               (rows + 1) * sizeof *p->start + rows * sizeof *p->first +
               (r->o->given == LT_ALIGN_STEPS ? n_ids : 0);
    p->examples = calloc((size_t)p->n, sizeof *p->examples);
    p->ids = malloc(n_ids * sizeof *p->ids);
    p->start = calloc(rows + 1, sizeof *p->start);
    p->first = malloc(rows * sizeof *p->first);
    p->steps = r->o->given == LT_ALIGN_STEPS ? malloc(n_ids) : NULL;
    if (p->examples == NULL || p->ids == NULL || p->start == NULL || p->first == NULL ||
        (p->steps == NULL && r->o->given == LT_ALIGN_STEPS)) {
        LT_FAIL(LT_ERR_OOM, "%zu tokens of preferences", n_ids);
    }
    int64_t example = 0;
    for (size_t i = 0; i < r->n; i++) {
        const line *l = &r->lines[i];
        for (int side = 0; side < p->together && l->used; side++) {
            put_row(p, example * p->together + side, &l->ids[side], l->first[side], l->steps);
        }
        if (l->used) {
            p->examples[example++] = l->what;
        }
    }
    return LT_OK;
}

static uint64_t hash_of(const lt_preferences *p) {
    const size_t rows = (size_t)(p->n * p->together);
    uint64_t h = XXH3_64bits(p->ids, (size_t)p->start[rows] * sizeof *p->ids);
    h = XXH3_64bits_withSeed(p->start, (rows + 1) * sizeof *p->start, h);
    h = XXH3_64bits_withSeed(p->first, rows * sizeof *p->first, h);
    if (p->steps != NULL) {
        h = XXH3_64bits_withSeed(p->steps, (size_t)p->start[rows], h);
    }
    /* Field by field, because of possible padding between them. */
    for (int64_t i = 0; i < p->n; i++) {
        const lt_preference *e = &p->examples[i];
        const double numbers[] = {e->margin, e->good ? 1.0 : 0.0, e->quantile, (double)e->n_refs};
        h = XXH3_64bits_withSeed(numbers, sizeof numbers, h);
    }
    return h;
}

lt_err lt_preferences_read(lt_preferences *out, const lt_preferences_options *o) {
    lt_err err = LT_OK;
    reading r = {.o = o};

    *out = (lt_preferences){.together = lt_align_rows(o->given)};
    for (int64_t i = 0; i < o->n_paths; i++) {
        LT_TRY_DONE(read_file(&r, o->paths[i]));
    }
    LT_TRY_DONE(lt_encode_workers_open(&r.workers, o->rows->tokenizer, lt_thread_count()));
    lt_parallel_for((size_t)r.workers.n, work, &r);
    LT_TRY_DONE(collect(&r, out));
    out->hash = hash_of(out);
done:
    for (size_t i = 0; i < r.n; i++) {
        free(r.lines[i].text);
        free(r.lines[i].why);
        free(r.lines[i].steps);
        lt_ids_free(&r.lines[i].ids[0]);
        lt_ids_free(&r.lines[i].ids[1]);
    }
    free(r.lines);
    lt_encode_workers_close(&r.workers);
    return err;
}

void lt_preferences_close(lt_preferences *p) {
    free(p->examples);
    free(p->ids);
    free(p->start);
    free(p->first);
    free(p->steps);
    *p = (lt_preferences){0};
}
