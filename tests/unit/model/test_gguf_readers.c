/* What llama.cpp makes of a GGUF that Lateen writes: the expected results are those of the program
 * itself, of October 2026, which tools/diff_llama_cpp.py asks. Where it cannot open a file, or
 * computes other logits, writing the file warns of it; where it can, nothing is said. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "unit/model/small_spec.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "data/gguf.h"
#include "lateen/model.h"
#include "model/files/gguf_save.h"
#include "model/params.h"

static void must(lt_err err, const char *what) {
    if (err != LT_OK) {
        fail_msg("%s: %s", what, lt_error_message());
    }
}

static void save(const lt_model_spec *s, const char *path) {
    lt_model *m = NULL;
    must(lt_model_create(&m, s, NULL, 5), "model");
    must(lt_model_save_gguf(m, path, "", LT_GGUF_MIX_F32), path);
    lt_model_close(m);
}

/* What is warned of when the model is written; free it. */
static char *said_of(const lt_model_spec *s) {
    char path[64], log[64], *said = NULL;
    (void)snprintf(path, sizeof path, "/tmp/lateen_readers_%d.gguf", (int)getpid());
    (void)snprintf(log, sizeof log, "/tmp/lateen_readers_%d.log", (int)getpid());
    must(lt_log_to_file(log), log);
    save(s, path);
    must(lt_log_to_file(NULL), "close");
    must(lt_file_read(&said, NULL, log, 1 << 20), log);
    unlink(path);
    unlink(log);
    return said;
}

typedef enum {
    OWN,
    LLAMA3,
    LONGROPE,
    BIAS,
    MLP_BIAS,
    OTHER_HEAD,
    HEADS,
    WINDOW,
    LONG_WINDOW,
    YARN,
    BETAS
} feature;

static lt_model_spec with(lt_family family, feature f) {
    lt_model_spec s = small(family);
    if (s.n_experts > 0) {
        s.n_experts = 4;
        s.top_k = 2;
    }
    if (family == LT_FAMILY_QWEN3_MOE) {
        s.moe_normalise = true;
        s.dense_ffn_width = 0;
    }
    if (family == LT_FAMILY_GEMMA2) {
        s.attn_softcap = s.final_softcap = 3;
    }
    if (family == LT_FAMILY_GEMMA3) {
        s.window_every = 2;
    } else if (s.window_every == 0) {
        s.window = 0;
    }
    s.rope_scaling = LT_ROPE_PLAIN;
    s.rope_factor = 1;
    s.rope_low_freq = s.rope_high_freq = s.rope_original_seq = 0;
    if (f == LLAMA3) {
        s.rope_scaling = LT_ROPE_LLAMA3;
        s.rope_factor = 8;
        s.rope_low_freq = 1;
        s.rope_high_freq = 4;
        s.rope_original_seq = 16;
    } else if (f == LONGROPE) {
        s.rope_scaling = LT_ROPE_LONGROPE;
        s.rope_factor = 4;
        s.rope_original_seq = 16;
        s.rope_attention_factor = 1.25;
        for (int i = 0; i < 4; i++) {
            s.rope_short[i] = 1.0f + 0.1f * (float)i;
            s.rope_long[i] = 1.5f + (float)i;
        }
    } else if (f == BETAS || f == YARN) {
        s.rope_scaling = LT_ROPE_YARN;
        s.rope_factor = 4;
        s.rope_original_seq = 1024; /* 4 pairs: another beta_slow moves the end of the range. */
        s.rope_attention_factor = 1.1;
        s.rope_beta_fast = 32;
        s.rope_beta_slow = f == BETAS ? 0.1 : 1;
        s.rope_truncate = family != LT_FAMILY_GPT_OSS;
    } else if (f == BIAS) {
        s.qkv_bias = s.attn_out_bias = !s.attn_out_bias;
    } else if (f == MLP_BIAS) {
        s.mlp_bias = true;
    } else if (f == OTHER_HEAD) {
        s.tied = !s.tied;
    } else if (f == HEADS) {
        s.head_dim = 12;
    } else if (f == WINDOW || f == LONG_WINDOW) {
        s.window = f == WINDOW ? 5 : s.max_seq;
    }
    return s;
}

