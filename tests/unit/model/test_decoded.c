/* Adapters on weights in block types (model/files/decoded.h): losses, gradients and logits have
 * the bits that they have on the decoded numbers held in F32; if a matrix is multiplied in
 * pieces, they differ by the rounding of sums. */
#include "unit/model/adapters.h"
#include "unit/model/tiny.h"

#include <unistd.h>

#include "base/file.h"
#include "model/files/gguf_save.h"
#include "model/files/stored_weights.h"
#include "model/infer/paged_forward.h"
#include "parallel/layout.h"

#define WIDTH 256
#define VOCAB 128
/* F32 sums of 70,000 terms in another order, in gradients that are sums of these. */
#define TOLERANCE_PIECES 2e-5

static void says(const char *text) {
    if (strstr(lt_error_message(), text) == NULL) {
        fail_msg("'%s' is not in: %s", text, lt_error_message());
    }
}

static lt_model *open_decoded(const char *path, lt_dtype type) {
    lt_model *m = NULL;
    must(lt_model_open(&m, path,
                       &(lt_model_options){.stored = true, .decoded = true, .stored_as = type}),
         path);
    assert_non_null(m->stored);
    return m;
}

/* The logits after 15 tokens by the passes of the serving engine, which draws the answers that a
 * run with adapters learns from. It is opened before any other pass has derived what DoRA needs. */
static void engine_logits(float *out, const lt_model *m, const int32_t *tokens) {
    int32_t positions[15], last = 14, page = 0;
    const int32_t q_start[2] = {0, 15}, kv_len = 15;
    lt_paged_forward *f = NULL;
    float *const *found;
    must(lt_paged_forward_open(&f, m,
                               &(lt_paged_forward_options){.max_rows = 16,
                                                           .max_seqs = 1,
                                                           .max_out = 1,
                                                           .out_rows = 1,
                                                           .max_seq = 16,
                                                           .n_pages = 1,
                                                           .page_tokens = 16,
                                                           .max_pages = 1,
                                                           .cache_dtype = LT_F32,
                                                           .value_dtype = LT_F32}),
         "forward");
    for (int32_t i = 0; i < 15; i++) {
        positions[i] = i; /* They are the slots of page 0, too. */
    }
    must(lt_paged_forward_run(f, &(lt_paged_forward_rows){.n_rows = 15,
                                                          .n_seqs = 1,
                                                          .n_out = 1,
                                                          .q_max = 15,
                                                          .kv_max = 15,
                                                          .max_pages = 1,
                                                          .ids = tokens,
                                                          .positions = positions,
                                                          .slots = positions,
                                                          .q_start = q_start,
                                                          .kv_len = &kv_len,
                                                          .table = &page,
                                                          .out_rows = &last}),
         "run");
    must(lt_paged_forward_logits(f, 0, 1, NULL, &found), "logits");
    memcpy(out, found[0], (size_t)m->spec.vocab_size * sizeof *out);
    lt_paged_forward_close(f);
}

static void same_bits(lt_model *m, lt_model *plain, const char *targets, bool dora) {
    int32_t tokens[48], labels[48];
    const lt_pass_batch b = {.batch = 3, .seq = 16, .tokens = tokens, .labels = labels};
    const int64_t V = m->spec.vocab_size;
    lt_model *const both[] = {m, plain};
    float *got[2], logits[2][3 * VOCAB] = {{0}}; /* The vocabulary may be smaller. */
    size_t bytes = 0;
    for (int i = 0; i < 48; i++) {
        tokens[i] = (int32_t)(lt_rng_mix((uint64_t)i) % (uint64_t)V);
        labels[i] = i % 5 == 0 ? -1 : (tokens[i] * 7 + 1) % (int32_t)V;
    }
    for (int side = 0; side < 2; side++) {
        lt_lora *l = NULL;
        lt_session *s = NULL;
        const int64_t seq = 0;
        const lt_lora_options o = {.rank = 3, .alpha = 4.5, .targets = targets, .dora = dora};
        must(lt_lora_open(&l, both[side], &o, 1), "adapters");
        fill(l);
        engine_logits(logits[side] + 2 * VOCAB, both[side], tokens);
        bytes = lt_param_buffer_bytes(&l->params->table, LT_F32);
        got[side] = gradients(both[side], &b, side == 0 ? LT_RECOMPUTE_FULL : LT_RECOMPUTE_NONE, 2);
        must(lt_session_open(&s, both[side], 1, 16), "session");
        must(lt_session_eval(s, 0, tokens, 15, logits[side]), "prompt");
        must(lt_session_step(s, &seq, tokens + 15, 1, logits[side] + VOCAB), "step");
        lt_session_close(s);
        lt_lora_close(l);
    }
    assert_memory_equal(got[0], got[1], bytes);
    for (int i = 0; i < 3 * VOCAB; i++) { /* With block types, keys and values are in 16 bits. */
        assert_true(fabsf(logits[0][i] - logits[1][i]) < 0.02f);
    }
    free(got[0]);
    free(got[1]);
}

