/* problems.c: see problems.h. */
#include "align/problems.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "data/text_reader.h"

typedef struct {
    lt_problems *problems;
    const char *path;
    const lt_problems_options *o;
    lt_tokenizer_info info;
    lt_tokenizer_scratch *scratch;
    lt_ids ids;
    int64_t told, read;
    char first[512]; /* Why the first line was omitted. */
} reading;

static void problem_close(lt_problem *p) {
    json_decref(p->line);
    lt_checker_close(p->checker);
    free(p->prompt);
}

/* A line that is one text of the user gets the messages of a conversation. */
static lt_err name_messages(json_t *line) {
    static const char *const names[] = {"prompt", "question", "text"};
    if (json_object_get(line, "messages") != NULL) {
        return LT_OK;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *text = json_object_get(line, names[i]);
        json_t *messages = json_is_array(text) ? json_incref(text)
                           : json_is_string(text)
                               ? json_pack("[{s:s, s:O}]", "role", "user", "content", text)
                               : NULL;
        if (messages != NULL) {
            return json_object_set_new(line, "messages", messages) == 0
                       ? LT_OK
                       : lt_error_set(LT_ERR_OOM, "messages of a problem");
        }
    }
    /* It is one of the other forms, or a message reports that there is no conversation. */
    return LT_OK;
}

static lt_err open_checker(lt_problem *p) {
    const char *answer = NULL, *name = "number";
    lt_check_kind kind;
    LT_TRY(lt_json_str(p->line, "answer", &answer, true, "the problem"));
    LT_TRY(lt_json_str(p->line, "checker", &name, true, "the problem"));
    if (answer == NULL) {
        return LT_OK;
    }
    LT_TRY(lt_check_kind_find(&kind, name));
    return lt_checker_open(&p->checker, kind, answer, strlen(answer));
}

static lt_err take_ids(reading *r, lt_problem *p) {
    const size_t bytes = r->ids.n * sizeof *p->prompt;
    p->n_prompt = (int64_t)r->ids.n;
    if (p->n_prompt > r->o->longest) {
        LT_FAIL(LT_ERR_LIMIT,
                "the question has %" PRId64 " tokens; %" PRId64 " fit into a row beside an answer",
                p->n_prompt, r->o->longest);
    }
    p->prompt = malloc(bytes);
    if (p->prompt == NULL) {
        LT_FAIL(LT_ERR_OOM, "a question of %" PRId64 " tokens", p->n_prompt);
    }
    memcpy(p->prompt, r->ids.data, bytes);
    return LT_OK;
}

static lt_err read_problem(reading *r, lt_problem *p, const char *text, size_t bytes) {
    json_error_t why;
    p->line = lt_json_loadb(text, bytes, LT_JSON_LINE, &why);
    if (p->line == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "column %d: %s", why.column, why.text);
    }
    if (!json_is_object(p->line)) {
        LT_FAIL(LT_ERR_FORMAT, "a JSON object was expected");
    }
    LT_TRY(name_messages(p->line));
    r->ids.n = 0;
    LT_TRY(lt_chat_rows_prompt(&r->o->source->rows, r->scratch, p->line, &r->ids));
    LT_TRY(lt_chat_ids_begin(&r->ids, &r->info));
    LT_TRY(open_checker(p));
    return take_ids(r, p);
}

/* Whether the failure concerns only this line. */
static bool of_line(lt_err err) {
    return err != LT_OK && err != LT_ERR_OOM && err != LT_ERR_IO;
}

static bool may_skip(const reading *r, lt_err err) {
    return err == LT_ERR_LIMIT ? r->o->too_long != LT_TOO_LONG_FAIL
                               : r->o->bad_rows == LT_BAD_ROWS_SKIP;
}

static void skip(reading *r, uint64_t line) {
    r->problems->left_out++;
    if (r->first[0] == '\0') {
        snprintf(r->first, sizeof r->first, "line %" PRIu64 ": %s", line, lt_error_message());
    }
    if (r->told++ < LT_PROBLEMS_TOLD) {
        lt_log_warn("%s:%" PRIu64 ": %s; it is left out", r->path, line, lt_error_message());
    }
}

/* line_hash: of the line as it is in the file. */
static lt_err keep(lt_problems *all, const lt_problem *p, uint64_t line_hash) {
    const uint64_t parts[] = {all->hash, line_hash,
                              XXH3_64bits(p->prompt, (size_t)p->n_prompt * sizeof *p->prompt)};
    if (all->n == all->room) {
        const int64_t room = 2 * all->room + 64;
        lt_problem *grown = realloc(all->items, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "%" PRId64 " problems", room);
        }
        all->items = grown;
        all->room = room;
    }
    all->hash = XXH3_64bits(parts, sizeof parts);
    all->items[all->n++] = *p;
    return LT_OK;
}

static lt_err read_line(reading *r, const char *text, size_t bytes, uint64_t line) {
    lt_problem p = {.line_number = line, .path = r->path};
    lt_err err;
    err = read_problem(r, &p, text, bytes);
    if (err == LT_OK) {
        err = keep(r->problems, &p, XXH3_64bits(text, bytes));
        r->read += err == LT_OK;
    }
    if (err != LT_OK) {
        problem_close(&p);
    }
    if (of_line(err) && may_skip(r, err)) {
        skip(r, line);
        return LT_OK;
    }
    return err != LT_OK ? lt_error_prefix(err, "%s:%" PRIu64, r->path, line) : LT_OK;
}

lt_err lt_problems_read(lt_problems *p, const char *path, const lt_problems_options *o) {
    const lt_text_options how = {.format = LT_TEXT_JSONL, .utf8 = LT_UTF8_REPLACE};
    const lt_tokenizer *t = o->source->rows.tokenizer;
    lt_err err = LT_OK;
    lt_text_reader *reader = NULL;
    lt_text_buffer buffer = {0};
    reading r = {.problems = p, .path = path, .o = o, .info = lt_tokenizer_describe(t)};
    lt_text_record record;
    const char *text;
    size_t bytes;
    bool more = true;

    LT_TRY_DONE(lt_tokenizer_scratch_open(&r.scratch, t));
    LT_TRY_DONE(lt_text_reader_open(&reader, path, &how));
    for (;;) {
        LT_TRY_DONE(lt_text_reader_next(reader, &record, &more));
        if (!more) {
            break;
        }
        LT_TRY_DONE(lt_text_record_line(reader, &record, &buffer, &text, &bytes));
        LT_TRY_DONE(read_line(&r, text, bytes, record.line));
    }
    if (r.read == 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: no problem to ask: %" PRId64 " lines were left out%s%s",
                     path, r.told, r.first[0] != '\0' ? ", the first for this reason: " : "",
                     r.first);
    }
done:
    lt_text_buffer_free(&buffer);
    lt_text_reader_close(reader);
    lt_tokenizer_scratch_close(r.scratch);
    lt_ids_free(&r.ids);
    return err;
}

json_t *lt_problem_messages(const json_t *line) {
    json_t *messages = json_copy(json_object_get(line, "messages"));
    for (size_t n = json_array_size(messages); n > 0; n--) {
        const char *role = json_string_value(
            json_object_get(json_array_get(messages, n - 1), "role"));
        if (role == NULL || strcmp(role, "assistant") != 0) {
            break;
        }
        (void)json_array_remove(messages, n - 1);
    }
    return messages;
}

void lt_problems_close(lt_problems *p) {
    for (int64_t i = 0; i < p->n; i++) {
        problem_close(&p->items[i]);
    }
    free(p->items);
    *p = (lt_problems){0};
}
