/* Folders of draft heads that do not match their model, or are invalid, are refused with a
 * message that names the fault. */
#include "unit/serve/draft_heads.h"

#include <sys/stat.h>

static char folder[] = "/tmp/lateen-draft-head-XXXXXX";

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

/* A change of the golden head: a key of config.json, a tensor that is left out or renamed, a
 * number of a map, missing rows. */
typedef struct {
    const char *key, *value; /* JSON; value NULL: none. */
    const char *also, *also_value;
    const char *drop, *renamed; /* renamed NULL: none. */
    const char *map;            /* d2t or t2d. */
    int64_t at, number;
    const char *cut;  /* A tensor that loses its last row. */
    const char *deep; /* A vector that gets a second dimension of 1. */
    lt_err err;
    const char *message;
} fault;

enum { MOST_TENSORS = 80 };
static lt_safetensor_out out[MOST_TENSORS];
static lt_safetensor_memory memory[MOST_TENSORS];

/* Add the tensors of a file to the first n. */
static size_t put_faulty(const lt_safetensors *file, const fault *f, size_t n) {
    static int64_t d2t[64];
    static char t2d[128];
    for (size_t i = 0; i < file->n_tensors; i++) {
        const lt_safetensor *t = &file->tensors[i];
        const bool dropped = f->drop != NULL && strcmp(f->drop, t->name) == 0;
        lt_safetensor_out *o = &out[n];
        if (dropped && f->renamed == NULL) {
            continue;
        }
        assert_true(n < MOST_TENSORS);
        memory[n] = (lt_safetensor_memory){t->data, lt_dtype_bytes(t->dtype)};
        *o = (lt_safetensor_out){.name = dropped ? f->renamed : t->name,
                                 .dtype = t->dtype,
                                 .n_dims = t->n_dims,
                                 .fill = lt_safetensor_fill_memory,
                                 .ctx = &memory[n]};
        memcpy(o->shape, t->shape, sizeof o->shape);
        if (f->map != NULL && strcmp(f->map, t->name) == 0) {
            const bool ids = t->dtype == LT_I64;
            assert_true(t->bytes <= (ids ? sizeof d2t : sizeof t2d));
            memory[n].data = ids ? (void *)d2t : (void *)t2d;
            memcpy(ids ? (void *)d2t : (void *)t2d, t->data, t->bytes);
            if (ids) {
                d2t[f->at] = f->number;
            } else {
                t2d[f->at] = (char)f->number;
            }
        }
        if (f->deep != NULL && strcmp(f->deep, t->name) == 0) {
            o->n_dims = 2;
            o->shape[1] = 1;
        }
        o->shape[0] -= f->cut != NULL && strcmp(f->cut, t->name) == 0;
        n++;
    }
    return n;
}

