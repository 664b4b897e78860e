/* eval_generative.c: see eval_generative.h. */
#include "cli/eval_generative.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

typedef struct {
    lt_served *served;
    lt_progress line;
} job;

static lt_err load(void *ctx, lt_model **model, lt_tokenizer **tokenizer) {
    const job *j = ctx;
    return lt_served_load(j->served, model, tokenizer);
}

static lt_err load_reward(void *ctx, lt_model **model, lt_tokenizer **tokenizer) {
    const job *j = ctx;
    return lt_served_load_reward(j->served, model, tokenizer);
}

static void show(void *ctx, int64_t done, int64_t of) {
    job *j = ctx;
    lt_progress_show(&j->line, "%lld of %lld", (long long)done, (long long)of);
}

static void print_json(const lt_generative_result *r) {
    json_t *o = json_pack("{s:s, s:I}", "task", r->task, "items", (json_int_t)r->questions);
    for (int i = 0; i < r->n; i++) {
        char key[80];
        json_object_set_new(o, r->scores[i].name, json_real(r->scores[i].mean));
        snprintf(key, sizeof key, "%s_stderr", r->scores[i].name);
        json_object_set_new(o, key, json_real(r->scores[i].error));
        snprintf(key, sizeof key, "%s_of", r->scores[i].name);
        json_object_set_new(o, key, json_integer((json_int_t)r->scores[i].of));
    }
    if (r->tokens > 0) {
        json_object_set_new(o, "tokens", json_real(r->tokens));
    }
    if (r->unscored > 0) {
        json_object_set_new(o, "unscored_instructions", json_integer((json_int_t)r->unscored));
    }
    json_dumpf(o, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(10));
    putchar('\n');
    json_decref(o);
}

static void print_text(const lt_generative_result *r) {
    printf("%-14s %lld questions\n", r->task, (long long)r->questions);
    for (int i = 0; i < r->n; i++) {
        printf("  %-28s %.4f ± %.4f  of %lld\n", r->scores[i].name, r->scores[i].mean,
               r->scores[i].error, (long long)r->scores[i].of);
    }
    if (r->tokens > 0) {
        printf("  %-28s %.1f a question\n", "tokens", r->tokens);
    }
    if (r->unscored > 0) {
        printf("  %lld instructions need NLTK's or langdetect's data and are not scored, nor are "
               "their prompts\n",
               (long long)r->unscored);
    }
}

/* The fields of every request; *out NULL: none. */
static lt_err read_request(json_t **out, const char *align, const char *request) {
    json_t *method = NULL;
    if (request[0] != '\0') {
        LT_TRY(lt_json_parse(out, request, strlen(request), "--request"));
    }
    if (*out != NULL && !json_is_object(*out)) {
        LT_FAIL(LT_ERR_ARG, "--request: not an object of fields");
    }
    if (json_is_true(json_object_get(*out, "stream"))) {
        LT_FAIL(LT_ERR_ARG, "--request: stream = true, but an evaluation reads whole answers");
    }
    if (align[0] == '\0') {
        return LT_OK;
    }
    LT_TRY(lt_json_parse(&method, align, strlen(align), "--align"));
    *out = *out != NULL ? *out : json_object();
    if (json_object_set_new(*out, "alignment", method) != 0) {
        LT_FAIL(LT_ERR_OOM, "--align");
    }
    return LT_OK;
}

lt_err lt_eval_generative(lt_generative_options o, lt_served *served, const char *align,
                          const char *request, bool json) {
    job j = {.served = served, .line = {.plain_every_s = 10}};
    lt_generative_result r;
    json_t *fields = NULL;
    lt_err err = LT_OK;

    LT_TRY_DONE(read_request(&fields, align, request));
    o.request = fields;
    o.model = served->model;
    o.load = load;
    o.load_reward = served->reward[0] != '\0' ? load_reward : NULL;
    o.reward = served->reward;
    o.beside = served->beside.models;
    o.second = served->beside.name_list;
    o.n_beside = served->beside.n;
    o.progress = show;
    o.ctx = &j;
    LT_TRY_DONE(lt_generative_run(&r, &o));
    lt_progress_end(&j.line);
    (json ? print_json : print_text)(&r);
done:
    lt_served_unload(served);
    json_decref(fields);
    return err;
}
