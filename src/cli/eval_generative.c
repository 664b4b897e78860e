/* eval_generative.c: see eval_generative.h. */
#include "cli/eval_generative.h"

#include <jansson.h>
#include <stdio.h>

#include "base/error.h"
#include "base/log.h"

typedef struct {
    const lt_generative_options *o;
    const char *lora, *tokenizer, *device;
    lt_opened_dtype dtype;
    int64_t threads;
    lt_opened opened; /* What the server does not close. */
    lt_progress line;
} job;

static lt_err load(void *ctx, lt_model **model, lt_tokenizer **tokenizer) {
    job *j = ctx;
    return lt_opened_give(&j->opened, model, tokenizer, j->o->model, j->lora, j->tokenizer,
                          j->dtype, j->device, j->threads);
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
    if (r->unscored > 0) {
        printf("  %lld instructions need NLTK's or langdetect's data and are not scored, nor are "
               "their prompts\n",
               (long long)r->unscored);
    }
}

lt_err lt_eval_generative(lt_generative_options o, const char *lora, const char *tokenizer,
                          lt_opened_dtype dtype, const char *device, int64_t threads, bool json) {
    job j = {.o = &o,
             .lora = lora,
             .tokenizer = tokenizer,
             .device = device,
             .dtype = dtype,
             .threads = threads,
             .line = {.plain_every_s = 10}};
    lt_generative_result r;
    lt_err err;

    o.load = load;
    o.progress = show;
    o.ctx = &j;
    err = lt_generative_run(&r, &o);
    lt_opened_close(&j.opened);
    if (err == LT_OK) {
        lt_progress_end(&j.line);
        (json ? print_json : print_text)(&r);
    }
    return err;
}