/* Save `from`, which is closed, and open it twice: with weights of this type, F32 for those of the
 * file; and with their numbers. The files are removed. */
static void open_both(lt_model *both[2], lt_model *from, bool as_folder, lt_gguf_mix mix,
                      lt_dtype type) {
    char folder[] = "/tmp/lateen-decoded-XXXXXX", path[LT_PATH_BYTES];
    assert_non_null(mkdtemp(folder));
    must(lt_path_join(path, folder, as_folder ? "model" : "model.gguf"), path);
    must(as_folder ? lt_model_save(from, path, LT_BF16, 0)
                   : lt_model_save_gguf(from, path, "", mix),
         path);
    lt_model_close(from);
    both[0] = open_decoded(path, type);
    must(lt_model_open(&both[1], path, NULL), path);
    if (type != LT_F32) {
        replace_by_blocks(both[1], both[0]);
    }
    assert_int_equal(lt_file_remove_tree(folder), LT_OK); /* What is mapped stays. */
}

static void check_bytes(const lt_model *m, size_t i, double most) {
    const double each = (double)lt_model_bytes(m) / (double)lt_model_spec_params(&m->spec);
    if (each > most) {
        fail_msg("case %zu: %.2f bytes a parameter", i, each);
    }
}

/* q and k of a GGUF have their rows in pairs; a folder is mapped as BF16; types are those of the
 * file or others. */
