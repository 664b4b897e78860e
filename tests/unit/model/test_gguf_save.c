/* GGUF files written and read again: the same logits to the bit from F32 weights, for every
 * family that GGUF supports; weights as stored against the same weights widened; a token alone
 * and in a batch. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "data/gguf.h"
#include "lateen/model.h"
#include "lateen/tokenizer.h"
#include "model/family.h"
#include "model/files/gguf_save.h"
#include "model/params.h"
#include "model/files/safetensors.h"
#include "model/files/source.h"
#include "unit/model/small_spec.h"
#include "unit/model/tiny.h"

#define N_IDS 20

static const char *const families[] = {"apertus", "gpt2",    "llama3",    "llama_bias", "mixtral",
                                       "qwen2",   "qwen3",   "mistral",   "phi3",       "yarn",
                                       "olmo2",   "granite", "qwen3_moe", "phi4"};

static void must(lt_err err, const char *what) {
    if (err != LT_OK) {
        fail_msg("%s: %s", what, lt_error_message());
    }
}

static const char *temporary(char path[64], const char *name) {
    (void)snprintf(path, 64, "/tmp/lateen_gguf_%d_%s.gguf", (int)getpid(), name);
    return path;
}

/* Logits of N_IDS tokens; free them. */
static float *logits_of(const lt_model *m) {
    const int64_t V = lt_model_get_spec(m)->vocab_size;
    float *all = malloc((size_t)(N_IDS * V) * sizeof *all);
    int32_t ids[N_IDS];
    lt_session *s = NULL;
    for (int i = 0; i < N_IDS; i++) {
        ids[i] = (int32_t)((i * 31 + 7) % V);
    }
    must(lt_session_open(&s, m, 1, N_IDS), "session");
    must(lt_session_eval_all(s, 0, ids, N_IDS, all), "logits");
    lt_session_close(s);
    return all;
}

static void written_and_read_is_the_same(void **state) {
    (void)state;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        char folder[128], path[64];
        lt_model *a = NULL, *b = NULL;
        (void)snprintf(folder, sizeof folder, "tests/golden/model/%s", families[f]);
        must(lt_model_open(&a, folder, NULL), families[f]);
        must(lt_model_save_gguf(a, temporary(path, families[f]), "", LT_GGUF_MIX_F32), families[f]);
        must(lt_model_open(&b, path, NULL), families[f]);
        const size_t bytes = (size_t)(N_IDS * a->spec.vocab_size) * sizeof(float);
        float *x = logits_of(a), *y = logits_of(b);
        if (memcmp(x, y, bytes) != 0) {
            fail_msg("%s: other logits", families[f]);
        }
        unlink(path);
        free(x);
        free(y);
        lt_model_close(a);
        lt_model_close(b);
    }
}

/* As in llama.cpp's converter: element 2 i + j of a head of the biases of q and k is element i +
 * j D / 2 of transformers'; those of v stay in order. */
static void biases_are_in_pairs(void **state) {
    static const struct {
        const char *gguf, *hf;
        bool pairs;
    } rows[] = {{"blk.1.attn_q.bias", "model.layers.1.self_attn.q_proj.bias", true},
                {"blk.1.attn_k.bias", "model.layers.1.self_attn.k_proj.bias", true},
                {"blk.1.attn_v.bias", "model.layers.1.self_attn.v_proj.bias", false}};
    static const char folder[] = "tests/golden/model/llama_bias";
    char path[64];
    lt_model *m = NULL;
    lt_gguf *g = NULL;
    lt_safetensors hf;
    (void)state;
    must(lt_model_open(&m, folder, NULL), folder);
    must(lt_model_save_gguf(m, temporary(path, "pairs"), "", LT_GGUF_MIX_F32), "save");
    must(lt_gguf_open(&g, path), path);
    must(lt_safetensors_open(&hf, "tests/golden/model/llama_bias/model.safetensors"), folder);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        const lt_gguf_tensor *got = lt_gguf_tensor_find(g, rows[k].gguf);
        const lt_safetensor *want = lt_safetensors_find(&hf, rows[k].hf);
        assert_non_null(got);
        assert_non_null(want);
        const int64_t D = m->spec.head_dim, n = want->shape[0];
        float values[256];
        assert_true(n <= 256 && (int64_t)got->dims[0] == n && got->type == LT_GGML_F32);
        lt_convert(values, LT_F32, want->data, want->dtype, (size_t)n);
        for (int64_t i = 0; i < n; i++) {
            const int64_t in = i % D, from = i - in + in / 2 + in % 2 * (D / 2);
            float x;
            memcpy(&x, got->data + (size_t)i * sizeof x, sizeof x);
            assert_true(x == values[rows[k].pairs ? from : i]);
        }
    }
    unlink(path);
    lt_safetensors_close(&hf);
    lt_gguf_close(g);
    lt_model_close(m);
}

