/* infill.c: see infill.h. */
#include "serve/api/formats/infill.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/bpe.h"
#include "serve/api/formats/prompts.h"

#define WINDOW    2048 /* In tokens: llama-server's default batch. */
#define MAX_EXTRA 4096 /* Texts. */

static bool check_model(const lt_reply *j, const lt_tokenizer_fim *fim, const char *param,
                        lt_api_error *e) {
    static const char *const parts[] = {
        [LT_FIM_PREFIX] = "prefix", [LT_FIM_SUFFIX] = "suffix", [LT_FIM_MIDDLE] = "middle"};
    char missing[64] = "";
    for (int i = LT_FIM_PREFIX; i <= LT_FIM_MIDDLE; i++) {
        const size_t used = strlen(missing);
        if (fim->ids[i] == LT_TOKEN_NONE) {
            snprintf(missing + used, sizeof missing - used, "%s%s", used > 0 ? ", " : "", parts[i]);
        }
    }
    if (missing[0] == '\0') {
        return true;
    }
    lt_api_refuse(e, param,
                  "%s%s%s is not supported by the model '%.100s': it has no token for filling in "
                  "the middle of a text (%s)",
                  param != NULL ? "'" : "", param != NULL ? param : "/infill",
                  param != NULL ? "'" : "", j->server->name, missing);
    if (param == NULL) {
        e->status = 501;
        e->type = "not_supported_error";
    }
    return false;
}

static bool put_id(lt_ids *ids, uint32_t id, lt_api_error *e) {
    return id == LT_TOKEN_NONE || lt_ids_append(ids, &id, 1) == LT_OK || lt_api_refuse_oom(e);
}

static bool put_text(lt_reply *j, lt_ids *ids, const char *text, lt_api_error *e) {
    const size_t n = strlen(text);
    return lt_server_may_fit(j->server, n, NULL, e) &&
           lt_server_encode(j->server, text, n, LT_ENCODE_PLAIN, ids, e);
}

static bool put_line(lt_reply *j, lt_ids *ids, const char *name, lt_api_error *e) {
    lt_json_out line = {0};
    bool ok;
    lt_out_raw(&line, name, strlen(name));
    lt_out_raw(&line, "\n", 1);
    ok = line.failed ? lt_api_refuse_oom(e) : put_text(j, ids, line.data, e);
    lt_out_free(&line);
    return ok;
}

/* A further file of the project. */
static bool put_extra(lt_reply *j, lt_ids *ids, const json_t *chunk, const lt_tokenizer_fim *fim,
                      lt_api_error *e) {
    const json_t *name = json_object_get(chunk, "filename");
    const char *text = json_string_value(json_object_get(chunk, "text"));
    const bool marked = fim->ids[LT_FIM_FILE] != LT_TOKEN_NONE;

    if (text == NULL || (name != NULL && !json_is_string(name))) {
        return lt_api_refuse(e, "input_extra",
                             "'input_extra' must be a list of objects with a text and perhaps a "
                             "filename, both strings");
    }
    if (marked) {
        return put_id(ids, fim->ids[LT_FIM_FILE], e) &&
               put_line(j, ids, name != NULL ? json_string_value(name) : "tmp", e) &&
               put_text(j, ids, text, e);
    }
    return put_text(j, ids, "\n\n--- snippet ---\n\n", e) && put_text(j, ids, text, e);
}

static bool put_files(lt_reply *j, lt_ids *ids, const lt_infill *f, const lt_tokenizer_fim *fim,
                      lt_api_error *e) {
    const size_t n = json_array_size(f->extra);

    if ((f->extra != NULL && !json_is_array(f->extra)) || n > MAX_EXTRA) {
        return lt_api_refuse(e, "input_extra", "'input_extra' must be a list of at most %d objects",
                             MAX_EXTRA);
    }
    if (fim->ids[LT_FIM_REPOSITORY] != LT_TOKEN_NONE &&
        (!put_id(ids, fim->ids[LT_FIM_REPOSITORY], e) || !put_line(j, ids, "myproject", e))) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (!put_extra(j, ids, json_array_get(f->extra, i), fim, e)) {
            return false;
        }
    }
    return fim->ids[LT_FIM_FILE] == LT_TOKEN_NONE ||
           (put_id(ids, fim->ids[LT_FIM_FILE], e) && put_line(j, ids, "filename", e));
}