static void blocks_equal_their_decoded_numbers(void **state) {
    static const struct {
        lt_dtype type; /* F32: as stored. */
        lt_gguf_mix mix;
        bool folder, tied;
        double most; /* Most bytes per parameter. */
    } cases[] = {{LT_F32, LT_GGUF_MIX_Q8_0, false, true, 1.4},
                 {LT_F32, LT_GGUF_MIX_Q4_K_M, false, false, 1.0},
                 {LT_NF4, LT_GGUF_MIX_F32, false, false, 0.9},
                 {LT_NF4, LT_GGUF_MIX_F32, true, true, 0.7},
                 {LT_NF4_DOUBLE, LT_GGUF_MIX_F32, false, true, 0.7},
                 {LT_NF4_DOUBLE, LT_GGUF_MIX_F32, true, false, 0.7},
                 {LT_Q4_K, LT_GGUF_MIX_Q8_0, false, true, 0.6},
                 {LT_F32, LT_GGUF_MIX_F32, true, false, 2.1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_model *from = tiny_llama(WIDTH, WIDTH, VOCAB, 64, cases[i].tied), *both[2];
        open_both(both, from, cases[i].folder, cases[i].mix, cases[i].type);
        lt_model *const m = both[0];
        const bool nf4 = cases[i].type == LT_NF4 || cases[i].type == LT_NF4_DOUBLE;
        assert_int_equal(nf4, cases[i].type != LT_F32 &&
                                  m->stored[0].ranges[0].w.dtype != cases[i].type);
        check_bytes(m, i, cases[i].most);
        same_bits(m, both[1], LT_LORA_ALL, false);
        if (i % 2 == 1) {
            same_bits(m, both[1], LT_LORA_ALL, true);
        }
        lt_model_close(m);
        lt_model_close(both[1]);
    }
}

/* Of experts, too: gate and up of a GGUF are one tensor each, of all experts; those of a folder are
 * a tensor for each expert. */
static void experts_equal_their_decoded_numbers(void **state) {
    static const struct {
        lt_family family;
        lt_dtype type; /* F32: as stored. */
        lt_gguf_mix mix;
        bool folder;
        double most;       /* Most bytes per parameter. */
        int64_t n_experts; /* Of 40, not all are decoded at once. */
    } cases[] = {{LT_FAMILY_MIXTRAL, LT_F32, LT_GGUF_MIX_Q8_0, false, 1.2, 40},
                 {LT_FAMILY_QWEN3_MOE, LT_F32, LT_GGUF_MIX_Q4_K_M, false, 0.8, 5},
                 {LT_FAMILY_QWEN3_MOE, LT_NF4, LT_GGUF_MIX_F32, false, 0.8, 5},
                 {LT_FAMILY_MIXTRAL, LT_NF4, LT_GGUF_MIX_F32, true, 0.8, 5},
                 {LT_FAMILY_QWEN3_MOE, LT_NF4_DOUBLE, LT_GGUF_MIX_F32, true, 0.8, 5},
                 {LT_FAMILY_MIXTRAL, LT_F32, LT_GGUF_MIX_F32, true, 2.1, 5}};
    static const char *const targets[] = {LT_LORA_ALL, "q_proj,gate_up_proj,down_proj"};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_model *from = tiny_mixture(cases[i].family, WIDTH, WIDTH, VOCAB, cases[i].n_experts, 2),
                 *both[2];
        open_both(both, from, cases[i].folder, cases[i].mix, cases[i].type);
        lt_model *const m = both[0];
        const lt_stored_weight *up = &m->stored[lt_param_index(&m->table, LT_PARAM_UP, 1)];
        /* Gate and up are copied as one, or stay where they are. */
        assert_int_equal(up->n_ranges, cases[i].type == LT_F32 ? 2 : 1);
        assert_int_equal(up->ranges[0].n_experts, cases[i].n_experts);
        assert_int_equal(up->ranges[0].each != NULL, cases[i].folder && cases[i].type == LT_F32);
        check_bytes(m, i, cases[i].most);
        same_bits(m, both[1], targets[i % 2], false);
        lt_model_close(m);
        lt_model_close(both[1]);
    }
}

/* Experts in MXFP4, with their scales in tensors of their own, are kept as Q5_0. */
static void experts_in_mxfp4(void **state) {
    static const char folder[] = GOLDEN_ROOT "gpt_oss_mxfp4";
    lt_model *m = open_decoded(folder, LT_F32), *plain = NULL;
    (void)state;
    must(lt_model_open(&plain, folder, NULL), folder);
    for (int i = 0; i < 2; i++) {
        const lt_param_kind kind = i == 0 ? LT_PARAM_UP : LT_PARAM_DOWN;
        const lt_stored_weight *h = &m->stored[lt_param_index(&m->table, kind, 1)];
        assert_int_equal(h->n_ranges, 1);
        assert_int_equal(h->ranges[0].w.dtype, LT_Q5_0);
    }
    same_bits(m, plain, "q_proj,o_proj", false);
    lt_model_close(m);
    lt_model_close(plain);
}

/* The numbers that the model holds of a matrix in blocks; free them. */
static float *numbers_of(const lt_model *m, int param) {
    const lt_stored_weight *h = &m->stored[param];
    float *all = calloc((size_t)m->table.params[param].local_count, sizeof *all);
    assert_non_null(all);
    for (int j = 0; j < h->n_ranges; j++) {
        const lt_tensor *w = &h->ranges[j].w;
        const int64_t n = w->shape[0] * w->shape[1];
        float *to = calloc((size_t)n, sizeof *to);
        assert_non_null(to);
        if (w->dtype == LT_NF4_DOUBLE) {
            lt_nf4_double_decode(to, w->data, h->ranges[j].scales.data, 0, n / LT_BLOCK_NF4);
        } else {
            lt_block_decode(to, w->dtype, w->data, (size_t)n);
        }
        if (h->ranges[j].n_experts > 0) {
            to_experts(&m->table.params[param], &h->ranges[j], all, to);
        } else {
            memcpy(all + h->ranges[j].first_row * w->shape[1], to, (size_t)n * sizeof *to);
        }
        free(to);
    }
    return all;
}