/* gpt-oss, for whose limit GGUF has no key, with transformers' weights: llama.cpp's names and
 * shapes, gate and up separate, biases of experts, and the same logits when read back. */
static void gpt_oss_is_preserved_by_gguf(void **state) {
    static const char folder[] = "tests/golden/model/gpt_oss";
    static const struct {
        const char *name;
        int n_dims;
        uint64_t dims[3];
    } want[] = {{"blk.1.attn_sinks.weight", 1, {4, 1, 1}},
                {"blk.1.post_attention_norm.weight", 1, {32, 1, 1}},
                {"blk.1.attn_output.bias", 1, {32, 1, 1}},
                {"blk.1.ffn_gate_inp.bias", 1, {4, 1, 1}},
                {"blk.1.ffn_gate_exps.weight", 3, {32, 24, 4}},
                {"blk.1.ffn_up_exps.weight", 3, {32, 24, 4}},
                {"blk.1.ffn_down_exps.weight", 3, {24, 32, 4}},
                {"blk.1.ffn_gate_exps.bias", 2, {24, 4, 1}},
                {"blk.1.ffn_down_exps.bias", 2, {32, 4, 1}}};
    char path[64];
    lt_model *a = NULL, *b = NULL;
    lt_gguf *g = NULL;
    lt_safetensors hf;
    (void)state;
    must(lt_model_open(&a, folder, NULL), folder);
    a->spec.swiglu_limit = 7.0f; /* The limit of all published files. */
    must(lt_model_save_gguf(a, temporary(path, "gpt_oss_hf"), "", LT_GGUF_MIX_F32), "save");
    must(lt_model_open(&b, path, NULL), path);
    must(lt_gguf_open(&g, path), path);
    must(lt_safetensors_open(&hf, "tests/golden/model/gpt_oss/model.safetensors"), folder);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const lt_gguf_tensor *t = lt_gguf_tensor_find(g, want[i].name);
        if (t == NULL || t->n_dims != want[i].n_dims ||
            memcmp(t->dims, want[i].dims, sizeof want[i].dims) != 0) {
            fail_msg("%s: missing or of another shape", want[i].name);
        }
    }
    /* Up of expert 2: the odd elements of its row. */
    const lt_gguf_tensor *up = lt_gguf_tensor_find(g, "blk.1.ffn_up_exps.bias");
    const lt_safetensor *both = lt_safetensors_find(&hf,
                                                    "model.layers.1.mlp.experts.gate_up_proj_bias");
    float row[48], x;
    lt_convert(row, LT_F32, (const char *)both->data + 2 * sizeof row / 2, LT_BF16, 48);
    for (size_t i = 0; i < 24; i++) {
        memcpy(&x, up->data + (2 * 24 + i) * sizeof x, sizeof x);
        assert_true(x == row[2 * i + 1]);
    }
    float *p = logits_of(a), *q = logits_of(b);
    assert_memory_equal(p, q, (size_t)(N_IDS * a->spec.vocab_size) * sizeof(float));
    unlink(path);
    free(p);
    free(q);
    lt_safetensors_close(&hf);
    lt_gguf_close(g);
    lt_model_close(a);
    lt_model_close(b);
}