static void write_faulty(int format, const fault *f) {
    static const char *const names[FORMATS][2] = {
        {"model.safetensors", NULL},
        {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}};
    static char path[256];
    lt_safetensors files[2] = {0};
    json_t *config;
    char *text;
    size_t n = 0;
    snprintf(path, sizeof path, "%s/config.json", formats[format].head);
    must(lt_json_load(&config, path, 1 << 16), "config");
    if (f->key != NULL) {
        (void)json_object_set_new(config, f->key, json_loads(f->value, JSON_DECODE_ANY, NULL));
    }
    if (f->also != NULL) {
        (void)json_object_set_new(config, f->also,
                                  json_loads(f->also_value, JSON_DECODE_ANY, NULL));
    }
    text = json_dumps(config, 0);
    snprintf(path, sizeof path, "%s/config.json", folder);
    write_text(path, text);
    free(text);
    json_decref(config);
    for (int i = 0; i < 2 && names[format][i] != NULL; i++) {
        snprintf(path, sizeof path, "%s/%s", formats[format].head, names[format][i]);
        must(lt_safetensors_open(&files[i], path), path);
        n = put_faulty(&files[i], f, n);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    must(lt_safetensors_write(path, out, n, NULL, NULL), "a head");
    lt_safetensors_close(&files[0]);
    lt_safetensors_close(&files[1]);
}

static void remove_faulty(void) {
    char path[256];
    snprintf(path, sizeof path, "%s/config.json", folder);
    (void)unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

#define LAYER "model.mtp_layers.0."
static void own_layers_that_do_not_fit_are_refused(void **state) {
    static const fault faults[] = {
        {.key = "num_nextn_predict_layers",
         .value = "2",
         .err = LT_ERR_FORMAT,
         .message = "a tensor is missing: model.mtp_layers.1.input_proj.weight"},
        {.key = "num_nextn_predict_layers",
         .value = "9",
         .err = LT_ERR_UNSUPPORTED,
         .message = "num_nextn_predict_layers is 9; 1 to 8 layers"},
        {.key = "num_nextn_predict_layers",
         .value = "-1",
         .err = LT_ERR_UNSUPPORTED,
         .message = "num_nextn_predict_layers is -1; 1 to 8 layers"},
        {.key = "num_nextn_predict_layers",
         .value = "0",
         .err = LT_ERR_UNSUPPORTED,
         .message = "architecture MiMoForCausalLM; a draft head is an EAGLE-3 head"},
        {.key = "use_sliding_window",
         .value = "true",
         .err = LT_OK}, /* Windows begin after max_window_layers, 3. */
        {.key = "use_sliding_window",
         .value = "true",
         .also = "max_window_layers",
         .also_value = "0",
         .err = LT_ERR_UNSUPPORTED,
         .message = "its first layer has a window of 32768 tokens"},
        {.key = "hidden_size",
         .value = "64",
         .err = LT_ERR_UNSUPPORTED,
         .message = "has width 64; the served model has width 32 and 80 tokens"},
        {.key = "vocab_size",
         .value = "96",
         .err = LT_ERR_UNSUPPORTED,
         .message = "with 96 tokens"},
        {.drop = LAYER "input_proj.weight",
         .err = LT_ERR_FORMAT,
         .message = "a tensor is missing: " LAYER "input_proj.weight"},
        {.drop = LAYER "self_attn.k_proj.bias",
         .err = LT_ERR_FORMAT,
         .message = "a tensor is missing: " LAYER "self_attn.k_proj.bias"},
        {.drop = LAYER "final_layernorm.weight",
         .renamed = "model.mtp_layers.1.final_layernorm.weight",
         .err = LT_ERR_UNSUPPORTED,
         .message = "model.mtp_layers.1.final_layernorm.weight is none of the layers of multi-"},
        {.cut = LAYER "self_attn.q_proj.bias",
         .err = LT_ERR_FORMAT,
         .message = "q_proj.bias is 31 x 1; by config.json it is 32 x 1"},
        {.cut = LAYER "mlp.down_proj.weight",
         .err = LT_ERR_FORMAT,
         .message = "down_proj.weight is 31 x 48; by config.json it is 32 x 48"}};
    golden g;
    (void)state;
    open_golden_of(&g, OWN_LAYER, LT_F32, NULL);
    snprintf(folder, sizeof folder, "/tmp/lateen-draft-head-XXXXXX");
    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        lt_draft_head *h = NULL;
        write_faulty(OWN_LAYER, &faults[i]);
        if (lt_draft_head_open(&h, g.model, folder) != faults[i].err ||
            (h == NULL && strstr(lt_error_message(), faults[i].message) == NULL)) {
            fail_msg("%zu: '%s' is not '%s'", i, lt_error_message(), faults[i].message);
        }
        lt_draft_head_close(h);
    }
    remove_faulty();
    close_golden(&g);
}

static void heads_that_do_not_fit_are_refused(void **state) {
    static const fault faults[] = {
        {.key = "architectures",
         .value = "[\"LlamaForCausalLM\"]",
         .err = LT_ERR_UNSUPPORTED,
         .message = "architecture LlamaForCausalLM; a draft head is"},
        {.key = "num_nextn_predict_layers",
         .value = "1",
         .err = LT_ERR_UNSUPPORTED,
         .message = "beside layers of qwen2; this model is llama, the served one llama"},
        {.drop = "fc.weight",
         .renamed = "model.layers.61.eh_proj.weight",
         .err = LT_ERR_UNSUPPORTED,
         .message = "tensor model.layers.61.eh_proj.weight is none of an EAGLE-3 head"},
        {.drop = "norm.weight",
         .renamed = "norm2.weight",
         .err = LT_ERR_UNSUPPORTED,
         .message = "tensor norm2.weight is none of an EAGLE-3 head"},
        {.key = "num_hidden_layers",
         .value = "2",
         .err = LT_ERR_UNSUPPORTED,
         .message = "num_hidden_layers is 2"},
        {.key = "attention_bias", .value = "true", .err = LT_ERR_UNSUPPORTED, .message = "biases"},
        {.key = "norm_before_residual",
         .value = "true",
         .err = LT_ERR_UNSUPPORTED,
         .message = "before its norm"},
        {.key = "hidden_size",
         .value = "64",
         .err = LT_ERR_UNSUPPORTED,
         .message = "has width 64; the served model has width 32 and 80 tokens"},
        {.key = "target_hidden_size",
         .value = "48",
         .err = LT_ERR_UNSUPPORTED,
         .message = "for a model of width 48"},
        {.key = "vocab_size",
         .value = "96",
         .err = LT_ERR_UNSUPPORTED,
         .message = "with 96 tokens"},
        {.key = "draft_vocab_size",
         .value = "81",
         .err = LT_ERR_FORMAT,
         .message = "draft_vocab_size is 81; it may be 1 to vocab_size, 80"},
        {.key = "draft_vocab_size",
         .value = "40",
         .err = LT_ERR_FORMAT,
         .message = "lm_head.weight is 48 x 32; by config.json it is 40 x 32"},
        {.key = "intermediate_size",
         .value = "64",
         .err = LT_ERR_FORMAT,
         .message = "gate_proj.weight is 48 x 32; by config.json it is 64 x 32"},
        {.key = "eagle_config",
         .value = "{\"eagle_aux_hidden_state_layer_ids\": [1, 3, 6]}",
         .err = LT_ERR_UNSUPPORTED,
         .message = "is [1,3,6]; the hidden states that enter layers 2, "
                    "4 and 5 are read"},
        {.drop = "midlayer.hidden_norm.weight",
         .err = LT_ERR_FORMAT,
         .message = "a tensor is missing: midlayer.hidden_norm.weight"},
        {.drop = "d2t",
         .err = LT_ERR_FORMAT,
         .message = "d2t is missing: the head has 48 of the 80 tokens"},
        {.cut = "fc.weight",
         .err = LT_ERR_FORMAT,
         .message = "fc.weight is 31 x 96; by config.json it is 32 x 96"},
        {.deep = "norm.weight",
         .err = LT_ERR_FORMAT,
         .message = "tensor norm.weight has 2 dimensions, not 1"},
        {.map = "d2t",
         .at = 5,
         .number = 75,
         .err = LT_ERR_FORMAT,
         .message = "d2t[5] is 75: token 5 + 75 is none of the 80"},
        {.map = "d2t", .at = 5, .number = -6, .err = LT_ERR_FORMAT, .message = "d2t[5] is -6"},
        {.map = "d2t", .at = 47, .number = INT64_MAX, .err = LT_ERR_FORMAT, .message = "d2t[47]"},
        {.cut = "t2d", .err = LT_ERR_FORMAT, .message = "t2d has 79 elements"}};
    golden g;
    lt_draft_head *h = NULL;
    char path[256];
    (void)state;
    open_golden_of(&g, EAGLE_3, LT_F32, NULL);
    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        write_faulty(EAGLE_3, &faults[i]);
        if (lt_draft_head_open(&h, g.model, folder) != faults[i].err ||
            strstr(lt_error_message(), faults[i].message) == NULL) {
            fail_msg("'%s' is not '%s'", lt_error_message(), faults[i].message);
        }
    }
    for (int at = 0; at < 80; at += 79) { /* One that t2d has and d2t lacks, or the reverse. */
        const lt_safetensor *t;
        lt_safetensors head;
        must(lt_safetensors_open(&head, GOLDEN "/head/model.safetensors"), "head");
        t = lt_safetensors_find(&head, "t2d");
        write_faulty(EAGLE_3, &(fault){.map = "t2d", .at = at, .number = t->data[at] == 0});
        lt_safetensors_close(&head);
        assert_int_equal(lt_draft_head_open(&h, g.model, folder), LT_ERR_FORMAT);
        assert_non_null(strstr(lt_error_message(), "t2d and d2t disagree about token"));
    }
    /* What is allowed: layers given as the output of those before, and no t2d. */
    write_faulty(EAGLE_3, &(fault){.key = "eagle_config",
                                   .value = "{\"eagle_aux_hidden_state_layer_ids\": [1, 3, 4]}",
                                   .drop = "t2d"});
    must(lt_draft_head_open(&h, g.model, folder), "a head without t2d");
    lt_draft_head_close(h);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(lt_draft_head_open(&h, g.model, folder), LT_ERR_NOT_FOUND);
    assert_int_equal(lt_draft_head_open(&h, g.model, GOLDEN "/expected.safetensors"),
                     LT_ERR_NOT_FOUND);
    assert_non_null(strstr(lt_error_message(), "expected.safetensors is not a folder"));
    remove_faulty();
    close_golden(&g);
}

