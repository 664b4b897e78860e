/* Every kind of RoPE against Hugging Face transformers (goldens: tools/make_rope_goldens.py,
 * float64): frequencies; logits of texts under, at and above the original context, in one call and
 * token by token with the cache kept; the losses of a training batch's forward pass; both spellings
 * of config.json, and writing it again.
 *
 * Tolerance: as in test_golden.c, for F32 in about 30 stages; 2e-6 was measured. */
#include "unit/model/golden.h"

#include <unistd.h>

#include "base/file.h"
#include "lateen/model.h"
#include "model/family.h"
#include "model/files/gguf_save.h"
#include "model/blocks/exec.h"

#define TOLERANCE 5e-6
#define ROOT      "tests/golden/rope/"

static const char *const cases[] = {
    "linear",         "llama3",           "proportional", "dynamic",  "yarn",
    "yarn_betas",     "yarn_mscale",      "yarn_gemma3",  "longrope", "longrope_attention",
    "yarn_attention", "yarn_factor_null", "phi3",         "mistral",  "phi3_plain",
    "mistral_tied"};
#define N_CASES ((int)(sizeof cases / sizeof *cases))
static const int lengths[] = {7, 16, 17, 40};
enum { V = 32, T = 40, PROMPT = 12 };

static const lt_backend *(*const backends[])(void) = {lt_backend_ref, lt_backend_cpu};

static const char *path_of(const char *name, const char *file) {
    static char path[256];
    (void)snprintf(path, sizeof path, ROOT "%s/%s", name, file);
    return path;
}

static const float *data_of(const lt_safetensors *g, const char *pattern, int n) {
    char name[32];
    (void)snprintf(name, sizeof name, pattern, n);
    const lt_safetensor *t = lt_safetensors_find(g, name);
    assert_non_null(t);
    return (const float *)t->data;
}

static void near(const char *name, const char *what, int n, const float *got, const float *want,
                 int64_t count) {
    const double d = distance(got, want, count);
    if (!(d <= TOLERANCE)) {
        fail_msg("%s, %s of %d tokens: differ by %.3g", name, what, n, d);
    }
}

static void check_frequencies(const char *name, const lt_model_spec *spec,
                              const lt_safetensors *g) {
    const double factor = *(const double *)(const void *)data_of(g, "factor", 0);
    const int64_t columns = lt_rope_columns(spec);
    static float table[2 * 2 * LT_MAX_ROPE_FACTORS];
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const float *freq = data_of(g, "freq_%d", lengths[i]);
        must(lt_rope_table(table, spec, 2, false, lengths[i]), name);
        for (int64_t c = 0; c < columns; c++) {
            const float *pair = table + 2 * (columns + c);
            if (fabs((double)pair[0] - cos((double)freq[c]) * factor) > 2e-7 * factor ||
                fabs((double)pair[1] - sin((double)freq[c]) * factor) > 2e-7 * factor) {
                fail_msg("%s: frequency %d of a text of %d tokens is not %.9g times %.9g", name,
                         (int)c, lengths[i], (double)freq[c], factor);
            }
        }
    }
}

static void check_logits(const char *name, const lt_model *m, const lt_safetensors *g) {
    const int32_t *tokens = (const int32_t *)(const void *)data_of(g, "tokens", 0);
    static float logits[T * V];
    lt_session *s = NULL;
    must(lt_session_open(&s, m, 2, T), name);
    /* A short text after a long one: nothing of the long one may remain. */
    for (int i = 3; i >= 0; i--) {
        must(lt_session_eval_all(s, 0, tokens, lengths[i], logits), name);
        near(name, "logits", lengths[i], logits, data_of(g, "whole_%d", lengths[i]),
             lengths[i] * V);
        lt_session_truncate(s, 0, 0);
    }
    for (int n = 0; n < T - 1; n = n == 0 ? PROMPT : n + 1) {
        const int64_t seq = 1;
        if (n == 0) {
            must(lt_session_eval(s, seq, tokens, PROMPT, logits), name);
        } else if (n % 2 == 0) {
            must(lt_session_eval(s, seq, tokens + n, 1, logits), name);
        } else {
            must(lt_session_step(s, &seq, tokens + n, 1, logits), name);
        }
        const int at = n == 0 ? PROMPT - 1 : n;
        near(name, "grown logits", at + 1, logits, data_of(g, "grown", 0) + at * V, V);
    }
    lt_session_close(s);
}

/* -log softmax(logits)[label]. */
static double loss_of(const float *logits, int32_t label) {
    double max = -INFINITY, sum = 0;
    for (int i = 0; i < V; i++) {
        max = fmax(max, (double)logits[i]);
    }
    for (int i = 0; i < V; i++) {
        sum += exp((double)logits[i] - max);
    }
    return max + log(sum) - (double)logits[label];
}