static void same_behind_gguf(const lt_model_spec *spec, const char *name) {
    char path[64];
    lt_model *a = NULL, *b = NULL;
    must(lt_model_create(&a, spec, NULL, 5), name);
    must(lt_model_save_gguf(a, temporary(path, name), "", LT_GGUF_MIX_F32), name);
    must(lt_model_open(&b, path, NULL), name);
    for (int64_t i = 0; i < spec->n_layers; i++) {
        assert_int_equal(lt_model_layer(&b->spec, i).window, lt_model_layer(spec, i).window);
    }
    float *x = logits_of(a), *y = logits_of(b);
    if (memcmp(x, y, (size_t)(N_IDS * spec->vocab_size) * sizeof(float)) != 0) {
        fail_msg("%s: other logits", name);
    }
    unlink(path);
    free(x);
    free(y);
    lt_model_close(a);
    lt_model_close(b);
}

/* What differs from a family's defaults is preserved: Apertus without RoPE scaling, Gemma's local
 * base, windows and softcap, and the attention scale that readers infer from 62 layers. */
static void what_differs_from_the_family_is_preserved(void **state) {
    lt_model_spec s = small(LT_FAMILY_APERTUS);
    (void)state;
    s.rope_scaling = LT_ROPE_PLAIN;
    s.rope_factor = 1;
    s.rope_low_freq = s.rope_high_freq = s.rope_original_seq = 0;
    same_behind_gguf(&s, "plain_apertus");

    s = small(LT_FAMILY_LLAMA); /* Every pair rotates: linear scaling under another name. */
    s.rope_scaling = LT_ROPE_PROPORTIONAL;
    s.rope_factor = 2;
    same_behind_gguf(&s, "proportional");

    s = small(LT_FAMILY_SMOLLM3); /* The fourth layer does not rotate. */
    s.n_layers = 5;
    assert_true(s.no_rope[3] && !s.no_rope[2] && !s.no_rope[4]);
    same_behind_gguf(&s, "smollm3");

    s = small(LT_FAMILY_GPT_OSS); /* Windows in every second layer, sinks, biases of experts. */
    s.window = 5;
    s.n_experts = 4;
    s.top_k = 2;
    s.rope_original_seq = 16;
    s.rope_factor = 4;
    s.rope_attention_factor = 0.1 * log(4) + 1;
    same_behind_gguf(&s, "gpt_oss");

    s = small(LT_FAMILY_GEMMA3);
    s.window_every = 2;
    s.rope_theta_local = 500;
    s.final_softcap = 3;
    same_behind_gguf(&s, "local_gemma");

    s.window = s.window_every = 0; /* Without windows, which llama.cpp reads so, too. */
    same_behind_gguf(&s, "gemma_without_windows");
    s = small(LT_FAMILY_QWEN3_MOE);
    s.n_experts = 4;
    s.top_k = 2;
    s.moe_normalise = true;
    s.dense_ffn_width = 0;
    same_behind_gguf(&s, "qwen3_moe");

    s = small(LT_FAMILY_GEMMA2);
    s.attn_softcap = 1.5f;
    s.final_softcap = 3;
    same_behind_gguf(&s, "gemma2");

    s = small(LT_FAMILY_SMOLLM3); /* The fourth layer does not rotate. */
    s.n_layers = 5;
    assert_true(s.no_rope[3] && !s.no_rope[2] && !s.no_rope[4]);
    same_behind_gguf(&s, "smollm3");

    s = small(LT_FAMILY_GEMMA3);
    s.window_every = 2;
    s.n_layers = 62;
    s.width = 40;
    s.embed_scale = sqrtf(40.0f);
    s.attn_scale = 1.0f / sqrtf(10.0f);
    same_behind_gguf(&s, "gemma_27b");
}

/* The attention scale that Gemma's GGUF files imply is the one that config.json gives with the
 * size of a head, for every size; otherwise such a file could not be written as a folder. */