/* Keep the last n ids. */
static void keep_end(lt_ids *ids, int64_t n) {
    const size_t keep = n > 0 ? (size_t)n : 0;
    if (keep < ids->n) {
        memmove(ids->data, ids->data + ids->n - keep, keep * sizeof *ids->data);
        ids->n = keep;
    }
}

typedef struct {
    lt_ids files, prefix, prompt, suffix;
} parts;

static void cut(const lt_reply *j, parts *p) {
    const int64_t context = lt_server_context(j->server), most = j->request.max_tokens;
    const int64_t answer = most >= 0 && most < context / 4 ? most : context / 4;
    const int64_t window = WINDOW < context - answer ? WINDOW : context - answer;
    const int64_t rest = window / 4 - 4 - (int64_t)p->prompt.n; /* The marks and BOS. */
    int64_t used;

    keep_end(&p->prefix, 3 * (window / 4));
    p->suffix.n = rest < 0 ? 0 : (size_t)rest < p->suffix.n ? (size_t)rest : p->suffix.n;
    used = (int64_t)(p->prefix.n + p->prompt.n + p->suffix.n) + 4;
    keep_end(&p->files, context - answer - used);
}

static bool join(lt_reply *j, const parts *p, const lt_tokenizer_fim *fim, lt_ids *out,
                 lt_api_error *e) {
    const lt_tokenizer_info *v = &j->server->vocabulary;
    const lt_err err = lt_ids_append(out, p->files.data, p->files.n);
    return (err == LT_OK || lt_api_refuse_oom(e)) &&
           put_id(out, v->adds_bos ? v->bos : LT_TOKEN_NONE, e) &&
           put_id(out, fim->ids[LT_FIM_PREFIX], e) &&
           (lt_ids_append(out, p->prefix.data, p->prefix.n) == LT_OK || lt_api_refuse_oom(e)) &&
           (lt_ids_append(out, p->prompt.data, p->prompt.n) == LT_OK || lt_api_refuse_oom(e)) &&
           put_id(out, fim->ids[LT_FIM_SUFFIX], e) &&
           (lt_ids_append(out, p->suffix.data, p->suffix.n) == LT_OK || lt_api_refuse_oom(e)) &&
           put_id(out, fim->ids[LT_FIM_MIDDLE], e);
}

/* The answer ends if the model begins another file, or pads. */
static bool end_at_marks(lt_reply *j, const lt_tokenizer_fim *fim, lt_api_error *e) {
    const int64_t n = j->request.n_stop_ids;
    int32_t *ids = realloc(j->stop_ids, (size_t)(n + LT_FIM_COUNT) * sizeof *ids);
    if (ids == NULL) {
        return lt_api_refuse_oom(e);
    }
    j->stop_ids = ids;
    j->request.stop_ids = ids;
    for (int i = LT_FIM_REPOSITORY; i < LT_FIM_COUNT; i++) {
        if (fim->ids[i] != LT_TOKEN_NONE) {
            ids[j->request.n_stop_ids++] = (int32_t)fim->ids[i];
        }
    }
    return true;
}

bool lt_infill_add(lt_reply *j, const lt_infill *f, const char *param, lt_api_error *e) {
    const lt_tokenizer_fim fim = lt_tokenizer_find_fim(j->server->tokenizer);
    parts p = {{0}, {0}, {0}, {0}};
    lt_ids all = {0};
    bool ok = check_model(j, &fim, param, e) && put_text(j, &p.prefix, f->prefix, e) &&
              put_text(j, &p.suffix, f->suffix, e) &&
              (f->prompt == NULL ||
               lt_prompts_mixed(j->server, f->prompt, "prompt", false, true, &p.prompt, e)) &&
              (!f->files || put_files(j, &p.files, f, &fim, e));
    if (ok && f->cut) {
        cut(j, &p);
    }
    ok = ok && join(j, &p, &fim, &all, e) && lt_reply_add(j, &all, e) &&
         (j->n_parts > 1 || end_at_marks(j, &fim, e));
    lt_ids_free(&p.files);
    lt_ids_free(&p.prefix);
    lt_ids_free(&p.prompt);
    lt_ids_free(&p.suffix);
    lt_ids_free(&all);
    return ok;
}
