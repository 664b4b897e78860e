/* generate_aligned.c: see generate_aligned.h. */
#include "cli/generate_aligned.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "align/local_requests.h"
#include "base/error.h"
#include "base/json.h"

/* The options that are also fields of a request, where their names have '_'. */
static const char *const sampling[] = {"temperature",
                                       "top-k",
                                       "top-p",
                                       "min-p",
                                       "typical-p",
                                       "repetition-penalty",
                                       "frequency-penalty",
                                       "presence-penalty",
                                       "seed",
                                       NULL};

typedef struct {
    lt_generate_aligned *g;
    json_t *align;
    bool asked, told;
} job;

static lt_err load(void *ctx, lt_model **model, lt_tokenizer **tokenizer) {
    job *j = ctx;
    lt_generate_aligned *g = j->g;
    LT_TRY(lt_served_load(&g->served, model, tokenizer));
    if (!g->own_defaults) {
        return LT_OK;
    }
    LT_TRY(lt_opened_defaults(*model, g->table, g->own, 0, NULL));
    return lt_opened_defaults(*model, g->table, g->obj, g->argc, g->argv);
}

static lt_err load_reward(void *ctx, lt_model **model, lt_tokenizer **tokenizer) {
    const job *j = ctx;
    return lt_served_load_reward(&j->g->served, model, tokenizer);
}

static int64_t next(void *ctx) {
    job *j = ctx;
    const bool first = !j->asked;
    j->asked = true;
    return first ? 0 : -1;
}

/* A beam search draws no tokens and refuses options that change how they are drawn, so its request
 * has only the options that differ from their defaults. */
static bool all_is_said(const json_t *align) {
    const char *method = json_string_value(json_object_get(align, "method"));
    return method == NULL || strcmp(method, "beam") != 0;
}

static void set_sampling(json_t *o, const job *j) {
    for (const char *const *name = sampling; *name != NULL; name++) {
        const lt_option *row = lt_option_find(j->g->table, *name);
        char value[64], own[64], field[32];
        lt_option_text(row, j->g->obj, value, sizeof value);
        lt_option_text(row, j->g->own, own, sizeof own);
        if (!all_is_said(j->align) && strcmp(value, own) == 0) {
            continue;
        }
        snprintf(field, sizeof field, "%s", *name);
        for (char *p = field; (p = strchr(p, '-')) != NULL;) {
            *p = '_';
        }
        json_object_set_new(o, field, json_loads(value, JSON_DECODE_ANY, NULL));
    }
}

static void set_bias(json_t *o, const char *text) {
    lt_sampling s = {0};
    lt_logit_bias *bias = NULL;
    json_t *all = json_object();
    if (lt_bias_read(&s, &bias, text) == LT_OK) { /* It was read before. */
        for (int64_t i = 0; i < s.n_bias; i++) {
            char id[16];
            snprintf(id, sizeof id, "%d", (int)bias[i].id);
            json_object_set_new(all, id, json_real((double)bias[i].bias));
        }
    }
    free(bias);
    json_object_set_new(o, "logit_bias", all);
}

static char *body(void *ctx, int64_t question) {
    const job *j = ctx;
    const lt_generate_aligned *g = j->g;
    json_t *o = json_pack("{s:s, s:I, s:O}", "prompt", g->prompt, "max_tokens",
                          (json_int_t)g->max_tokens, "alignment", j->align);
    char *text;
    (void)question;
    set_sampling(o, j);
    if (g->ignore_eos) {
        json_object_set_new(o, "ignore_eos", json_true());
    }
    if (g->keep_special) {
        json_object_set_new(o, "skip_special_tokens", json_false());
    }
    if (g->logit_bias[0] != '\0') {
        set_bias(o, g->logit_bias);
    }
    text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return text;
}

static lt_err take(void *ctx, int64_t question, const json_t *answer) {
    job *j = ctx;
    const json_t *choice = json_array_get(json_object_get(answer, "choices"), 0);
    const json_t *text = json_object_get(choice, "text"), *report;
    (void)question;
    j->told = true;
    if (j->g->json) {
        json_dumpf(answer, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        putchar('\n');
        return LT_OK;
    }
    if (j->g->echo) {
        fputs(j->g->prompt, stdout);
    }
    fwrite(json_string_value(text), 1, json_string_length(text), stdout);
    if (isatty(STDOUT_FILENO)) {
        putchar('\n');
    }
    report = json_object_get(answer, "alignment");
    if (j->g->stats && report != NULL) {
        json_dumpf(report, stderr, JSON_COMPACT | JSON_REAL_PRECISION(9));
        fputc('\n', stderr);
    }
    return LT_OK;
}

static void name(void *ctx, int64_t question, char *out, size_t room) {
    (void)ctx, (void)question;
    snprintf(out, room, "generate --align");
}

lt_err lt_generate_aligned_run(lt_generate_aligned *g) {
    job j = {.g = g};
    lt_sampling s = {0};
    lt_logit_bias *bias = NULL;
    lt_err err = LT_OK;
    const lt_local_requests a = {.model = g->served.model,
                                 .path = "/v1/completions",
                                 .max_running = 256,
                                 .load = load,
                                 .load_reward = g->served.reward[0] != '\0' ? load_reward : NULL,
                                 .reward = g->served.reward,
                                 .beside = g->served.beside.models,
                                 .second = g->served.beside.name_list,
                                 .n_beside = g->served.beside.n,
                                 .speculate = g->engine.speculate,
                                 .draft = g->engine.draft,
                                 .next = next,
                                 .body = body,
                                 .take = take,
                                 .name = name,
                                 .ctx = &j};

    lt_options_default(g->table, g->own);
    LT_TRY_DONE(lt_json_parse(&j.align, g->align, strlen(g->align), "--align"));
    LT_TRY_DONE(lt_bias_read(&s, &bias, g->logit_bias));
    LT_TRY_DONE(lt_local_requests_run(&a));
done:
    json_decref(j.align);
    free(bias);
    lt_served_unload(&g->served);
    return err;
}