static void both_formats_have_the_same_attention_scale(void **state) {
    lt_model_spec s = small(LT_FAMILY_GEMMA2);
    (void)state;
    s.attn_softcap = s.final_softcap = 3;
    for (s.head_dim = 2; s.head_dim <= 256; s.head_dim += 2) {
        s.attn_scale = lt_gguf_attn_scale(&s);
        must(lt_model_spec_writable(&s), "config.json");
    }
}

/* llama.cpp needs apertus' output.weight even if the head is the embedding; for llama it is left
 * out. */
static void a_tied_head_is_written_if_readers_need_it(void **state) {
    static const lt_family of[] = {LT_FAMILY_APERTUS, LT_FAMILY_LLAMA};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        lt_model_spec s = small(of[i]);
        char path[64];
        lt_model *m = NULL;
        lt_gguf *g = NULL;
        s.tied = true;
        must(lt_model_create(&m, &s, NULL, 5), "model");
        must(lt_model_save_gguf(m, temporary(path, "tied"), "", LT_GGUF_MIX_F32), "save");
        must(lt_gguf_open(&g, path), path);
        assert_int_equal(lt_gguf_tensor_find(g, "output.weight") != NULL,
                         of[i] == LT_FAMILY_APERTUS);
        lt_gguf_close(g);
        lt_model_close(m);
        unlink(path);
    }
}

static void refused(const lt_model_spec *spec, const char *words) {
    char path[64];
    lt_model *m = NULL;
    must(lt_model_create(&m, spec, NULL, 5), words);
    assert_int_equal(lt_model_save_gguf(m, temporary(path, "no"), "", LT_GGUF_MIX_F32),
                     LT_ERR_UNSUPPORTED);
    assert_non_null(strstr(lt_error_message(), words));
    assert_false(lt_file_exists(path));
    lt_model_close(m);
}

/* Put an array of 24 bytes of values in place of the period of gemma3's windows: the file gets 32
 * bytes longer, so that its tensors stay aligned. */
static void write_window_flags(const char *path, lt_gguf_type elem, uint64_t n,
                               const char flags[24]) {
    static const char key[] = "gemma3.attention.sliding_window_pattern";
    const uint32_t types[2] = {LT_GGUF_ARRAY, (uint32_t)elem};
    char *old = NULL;
    size_t bytes = 0;
    FILE *f = NULL;
    must(lt_file_read(&old, &bytes, path, 1 << 26), path);
    const char *at = memmem(old, bytes, key, sizeof key - 1);
    assert_non_null(at);
    const size_t head = (size_t)(at - old) + sizeof key - 1, tail = head + 2 * sizeof(uint32_t);
    f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(old, 1, head, f);
    fwrite(types, sizeof types, 1, f);
    fwrite(&n, sizeof n, 1, f);
    fwrite(flags, 24, 1, f);
    assert_int_equal(fwrite(old + tail, 1, bytes - tail, f), bytes - tail);
    assert_int_equal(fclose(f), 0);
    free(old);
}

/* Check that logits and windows are those of a model that is created with them. */
static void check_windows(const char *path, const lt_model_spec *want) {
    lt_model *a = NULL, *b = NULL;
    must(lt_model_create(&a, want, NULL, 5), "model");
    must(lt_model_open(&b, path, NULL), path);
    for (int64_t i = 0; i < want->n_layers; i++) {
        assert_int_equal(lt_model_layer(&b->spec, i).window, lt_model_layer(want, i).window);
    }
    float *x = logits_of(a), *y = logits_of(b);
    assert_memory_equal(x, y, (size_t)(N_IDS * want->vocab_size) * sizeof(float));
    free(x);
    free(y);
    lt_model_close(a);
    lt_model_close(b);
}

/* GGUF may have a flag for each layer, 1 if it has the window, in place of a period. Both are
 * read; windows without a period are not written, because llama.cpp reads only gemma3's
 * period. */
