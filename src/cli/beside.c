/* beside.c: see beside.h. */
#include "cli/beside.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "model/infer/steering.h"

static lt_err add(lt_beside *b, const char *text, size_t n) {
    const char *equals = memchr(text, '=', n);
    const char *name = equals != NULL ? text : "second", *path = equals != NULL ? equals + 1 : text;
    const size_t name_n = equals != NULL ? (size_t)(equals - text) : strlen(name);
    const size_t path_n = n - (size_t)(path - text);
    if (b->n == LT_ENGINE_BESIDE) {
        LT_FAIL(LT_ERR_ARG, "--second: more than %d models", LT_ENGINE_BESIDE);
    }
    if (name_n == 0 || name_n >= sizeof b->names[0] || path_n == 0 ||
        path_n >= sizeof b->paths[0]) {
        LT_FAIL(LT_ERR_ARG, "--second: '%.*s' is not NAME=MODEL with a name of 1 to %zu bytes",
                (int)n, text, sizeof b->names[0] - 1);
    }
    snprintf(b->names[b->n], sizeof b->names[0], "%.*s", (int)name_n, name);
    snprintf(b->paths[b->n], sizeof b->paths[0], "%.*s", (int)path_n, path);
    b->name_list[b->n] = b->names[b->n];
    for (int i = 0; i < b->n; i++) {
        if (strcmp(b->names[i], b->names[b->n]) == 0) {
            LT_FAIL(LT_ERR_ARG, "--second: the name '%s' is given twice", b->names[i]);
        }
    }
    b->n++;
    return LT_OK;
}

lt_err lt_served_read(lt_served *s, const char *second) {
    if (s->reward_tokenizer[0] != '\0' && s->reward[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "--reward-tokenizer has no effect without --reward");
    }
    while (*second != '\0') {
        const size_t n = strcspn(second, ",");
        LT_TRY(add(&s->beside, second, n));
        second += n + (second[n] == ',');
    }
    return LT_OK;
}

lt_err lt_served_draft(lt_served *s, lt_engine_options *engine, const char *path) {
    const bool by_model = engine->speculate == LT_SPECULATE_MODEL,
               by_head = engine->speculate == LT_SPECULATE_HEAD;
    if (by_model && path[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "--speculate model needs a draft model: --draft PATH");
    }
    if (!by_model && !by_head && path[0] != '\0') {
        LT_FAIL(LT_ERR_ARG, "--draft %s is for --speculate model and --speculate head", path);
    }
    s->draft = by_head && path[0] == '\0' ? s->model : path; /* Otherwise the model's own layer. */
    s->draft_is_head = by_head;
    engine->draft = by_model ? &s->draft_model : NULL;
    engine->head = by_head ? &s->draft_head : NULL;
    return LT_OK;
}

/* Check that each id that both have has the same bytes. */
static lt_err compare(const char *option, const char *path, const lt_tokenizer *own,
                      const lt_tokenizer *other) {
    const lt_tokenizer_info a = lt_tokenizer_describe(own), b = lt_tokenizer_describe(other);
    if (a.n_ids != b.n_ids) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s %s: its tokenizer has %u tokens, that of the served model %u; they must be the "
                "same",
                option, path, b.n_ids, a.n_ids);
    }
    for (uint32_t id = 0; id < a.n_ids; id++) {
        size_t n = 0, m = 0;
        const char *x = lt_tokenizer_piece(own, id, &n), *y = lt_tokenizer_piece(other, id, &m);
        if ((x == NULL) != (y == NULL) || n != m || (x != NULL && memcmp(x, y, n) != 0)) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "%s %s: its tokenizer is another than that of the served model: token %u is "
                    "'%.*s', not '%.*s'",
                    option, path, id, y != NULL ? (int)m : 0, y != NULL ? y : "",
                    x != NULL ? (int)n : 0, x != NULL ? x : "");
        }
    }
    return LT_OK;
}

/* Open a model beside the served one, with its tokenizer. */
static lt_err open_one(lt_served *s, lt_opened *out, const char *option, const char *path,
                       const lt_tokenizer *tokenizer) {
    lt_err err = lt_opened_open(out, path, "", "", s->dtype, s->device, s->threads);
    if (err != LT_OK && s->tokenizer[0] != '\0') { /* It may have no tokenizer of its own. */
        err = lt_opened_open(out, path, "", s->tokenizer, s->dtype, s->device, s->threads);
    }
    LT_TRY(err);
    return compare(option, path, tokenizer, out->tokenizer);
}

lt_err lt_served_load(void *served, lt_model **model, lt_tokenizer **tokenizer) {
    lt_served *s = served;
    lt_beside *b = &s->beside;
    LT_TRY(lt_opened_give(&s->opened, model, tokenizer, s->model, s->lora, s->tokenizer, s->dtype,
                          s->device, s->threads));
    for (int i = 0; i < b->n; i++) {
        LT_TRY(open_one(s, &b->opened[i], "--second", b->paths[i], *tokenizer));
        b->models[i] = b->opened[i].model;
    }
    if (s->draft_is_head) {
        LT_TRY(lt_draft_head_open(&s->head, *model, s->draft));
        s->draft_head = s->head;
    } else if (s->draft != NULL && s->draft[0] != '\0') {
        LT_TRY(open_one(s, &s->draft_opened, "--draft", s->draft, *tokenizer));
        s->draft_model = s->draft_opened.model;
    }
    return s->steer[0] != '\0' ? lt_steering_open(*model, s->steer) : LT_OK;
}

lt_err lt_served_load_reward(void *served, lt_model **model, lt_tokenizer **tokenizer) {
    lt_served *s = served;
    return lt_opened_give(&s->reward_opened, model, tokenizer, s->reward, "", s->reward_tokenizer,
                          s->dtype, s->device, s->threads);
}

void lt_served_unload(void *served) {
    lt_served *s = served;
    for (int i = 0; i < s->beside.n; i++) {
        lt_opened_close(&s->beside.opened[i]);
    }
    lt_opened_close(&s->draft_opened);
    lt_draft_head_close(s->head);
    s->head = NULL;
    lt_opened_close(&s->reward_opened);
    lt_opened_close(&s->opened);
}