#define NO_ROPE   "the tensors of Llama-3's RoPE scaling and of longrope"
#define NO_BIAS   "it does not read a bias of attention's output"
#define NO_WINDOW "texts longer than the sliding window"
#define NO_BETAS  "yarn's beta_fast for 32"
#define NO_HEADS  "heads whose sizes do not add up"

static void what_llama_cpp_does_not_read_is_told(void **state) {
    static const struct {
        lt_family family;
        feature feature;
        const char *says; /* NULL: llama.cpp computes the same logits. */
    } rows[] = {{LT_FAMILY_GPT2, OWN, NULL},
                {LT_FAMILY_GPT2, OTHER_HEAD, NULL},
                {LT_FAMILY_LLAMA, LLAMA3, NULL},
                {LT_FAMILY_LLAMA, LONGROPE, NULL},
                {LT_FAMILY_LLAMA, BIAS, NULL},
                {LT_FAMILY_LLAMA, MLP_BIAS, NULL},
                {LT_FAMILY_LLAMA, OTHER_HEAD, NULL},
                {LT_FAMILY_LLAMA, HEADS, NULL},
                {LT_FAMILY_LLAMA, YARN, NULL},
                {LT_FAMILY_LLAMA, BETAS, NO_BETAS},
                {LT_FAMILY_QWEN2, OWN, NULL},
                {LT_FAMILY_QWEN2, LLAMA3, NO_ROPE},
                {LT_FAMILY_QWEN2, LONGROPE, NO_ROPE},
                {LT_FAMILY_QWEN2, OTHER_HEAD, NULL},
                {LT_FAMILY_QWEN2, HEADS, NO_HEADS},
                {LT_FAMILY_QWEN2, WINDOW, NO_WINDOW},
                {LT_FAMILY_QWEN3, LLAMA3, NO_ROPE},
                {LT_FAMILY_QWEN3, BIAS, NO_BIAS},
                {LT_FAMILY_QWEN3, HEADS, NULL},
                {LT_FAMILY_QWEN3, WINDOW, NO_WINDOW},
                {LT_FAMILY_GEMMA2, OWN, NULL},
                {LT_FAMILY_GEMMA2, LLAMA3, NO_ROPE},
                {LT_FAMILY_GEMMA2, BIAS, NO_BIAS},
                {LT_FAMILY_GEMMA2, OTHER_HEAD, "an output head of its own"},
                {LT_FAMILY_GEMMA3, OWN, NULL},
                {LT_FAMILY_GEMMA3, LLAMA3, NO_ROPE},
                {LT_FAMILY_GEMMA3, YARN, "to layers with a window, too"},
                {LT_FAMILY_GEMMA3, BIAS, NO_BIAS},
                {LT_FAMILY_GEMMA3, OTHER_HEAD, NULL},
                {LT_FAMILY_APERTUS, LLAMA3, NULL},
                {LT_FAMILY_APERTUS, LONGROPE, NULL},
                {LT_FAMILY_APERTUS, BIAS, NULL},
                {LT_FAMILY_APERTUS, OTHER_HEAD, NULL},
                {LT_FAMILY_MIXTRAL, LLAMA3, NULL},
                {LT_FAMILY_MIXTRAL, WINDOW, NO_WINDOW},
                {LT_FAMILY_MISTRAL, OWN, NULL},
                {LT_FAMILY_MISTRAL, WINDOW, NO_WINDOW},
                {LT_FAMILY_MISTRAL, LONG_WINDOW, NULL},
                {LT_FAMILY_PHI3, LONGROPE, NULL},
                {LT_FAMILY_PHI3, HEADS, NO_HEADS},
                {LT_FAMILY_PHI3, WINDOW, NO_WINDOW},
                {LT_FAMILY_OLMO2, OWN, NULL},
                {LT_FAMILY_OLMO2, LLAMA3, NO_ROPE},
                {LT_FAMILY_OLMO2, BIAS, NO_BIAS},
                {LT_FAMILY_OLMO2, HEADS, NO_HEADS},
                {LT_FAMILY_SMOLLM3, OWN, NULL},
                {LT_FAMILY_SMOLLM3, LLAMA3, NO_ROPE},
                {LT_FAMILY_SMOLLM3, BIAS, NO_BIAS},
                {LT_FAMILY_SMOLLM3, MLP_BIAS, "biases of the MLP"},
                {LT_FAMILY_GRANITE, LLAMA3, NULL},
                {LT_FAMILY_GRANITE, LONGROPE, NULL},
                {LT_FAMILY_GRANITE, BIAS, NULL},
                {LT_FAMILY_QWEN3_MOE, OWN, NULL},
                {LT_FAMILY_QWEN3_MOE, LLAMA3, NO_ROPE},
                {LT_FAMILY_QWEN3_MOE, BIAS, NO_BIAS},
                {LT_FAMILY_QWEN3_MOE, WINDOW, NO_WINDOW},
                {LT_FAMILY_GPT_OSS, OWN, NULL},
                {LT_FAMILY_GPT_OSS, LLAMA3, NO_ROPE},
                {LT_FAMILY_GPT_OSS, BIAS, "it needs a bias of attention's output"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const lt_model_spec s = with(rows[i].family, rows[i].feature);
        char *said = said_of(&s);
        if (rows[i].says != NULL ? strstr(said, rows[i].says) == NULL
                                 : strstr(said, "llama.cpp") != NULL) {
            fail_msg("%s, feature %d: '%s' instead of '%s'", lt_family_name(rows[i].family),
                     (int)rows[i].feature, said, rows[i].says != NULL ? rows[i].says : "nothing");
        }
        free(said);
    }
}

/* llama.cpp does not open these without output.weight. */
static void a_tied_head_is_written_where_it_must_be(void **state) {
    static const lt_family with_head[] = {LT_FAMILY_APERTUS, LT_FAMILY_OLMO2, LT_FAMILY_GPT_OSS},
                           without[] = {LT_FAMILY_LLAMA, LT_FAMILY_QWEN3, LT_FAMILY_GRANITE};
    char path[64];
    (void)state;
    (void)snprintf(path, sizeof path, "/tmp/lateen_readers_%d.gguf", (int)getpid());
    for (int i = 0; i < 6; i++) {
        lt_model_spec s = with(i < 3 ? with_head[i] : without[i - 3], OWN);
        lt_gguf *g = NULL;
        s.tied = true;
        save(&s, path);
        must(lt_gguf_open(&g, path), path);
        assert_int_equal(lt_gguf_tensor_find(g, "output.weight") != NULL, i < 3);
        lt_gguf_close(g);
    }
    unlink(path);
}

/* llama.cpp divides all frequencies by rope.scaling.factor, whatever the type; longrope's factors
 * are all there is to divide by. */
static void longrope_has_no_factor(void **state) {
    const lt_model_spec s = with(LT_FAMILY_PHI3, LONGROPE);
    char path[64];
    lt_gguf *g = NULL;
    double attention = 0;
    (void)state;
    (void)snprintf(path, sizeof path, "/tmp/lateen_readers_%d.gguf", (int)getpid());
    save(&s, path);
    must(lt_gguf_open(&g, path), path);
    assert_null(lt_gguf_find(g, "phi3.rope.scaling.factor"));
    must(lt_gguf_get_f64(g, "phi3.rope.scaling.attn_factor", &attention), "attn_factor");
    assert_true(attention == 1.25);
    lt_gguf_close(g);
    unlink(path);
}

/* A head whose longest wavelength is between those of low_freq_factor and high_freq_factor has no
 * pair that is divided by the whole factor. */
static void a_factor_follows_from_pairs_that_are_divided_in_part(void **state) {
    static const double factors[] = {8, 2.73457, 1.5, 32};
    char path[64];
    (void)state;
    (void)snprintf(path, sizeof path, "/tmp/lateen_readers_%d.gguf", (int)getpid());
    for (size_t i = 0; i < 4; i++) {
        lt_model_spec s = with(LT_FAMILY_LLAMA, LLAMA3);
        lt_model *m = NULL;
        s.rope_theta = 10; /* The wavelengths of the four pairs are 6.3, 11.2, 19.9 and 35.3. */
        s.rope_original_seq = 50;
        s.rope_factor = factors[i];
        save(&s, path);
        must(lt_model_open(&m, path, NULL), path);
        assert_int_equal(m->spec.rope_scaling, LT_ROPE_LLAMA3);
        assert_true(m->spec.rope_factor == factors[i]);
        lt_model_close(m);
    }
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_llama_cpp_does_not_read_is_told),
        cmocka_unit_test(a_tied_head_is_written_where_it_must_be),
        cmocka_unit_test(longrope_has_no_factor),
        cmocka_unit_test(a_factor_follows_from_pairs_that_are_divided_in_part)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