static void windows_are_read_layer_by_layer(void **state) {
    static const char even[] = {1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0,
                                1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0};
    static const char uneven[] = {1, 0, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1,
                                  1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0};
    static const struct {
        lt_gguf_type elem;
        uint64_t n;
        const char *flags; /* NULL: an error. */
    } cases[] = {{LT_GGUF_BOOL, 24, even},
                 {LT_GGUF_BOOL, 24, uneven},
                 {LT_GGUF_F32, 6, NULL},
                 {LT_GGUF_I32, 6, NULL}};
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        lt_model_spec s = small(LT_FAMILY_GEMMA3);
        char path[64];
        lt_model *m = NULL;
        s.n_layers = 24;
        s.window_every = 6;
        must(lt_model_create(&m, &s, NULL, 5), "model");
        must(lt_model_save_gguf(m, temporary(path, "flags"), "", LT_GGUF_MIX_F32), "save");
        lt_model_close(m);
        write_window_flags(path, cases[c].elem, cases[c].n,
                           cases[c].flags != NULL ? cases[c].flags : even);
        for (int64_t i = 0; i < s.n_layers && cases[c].flags == uneven; i++) {
            s.window_every = 0;
            s.no_window[i] = uneven[i] == 0;
        }
        if (cases[c].flags != NULL) {
            check_windows(path, &s);
        } else {
            assert_int_equal(lt_model_open(&m, path, NULL), LT_ERR_FORMAT);
            assert_non_null(strstr(lt_error_message(), "a flag for each of 24 layers"));
        }
        unlink(path);
        if (cases[c].flags == uneven) {
            refused(&s, "sliding windows in layers that do not repeat with a period");
        }
    }
}

static void other_arithmetic_than_the_architectures_is_refused(void **state) {
    lt_model_spec s = small(LT_FAMILY_GPT2);
    (void)state;
    s.n_kv_heads = 4;
    s.act = LT_ACT_RELU;
    refused(&s, "an activation function other than");
    s = small(LT_FAMILY_LLAMA);
    s.act = LT_ACT_GELU;
    refused(&s, "an activation function other than");
    s.act = LT_ACT_SILU;
    s.gated = false;
    refused(&s, "without a gate");
    s.gated = true;
    s.qk_norm = true;
    refused(&s, "norms of queries");
    s = small(LT_FAMILY_GPT_OSS); /* Readers of its files do not round yarn's range. */
    s.n_experts = 4;
    s.top_k = 2;
    s.rope_truncate = true;
    refused(&s, "yarn whose range is rounded");
    s = small(LT_FAMILY_LLAMA); /* Those of all others round it. */
    s.rope_scaling = LT_ROPE_YARN;
    s.rope_factor = 4;
    s.rope_original_seq = 16;
    s.rope_beta_fast = 32;
    s.rope_beta_slow = 1;
    refused(&s, "yarn whose range is not rounded");
    s = small(LT_FAMILY_GEMMA3);
    s.attn_scale = 0.25f;
    refused(&s, "attention scale");
    s = small(LT_FAMILY_GEMMA3);
    s.window_every = 0;
    refused(&s, "every layer");
    s = small(LT_FAMILY_QWEN3_MOE);
    s.n_experts = 4;
    s.top_k = 2;
    s.moe_normalise = true;
    s.dense[1] = true;
    refused(&s, "layers without experts");
}

/* This Gemma has an attention scale that GGUF cannot express. */
static void what_gguf_can_not_say_is_refused(void **state) {
    char path[64];
    lt_model *m = NULL;
    (void)state;
    must(lt_model_open(&m, "tests/golden/model/gemma3", NULL), "gemma3");
    assert_int_equal(lt_model_save_gguf(m, temporary(path, "gemma3"), "", LT_GGUF_MIX_F32),
                     LT_ERR_UNSUPPORTED);
    assert_false(lt_file_exists(path));
    lt_model_close(m);
}

/* A llama of whole blocks in each mixture: as stored it must be close to the same weights widened
 * to F32 (activations are rounded to 8 bits), and the closer the more bits it has; its rows must
 * not depend on how many run together. */
