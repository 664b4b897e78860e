/* draft_heads.h: the goldens of draft heads, for tests of their drafts and of heads that do not
 * match their model. */
#ifndef TESTS_SERVE_DRAFT_HEADS_H
#define TESTS_SERVE_DRAFT_HEADS_H

#define FLEET_CHOICES 128
#include "unit/serve/fleet.h"

#include "model/infer/draft_head.h"
#include "model/files/safetensors.h"

#define GOLDEN "tests/golden/draft_head"
#define MTP    "tests/golden/draft_mtp"
#define MTP_3  "tests/golden/draft_mtp3"

/* From tools/make_draft_head_goldens.py and make_mtp_goldens.py, with one layer and with
 * three. */
enum { EAGLE_3, OWN_LAYER, OWN_LAYERS, FORMATS };
static const struct {
    const char *model, *head, *expected;
} formats[FORMATS] = {{GOLDEN "/target", GOLDEN "/head", GOLDEN "/expected.safetensors"},
                      {MTP "/target", MTP "/target", MTP "/expected.safetensors"},
                      {MTP_3 "/target", MTP_3 "/target", MTP_3 "/expected.safetensors"}};

enum { STEPS = 5, MOST = 4, MOST_TOKENS = 160 };

/* A golden file, and its model and head. */
typedef struct {
    lt_model *model;
    lt_draft_head *head;
    lt_safetensors file;
    int32_t tokens[64], text[MOST_TOKENS], accepted_at[MOST], drafted;
    int64_t n_tokens, n_text; /* The last element of tokens is the first of text. */
} golden;

static inline int64_t golden_ids(const golden *g, const char *name, int32_t *out) {
    const lt_safetensor *t = lt_safetensors_find(&g->file, name);
    assert_true(t != NULL && t->dtype == LT_I32);
    memcpy(out, t->data, t->bytes);
    return t->shape[0];
}

static inline void open_golden_of(golden *g, int format, lt_dtype dtype,
                                  const lt_backend *backend) {
    *g = (golden){0};
    must(lt_model_open(&g->model, formats[format].model,
                       &(lt_model_options){.dtype = dtype, .device = device_of(backend)}),
         "model");
    must(lt_draft_head_open(&g->head, g->model, formats[format].head), "head");
    must(lt_safetensors_open(&g->file, formats[format].expected), "golden");
    g->n_tokens = golden_ids(g, "tokens", g->tokens);
    g->n_text = golden_ids(g, "text", g->text);
    assert_int_equal(golden_ids(g, "accepted_at", g->accepted_at), MOST);
    (void)golden_ids(g, "drafted", &g->drafted);
}

static inline void close_golden(golden *g) {
    lt_safetensors_close(&g->file);
    lt_draft_head_close(g->head);
    lt_model_close(g->model);
}

#endif