/* The part that a rank of a mesh holds equals that part of the whole model, bit for bit, and
 * takes the announced number of bytes. */
static void check_part(const char *path, const lt_model *whole, lt_dtype type, const char *mesh,
                       int rank) {
    lt_layout layout;
    lt_mesh_shape shape;
    lt_model *m = NULL;
    size_t bytes = 0;
    must(lt_mesh_parse(&shape, mesh), mesh);
    must(lt_layout_open(&layout, &whole->spec, &shape, rank), mesh);
    const lt_partition part = lt_layout_partition(&layout);
    const lt_model_options o = {
        .stored = true, .decoded = true, .stored_as = type, .partition = &part};
    must(lt_model_open(&m, path, &o), path);
    must(lt_stored_weights_measure(&bytes, path, &o, false), path);
    assert_int_equal(lt_model_bytes(m), bytes);
    assert_true(bytes < lt_model_bytes(whole));
    for (int i = 0; i < m->table.n_params; i++) {
        const lt_param *p = &m->table.params[i];
        const bool has = m->stored[i].n_ranges > 0;
        assert_int_equal(has, p->n_boxes > 0 && whole->stored[i].n_ranges > 0);
        if (has) {
            float *const got = numbers_of(m, i), *const want = numbers_of(whole, i);
            for (int64_t at = 0, run; at < p->local_count; at += run) {
                const int64_t index = lt_param_whole_index(&m->table, p, at, &run);
                assert_memory_equal(got + at, want + index, (size_t)run * sizeof *got);
            }
            free(got);
            free(want);
        }
    }
    lt_model_close(m);
}

static void parts_of_ranks(void **state) {
    static const struct {
        lt_dtype type;
        lt_gguf_mix mix;
        bool folder;
    } cases[] = {{LT_F32, LT_GGUF_MIX_Q8_0, false},
                 {LT_Q4_0, LT_GGUF_MIX_Q8_0, false},
                 {LT_NF4, LT_GGUF_MIX_F32, false},
                 {LT_NF4_DOUBLE, LT_GGUF_MIX_F32, true}};
    static const char *const meshes[] = {"tp=2", "pp=2", "pp=2,tp=2"};
    char folder[] = "/tmp/lateen-parts-XXXXXX", path[LT_PATH_BYTES];
    lt_model *from = tiny_llama(128, 128, 64, 64, false), *m = NULL;
    (void)state;
    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        must(lt_path_join(path, folder, cases[i].folder ? "model" : "model.gguf"), path);
        must(cases[i].folder ? lt_model_save(from, path, LT_BF16, 0)
                             : lt_model_save_gguf(from, path, "", cases[i].mix),
             path);
        lt_model *whole = open_decoded(path, cases[i].type);
        for (size_t k = 0; k < sizeof meshes / sizeof *meshes; k++) {
            for (int rank = 0; rank < (k == 2 ? 4 : 2); rank++) {
                check_part(path, whole, cases[i].type, meshes[k], rank);
            }
        }
        lt_model_close(whole);
    }
    lt_model_close(from);
    /* Ranks that divide the experts. */
    from = tiny_mixture(LT_FAMILY_MIXTRAL, 128, 128, 64, 4, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        must(lt_path_join(path, folder, cases[i].folder ? "experts" : "experts.gguf"), path);
        must(cases[i].folder ? lt_model_save(from, path, LT_BF16, 0)
                             : lt_model_save_gguf(from, path, "", cases[i].mix),
             path);
        lt_model *whole = open_decoded(path, cases[i].type);
        for (int rank = 0; rank < 2; rank++) {
            check_part(path, whole, cases[i].type, "dp=2,ep=2", rank);
        }
        lt_model_close(whole);
    }
    lt_model_close(from);
    /* Neither blocks that are kept nor those of the file are cut. */
    from = tiny_llama(256, 256, 32, 64, true);
    must(lt_path_join(path, folder, "model.gguf"), path);
    must(lt_model_save_gguf(from, path, "", LT_GGUF_MIX_Q4_K_M), path);
    lt_layout layout;
    lt_mesh_shape shape;
    must(lt_mesh_parse(&shape, "tp=2"), "mesh");
    must(lt_layout_open(&layout, &from->spec, &shape, 1), "mesh");
    const lt_partition part = lt_layout_partition(&layout);
    for (int same = 0; same < 2; same++) {
        const lt_model_options o = {.stored = true,
                                    .decoded = true,
                                    .stored_as = same ? LT_F32 : LT_Q8_0,
                                    .partition = &part};
        assert_int_equal(lt_model_open(&m, path, &o), LT_ERR_UNSUPPORTED);
        says("layers.0.attn_out: ranks divide its rows of 256 numbers into 128 each, which are not "
             "whole blocks of 256 (Q4_K)");
    }
    lt_model_close(from);
    assert_int_equal(lt_file_remove_tree(folder), LT_OK);
}