static lt_model *random_model(int64_t ffn_width) {
    return tiny_llama(256, ffn_width, 500, 64, true);
}

static void check_stored(lt_model *m, lt_gguf_mix mix, double limit) {
    char path[64];
    lt_model *wide = NULL, *stored = NULL;
    double worst = 0.0, most = 0.0;
    must(lt_model_save_gguf(m, temporary(path, "mix"), "", mix), "save");
    must(lt_model_open(&wide, path, NULL), "open");
    must(lt_model_open(&stored, path, &(lt_model_options){.stored = true}), "open as stored");
    assert_non_null(stored->stored);
    float *x = logits_of(wide), *y = logits_of(stored);
    for (int i = 0; i < N_IDS * 500; i++) {
        const double d = (double)x[i] - (double)y[i];
        worst = d > worst ? d : -d > worst ? -d : worst;
        most = (double)x[i] > most ? (double)x[i] : most;
    }
    if (!(worst <= limit * most)) {
        fail_msg("mixture %d, MLP of %d: logits differ by %.3g of %.3g", mix,
                 (int)m->spec.ffn_width, worst, most);
    }
    unlink(path);
    free(x);
    free(y);
    lt_model_close(wide);
    lt_model_close(stored);
}

static void stored_weights_run_as_they_are(void **state) {
    static const double limits[LT_GGUF_MIX_COUNT] = {
        [LT_GGUF_MIX_F32] = 2e-3,    [LT_GGUF_MIX_F16] = 2e-3,    [LT_GGUF_MIX_BF16] = 2e-3,
        [LT_GGUF_MIX_Q8_0] = 5e-2,   [LT_GGUF_MIX_Q4_0] = 5e-2,   [LT_GGUF_MIX_Q4_1] = 5e-2,
        [LT_GGUF_MIX_Q5_0] = 5e-2,   [LT_GGUF_MIX_Q5_1] = 5e-2,   [LT_GGUF_MIX_Q4_K_M] = 5e-2,
        [LT_GGUF_MIX_Q5_K_S] = 5e-2, [LT_GGUF_MIX_Q5_K_M] = 5e-2, [LT_GGUF_MIX_Q6_K] = 5e-2};
    /* odd: gate and up are not whole groups of packed rows. */
    lt_model *m = random_model(512), *odd = random_model(172);
    (void)state;
    for (int mix = 0; mix < LT_GGUF_MIX_COUNT; mix++) {
        check_stored(m, (lt_gguf_mix)mix, limits[mix]);
    }
    /* Its worst logit scatters more (0.057 with the order of sums of a sanitizer build); rows
     * that are packed wrongly would make it a different model. */
    check_stored(odd, LT_GGUF_MIX_Q8_0, 2 * limits[LT_GGUF_MIX_Q8_0]);
    check_stored(odd, LT_GGUF_MIX_Q4_K_M, 2 * limits[LT_GGUF_MIX_Q4_K_M]);
    lt_model_close(m);
    lt_model_close(odd);
}

static void a_token_does_not_depend_on_its_batch(void **state) {
    enum { N = 11, V = 500 };
    char path[64];
    lt_model *m = random_model(512), *stored = NULL;
    static float together[N * V], alone[V];
    const int64_t seqs[N] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    int32_t ids[N];
    lt_session *s = NULL;
    (void)state;
    must(lt_model_save_gguf(m, temporary(path, "batch"), "", LT_GGUF_MIX_Q4_K_M), "save");
    must(lt_model_open(&stored, path, &(lt_model_options){.stored = true}), "open");
    must(lt_session_open(&s, stored, N, 8), "session");
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < N; i++) {
            ids[i] = (i * 41 + step * 7) % V;
        }
        must(lt_session_step(s, seqs, ids, N, together), "step");
    }
    lt_session_truncate(s, 4, 2);
    must(lt_session_eval(s, 4, ids + 4, 1, alone), "alone");
    assert_memory_equal(alone, together + 4 * V, sizeof alone);
    lt_session_close(s);
    lt_model_close(stored);
    lt_model_close(m);
    unlink(path);
}