static void check_pass(const char *name, const lt_model *m, const lt_safetensors *g, int n) {
    const int32_t *tokens = (const int32_t *)(const void *)data_of(g, "tokens", 0);
    const float *logits = data_of(g, "whole_%d", n);
    float rows[T];
    lt_pass *p = NULL;
    lt_pass_result r;
    const lt_pass_batch b = {.batch = 1, .seq = n, .tokens = tokens, .labels = tokens};
    const lt_pass_options o = {.batch = 1, .seq = n, .loss_chunk_rows = 16};
    must(lt_pass_open(&p, (lt_model *)(uintptr_t)m, &o), name);
    must(lt_pass_eval(p, &b, &r, rows), name);
    for (int t = 0; t < n; t++) {
        const double want = loss_of(logits + t * V, tokens[t]);
        if (!(fabs((double)rows[t] - want) <= 1e-5 * fmax(1, want))) {
            fail_msg("%s: loss of token %d of %d is %.7f, expected %.7f", name, t, n,
                     (double)rows[t], want);
        }
    }
    lt_pass_close(p);
}

static void equals_transformers(void **state) {
    (void)state;
    for (int b = 0; b < 2; b++) {
        for (int i = 0; i < N_CASES; i++) {
            lt_model *m = NULL;
            lt_safetensors g = {0};
            must(lt_model_open(&m, path_of(cases[i], ""), NULL), cases[i]);
            m->backend = backends[b]();
            must(lt_safetensors_open(&g, path_of(cases[i], "golden.safetensors")), cases[i]);
            check_frequencies(cases[i], lt_model_get_spec(m), &g);
            check_logits(cases[i], m, &g);
            for (int n = 0; n < 4; n++) {
                check_pass(cases[i], m, &g, lengths[n]);
            }
            lt_safetensors_close(&g);
            lt_model_close(m);
        }
    }
}

/* Written to GGUF and from there to a folder: the same model, or a refusal. */
static void preserved_by_gguf(void **state) {
    static const char *const refused[] = {"dynamic", "yarn_betas", "yarn_gemma3"};
    const char *path = "/tmp/lateen-test-rope.gguf", *folder = "/tmp/lateen-test-rope";
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        lt_model *a = NULL, *b = NULL;
        lt_safetensors g = {0};
        bool no = false;
        for (size_t r = 0; r < sizeof refused / sizeof *refused; r++) {
            no = no || strcmp(cases[i], refused[r]) == 0;
        }
        must(lt_model_open(&a, path_of(cases[i], ""), NULL), cases[i]);
        if (no) {
            assert_int_equal(lt_model_save_gguf(a, path, "", LT_GGUF_MIX_F32), LT_ERR_UNSUPPORTED);
            lt_model_close(a);
            continue;
        }
        must(lt_model_save_gguf(a, path, "", LT_GGUF_MIX_F32), cases[i]);
        must(lt_model_open(&b, path, NULL), cases[i]);
        must(lt_safetensors_open(&g, path_of(cases[i], "golden.safetensors")), cases[i]);
        check_logits(cases[i], b, &g);
        must(lt_model_save(b, folder, LT_F32, 0), cases[i]);
        assert_true(b->spec.pad_id < b->spec.vocab_size);
        lt_model_close(b);
        must(lt_model_open(&b, folder, NULL), cases[i]);
        check_logits(cases[i], b, &g);
        must(lt_file_remove_tree(folder), folder);
        lt_safetensors_close(&g);
        lt_model_close(a);
        lt_model_close(b);
    }
    (void)unlink(path);
}

/* Compare frequencies of two specs, for short and long texts. */
static bool same_rope(const lt_model_spec *a, const lt_model_spec *b) {
    static float x[T * 2 * LT_MAX_ROPE_FACTORS], y[T * 2 * LT_MAX_ROPE_FACTORS];
    const size_t bytes = (size_t)(T * 2 * lt_rope_columns(a)) * sizeof *x;
    bool same = lt_rope_columns(a) == lt_rope_columns(b) && a->window == b->window &&
                a->window_every == b->window_every && lt_rope_switch(a) == lt_rope_switch(b);
    for (size_t i = 0; same && i < 2 * sizeof lengths / sizeof *lengths; i++) {
        must(lt_rope_table(x, a, T, i % 2 != 0, lengths[i / 2]), "a");
        must(lt_rope_table(y, b, T, i % 2 != 0, lengths[i / 2]), "b");
        same = memcmp(x, y, bytes) == 0;
    }
    return same;
}

static void reads_old_keys_and_writes_new_ones(void **state) {
    const char *written = "/tmp/lateen-test-rope.json";
    int n_old = 0;
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        lt_model_spec spec, other;
        must(lt_model_spec_read(&spec, path_of(cases[i], "config.json")), cases[i]);
        must(lt_model_spec_write(&spec, LT_F32, written), cases[i]);
        must(lt_model_spec_read(&other, written), cases[i]);
        assert_true(same_rope(&spec, &other));
        if (access(path_of(cases[i], "config_old.json"), R_OK) == 0) {
            must(lt_model_spec_read(&other, path_of(cases[i], "config_old.json")), cases[i]);
            assert_true(same_rope(&spec, &other));
            n_old++;
        }
    }
    assert_int_equal(n_old, 6);
    (void)unlink(written);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_transformers),
        cmocka_unit_test(reads_old_keys_and_writes_new_ones),
        cmocka_unit_test(preserved_by_gguf),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