/* An output head with more numbers than are decoded at a time. */
static void products_in_pieces(void **state) {
    const lt_model_options blocks = {.stored = true, .decoded = true, .stored_as = LT_Q8_0};
    lt_model *from = tiny_llama(64, 64, 70000, 64, true), *m[2] = {NULL, NULL};
    int32_t tokens[4] = {3, 69999, 17, 66000}, labels[4] = {69999, 17, 66000, 5};
    const lt_pass_batch b = {.batch = 1, .seq = 4, .tokens = tokens, .labels = labels};
    float *got[2];
    double loss[2], norm = 0.0, apart = 0.0;
    int64_t n = 0;
    (void)state;
    must(lt_model_create(&m[0], &from->spec, &blocks, 3), "blocks");
    m[1] = from;
    replace_by_blocks(from, m[0]);
    for (int side = 0; side < 2; side++) {
        lt_lora *l = NULL;
        lt_pass *p = NULL;
        lt_pass_result r;
        must(lt_lora_open(&l, m[side], &adapters_of_all, 1), "adapters");
        fill(l);
        n = l->params->table.n_elements;
        got[side] = gradients(m[side], &b, LT_RECOMPUTE_NONE, 1);
        must(lt_pass_open(&p, m[side], &(lt_pass_options){.batch = 1, .seq = 4}), "pass");
        must(lt_pass_eval(p, &b, &r, NULL), "eval");
        loss[side] = r.loss_sum;
        lt_pass_close(p);
        lt_lora_close(l);
    }
    for (int64_t i = 0; i < n; i++) {
        norm += (double)got[1][i] * (double)got[1][i];
        apart += pow((double)got[0][i] - (double)got[1][i], 2.0);
    }
    assert_true(norm > 0.0 && sqrt(apart) < TOLERANCE_PIECES * sqrt(norm));
    assert_true(fabs(loss[0] - loss[1]) < 1e-6 * loss[1]);
    free(got[0]);
    free(got[1]);
    lt_model_close(m[0]);
    lt_model_close(m[1]);
}

static void what_cannot_be_decoded_is_refused(void **state) {
    lt_model *m = NULL;
    lt_pass *p = NULL;
    (void)state;
    assert_int_equal(
        lt_model_open(&m, "tests/golden/sft",
                      &(lt_model_options){.stored = true, .decoded = true, .stored_as = LT_NF4}),
        LT_ERR_UNSUPPORTED);
    says("no matrix of this model can be of NF4: rows of 24 numbers are not whole blocks of 64");
    m = open_decoded("tests/golden/sft", LT_F32);
    assert_int_equal(lt_pass_open(&p, m, &(lt_pass_options){.batch = 1, .seq = 8, .train = true}),
                     LT_ERR_STATE);
    says("weights as they are stored cannot be trained");
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_equal_their_decoded_numbers),
        cmocka_unit_test(experts_equal_their_decoded_numbers),
        cmocka_unit_test(experts_in_mxfp4),
        cmocka_unit_test(parts_of_ranks),
        cmocka_unit_test(products_in_pieces),
        cmocka_unit_test(what_cannot_be_decoded_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