static void ids_of(const char *tokenizer, const char *text, lt_ids *out) {
    lt_tokenizer *t = NULL;
    lt_tokenizer_scratch *scratch = NULL;
    must(lt_tokenizer_open(&t, tokenizer, NULL), tokenizer);
    must(lt_tokenizer_scratch_open(&scratch, t), "scratch");
    must(lt_tokenizer_encode(t, scratch, text, strlen(text), LT_ENCODE_DEFAULT, out), "encode");
    lt_tokenizer_scratch_close(scratch);
    lt_tokenizer_close(t);
}

/* stories260K with its tokenizer in one file: it encodes like the tokenizer alone. */
static void a_tokenizer_is_in_the_file(void **state) {
    static const char text[] = "Once upon a time, Tim's  dog said \"hi\" \xF0\x9F\x90\xB6.\n";
    const char *model = "tests/golden/stories260k/stories260K.bin",
               *tokenizer = "tests/golden/stories260k/tok512.bin";
    char path[64];
    lt_model *m = NULL;
    (void)state;
    must(lt_model_open(&m, model, NULL), model);
    must(lt_model_save_gguf(m, temporary(path, "stories"), tokenizer, LT_GGUF_MIX_Q8_0), path);
    lt_ids ids[2] = {0};
    for (int i = 0; i < 2; i++) {
        lt_tokenizer *t = NULL;
        lt_tokenizer_scratch *scratch = NULL;
        must(lt_tokenizer_open(&t, i == 0 ? tokenizer : path, NULL), "tokenizer");
        must(lt_tokenizer_scratch_open(&scratch, t), "scratch");
        must(lt_tokenizer_encode(t, scratch, text, sizeof text - 1, LT_ENCODE_DEFAULT, &ids[i]),
             "encode");
        lt_tokenizer_scratch_close(scratch);
        lt_tokenizer_close(t);
    }
    assert_int_equal(ids[0].n, ids[1].n);
    assert_memory_equal(ids[0].data, ids[1].data, ids[0].n * sizeof *ids[0].data);
    lt_ids_free(&ids[0]);
    lt_ids_free(&ids[1]);
    /* Names of special tokens in a text, as llama.cpp reads them with this file. */
    ids_of(path, "a<unk>b</s>", &ids[0]);
    assert_int_equal(ids[0].n, 5);
    assert_memory_equal(ids[0].data, ((uint32_t[]){1, 261, 0, 268, 2}), 5 * sizeof(uint32_t));
    lt_ids_free(&ids[0]);
    lt_model_close(m);
    unlink(path);
}

/* Write a tokenizer.json with another pre-tokenizer. */
static void write_tokenizer(const char *path, const char *regex, bool digits, bool ignore_merges) {
    json_t *root = NULL, *steps = json_array();
    must(lt_json_load(&root, "tests/golden/data/demo_tokenizer.json", (size_t)1 << 24), path);
    if (digits) {
        json_array_append_new(steps,
                              json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 1));
    }
    if (regex != NULL) {
        json_array_append_new(steps,
                              json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern",
                                        "Regex", regex, "behavior", "Isolated", "invert", 0));
    }
    json_array_append_new(steps,
                          json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space",
                                    0, "trim_offsets", 1, "use_regex", regex == NULL));
    json_object_set_new(root, "pre_tokenizer",
                        json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps));
    json_object_set_new(json_object_get(root, "model"), "ignore_merges",
                        json_boolean(ignore_merges));
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
}