static void what_cannot_be_is_refused(void **state) {
    golden g;
    lt_draft_head *h = NULL;
    const lt_draft_head *head;
    lt_engine *e = NULL;
    lt_engine_options o = lt_engine_defaults();
    lt_model *small = random_model(80, 64, LT_F32);
    (void)state;
    open_golden_of(&g, EAGLE_3, LT_F32, NULL);
    head = g.head;
    o.max_seq = 64;
    o.speculate = LT_SPECULATE_HEAD;
    assert_int_equal(lt_engine_open(&e, g.model, &o), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "there is no draft head"));
    o.speculate = LT_SPECULATE_NGRAM;
    o.head = &head;
    assert_int_equal(lt_engine_open(&e, g.model, &o), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "a draft head, but other drafts"));
    assert_int_equal(lt_draft_head_open(&h, small, GOLDEN "/head"), LT_ERR_UNSUPPORTED);
    assert_non_null(strstr(lt_error_message(), "the served model has width 64 and 80 tokens"));
    lt_model_close(small);
    close_golden(&g);
}

/* The layers whose inputs a head reads are 2, L / 2 and L - 3: three different ones from L = 7
 * on. */
static void models_without_the_layers_are_refused(void **state) {
    static const struct {
        int64_t n_layers;
        float embed_scale;
        const char *message; /* NULL: the head opens. */
    } cases[] = {{7, 1.0f, NULL},
                 {6, 1.0f, "three from 7 layers on; the served model has 6"},
                 {5, 1.0f, "the served model has 5"},
                 {8, 2.0f, "do not scale their embeddings; the served model's factor is 2"}};
    golden g;
    (void)state;
    open_golden_of(&g, EAGLE_3, LT_F32, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_model_spec spec = *lt_model_get_spec(g.model);
        lt_model *m = NULL;
        lt_draft_head *h = NULL;
        spec.n_layers = cases[i].n_layers;
        spec.embed_scale = cases[i].embed_scale;
        must(lt_model_create(&m, &spec, &(lt_model_options){.dtype = LT_F32}, 1), "model");
        assert_int_equal(lt_draft_head_open(&h, m, GOLDEN "/head"),
                         cases[i].message == NULL ? LT_OK : LT_ERR_UNSUPPORTED);
        if (cases[i].message != NULL) {
            assert_non_null(strstr(lt_error_message(), cases[i].message));
        }
        lt_draft_head_close(h);
        lt_model_close(m);
    }
    close_golden(&g);
}

/* A page has the keys and values of each layer, and the hidden states once. */
static void each_layer_has_its_keys(void **state) {
    enum { PAGE = 16, WIDTH = 32, KEPT = 2 * 8 }; /* Two heads of 8 dimensions. */
    (void)state;
    for (int format = OWN_LAYER; format <= OWN_LAYERS; format++) {
        golden g;
        const size_t n_layers = format == OWN_LAYER ? 1 : 3;
        open_golden_of(&g, format, LT_F32, NULL);
        assert_int_equal(lt_draft_head_layers(g.head), n_layers);
        assert_int_equal(lt_draft_head_page_bytes(g.head, PAGE, LT_BF16, LT_F32),
                         PAGE * (n_layers * KEPT * (2 + 4) + WIDTH * 4));
        close_golden(&g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(heads_that_do_not_fit_are_refused),
                                       cmocka_unit_test(own_layers_that_do_not_fit_are_refused),
                                       cmocka_unit_test(models_without_the_layers_are_refused),
                                       cmocka_unit_test(each_layer_has_its_keys),
                                       cmocka_unit_test(what_cannot_be_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