static void check_pre(const lt_model *m, const char *json, const char *gguf, const char *want) {
    static const char text[] = "It's 12345 o'clock, HELLOWorld's  end\n\n and\ttwo/three !!";
    lt_ids a = {0}, b = {0};
    lt_gguf *g = NULL;
    lt_gguf_str pre;
    must(lt_model_save_gguf(m, gguf, json, LT_GGUF_MIX_F32), gguf);
    must(lt_gguf_open(&g, gguf), gguf);
    must(lt_gguf_get_str(g, "tokenizer.ggml.pre", &pre), gguf);
    if (!lt_gguf_str_is(pre, want)) {
        fail_msg("pre is '%.*s', expected '%s'", (int)pre.bytes, pre.data, want);
    }
    ids_of(json, text, &a);
    ids_of(gguf, text, &b);
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.data, b.data, a.n * sizeof *a.data);
    lt_ids_free(&a);
    lt_ids_free(&b);
    lt_gguf_close(g);
}

/* The patterns of the families' tokenizer.json, and llama.cpp's names for them. An unknown name
 * alone is refused. */
static void pre_tokenizers_have_their_names(void **state) {
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL         "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define WORD         "[^\\r\\n\\p{L}\\p{N}]?"
    static const char cl100k[] = CONTRACTIONS "|" WORD "\\p{L}+|\\p{N}{1,3}| "
                                              "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL,
                      qwen2[] = CONTRACTIONS "|" WORD "\\p{L}+|\\p{N}| "
                                             "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL,
                      o200k[] = WORD UPPER "*" LOWER "+" CONTRACTIONS "?|" WORD UPPER "+" LOWER
                                           "*" CONTRACTIONS "?|\\p{N}{1,3}| "
                                           "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" TAIL;
    static const struct {
        const char *regex;
        bool digits, ignore_merges;
        const char *pre;
    } cases[] = {
        {cl100k, false, false, "dbrx"},     /* OLMo 2, Phi-4. */
        {cl100k, false, true, "llama-bpe"}, /* Llama 3, SmolLM3. */
        {qwen2, false, false, "qwen2"},     /* Qwen3-MoE. */
        {NULL, true, false, "smollm"},      /* Granite. */
        {o200k, false, true, "gpt-4o"},     /* gpt-oss. */
        {o200k, false, false, "gpt-4o"},    /* Phi-4-mini. */
    };
    char json[64], gguf[64];
    lt_model_spec s = small(LT_FAMILY_LLAMA);
    lt_model *m = NULL;
    lt_tokenizer *t = NULL;
    char *bytes, *name;
    size_t n;
    (void)state;
    s.vocab_size = 1100;
    must(lt_model_create(&m, &s, NULL, 1), "model");
    (void)snprintf(json, sizeof json, "/tmp/lateen_pre_%d.json", (int)getpid());
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_tokenizer(json, cases[i].regex, cases[i].digits, cases[i].ignore_merges);
        check_pre(m, json, temporary(gguf, "pre"), cases[i].pre);
    }
    must(lt_file_read(&bytes, &n, gguf, (size_t)1 << 26), gguf);
    name = memmem(bytes, n, "gpt-4o", 6);
    assert_non_null(name);
    name[5] = 'z';
    must(lt_file_write_atomic(gguf, bytes, n), gguf);
    assert_int_equal(lt_tokenizer_open(&t, gguf, NULL), LT_ERR_UNSUPPORTED);
    assert_non_null(strstr(lt_error_message(), "gpt-4z"));
    free(bytes);
    unlink(json);
    unlink(gguf);
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_and_read_is_the_same),
        cmocka_unit_test(biases_are_in_pairs),
        cmocka_unit_test(gpt_oss_is_preserved_by_gguf),
        cmocka_unit_test(what_differs_from_the_family_is_preserved),
        cmocka_unit_test(both_formats_have_the_same_attention_scale),
        cmocka_unit_test(windows_are_read_layer_by_layer),
        cmocka_unit_test(a_tied_head_is_written_if_readers_need_it),
        cmocka_unit_test(other_arithmetic_than_the_architectures_is_refused),
        cmocka_unit_test(what_gguf_can_not_say_is_refused),
        cmocka_unit_test(stored_weights_run_as_they_are),
        cmocka_unit_test(a_token_does_not_depend_on_its_batch),
        cmocka_unit_test(a_tokenizer_is_in_the_file),
        cmocka_unit_test(pre_tokenizers_have_their_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
