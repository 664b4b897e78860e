/* draft_head.c: a draft head is read and checked against its model: see draft_head.h. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "model/pass/acts.h"
#include "model/alloc.h"
#include "model/infer/draft_head_impl.h"
#include "model/family.h"
#include "model/params.h"
#include "model/files/safetensors.h"
#include "model/files/source.h"
#include "tensor/backend.h"
#include "tensor/ops.h"

#define ARCHITECTURE     "LlamaForCausalLMEagle3"
#define MAX_CONFIG_BYTES ((size_t)1 << 20)
#define FIRST_LAYER      2 /* The low hidden state enters this layer, */
#define LAYERS_ABOVE     3 /* and the high one the last but two. */

/* What is being read: the file of an EAGLE-3 head, or the shards of a model. */
typedef struct {
    lt_draft_head *head;
    const char *path;
    lt_safetensors file;
    lt_source source;
} reading;

static const lt_safetensor *find(const reading *g, const char *name) {
    return g->head->is_mtp ? lt_source_shard_tensor(&g->source, name)
                           : lt_safetensors_find(&g->file, name);
}

/* ---- config.json ---- */

/* The keys of a head that a Llama does not have. */
static const char *const own_keys[] = {"draft_vocab_size", "eagle_config", "target_hidden_size",
                                       "norm_before_residual"};

/* Refuse hidden states of other layers than the paper's. Readers disagree whether the key numbers a
 * layer by its input or its output, so both numbers are accepted for the paper's layers. */
static lt_err check_layers(const reading *g, const json_t *config) {
    const json_t *ids = json_object_get(json_object_get(config, "eagle_config"),
                                        "eagle_aux_hidden_state_layer_ids");
    const int *want = g->head->reads;
    char *text = NULL;
    for (int i = 0; i < 2 && ids != NULL; i++) { /* What enters; what leaves. */
        bool same = json_array_size(ids) == LT_DRAFT_HEAD_STATES;
        for (size_t k = 0; same && k < LT_DRAFT_HEAD_STATES; k++) {
            same = json_integer_value(json_array_get(ids, k)) == want[k] - i;
        }
        if (same) {
            return LT_OK;
        }
    }
    if (ids == NULL) {
        return LT_OK;
    }
    text = json_dumps(ids, JSON_COMPACT | JSON_ENCODE_ANY);
    (void)lt_error_set(LT_ERR_UNSUPPORTED,
                       "%s: eagle_aux_hidden_state_layer_ids is %s; the hidden states that enter "
                       "layers %d, %d and %d are read",
                       g->path, text != NULL ? text : "?", want[0], want[1], want[2]);
    free(text);
    return LT_ERR_UNSUPPORTED;
}

static lt_err check_target(const reading *g, int64_t target_width) {
    const lt_model_spec *own = &g->head->spec, *target = &g->head->target->spec;
    if (own->width != target->width || own->vocab_size != target->vocab_size ||
        target_width != target->width) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s is a head for a model of width %lld with %lld tokens and has width %lld; the "
                "served model has width %lld and %lld tokens",
                g->path, (long long)target_width, (long long)own->vocab_size, (long long)own->width,
                (long long)target->width, (long long)target->vocab_size);
    }
    if (!g->head->is_mtp && (target->n_layers / 2 <= FIRST_LAYER ||
                             target->n_layers - LAYERS_ABOVE <= target->n_layers / 2)) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s reads the hidden states that enter layers 2, L / 2 and L - 3, which are three "
                "from 7 layers on; the served model has %lld",
                g->path, (long long)target->n_layers);
    }
    if (target->pos == LT_POS_LEARNED || target->embed_scale != 1.0f || target->n_scores > 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: draft heads are for language models with rotary positions that do not scale "
                "their embeddings; the served model's factor is %g",
                g->path, (double)target->embed_scale);
    }
    return LT_OK;
}

/* Check that it is the plain block that the pass computes. */
static lt_err check_block(const reading *g, bool norm_before_residual) {
    const lt_model_spec *s = &g->head->spec;
    const lt_layer_spec l = lt_model_layer(s, 0);
    if (s->n_layers != 1 || s->n_experts > 0 || l.qkv_bias || l.attn_out_bias || l.mlp_bias ||
        l.window > 0 || lt_rope_switch(s) > 0 || norm_before_residual) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: num_hidden_layers is %lld; a head has one layer without experts, biases, "
                "window or rotation by length, and adds to the hidden state before its norm",
                g->path, (long long)s->n_layers);
    }
    if (g->head->vocab_size < 1 || g->head->vocab_size > s->vocab_size) {
        LT_FAIL(LT_ERR_FORMAT, "%s: draft_vocab_size is %lld; it may be 1 to vocab_size, %lld",
                g->path, (long long)g->head->vocab_size, (long long)s->vocab_size);
    }
    return LT_OK;
}

/* Find whether it is a head, and of which kind. */
static lt_err check_architecture(const reading *g, const json_t *config) {
    const json_t *list = json_object_get(config, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    if (name == NULL || strcmp(name, ARCHITECTURE) != 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: architecture %s; a draft head is an EAGLE-3 head, of "
                "architecture " ARCHITECTURE
                ", or the layers of multi-token prediction (num_nextn_predict_layers) of a model",
                g->path, name != NULL ? name : "unknown");
    }
    return LT_OK;
}

/* The model's own MTP layers. They may be in another folder with the same layers, so their shape is
 * read from that folder and must be that of the model's layers. */
static lt_err read_mtp_config(reading *g, int64_t n) {
    lt_draft_head *h = g->head;
    lt_model_spec *s = &h->spec;
    const lt_model_spec *target = &h->target->spec;
    lt_layer_spec l;
    h->is_mtp = true;
    LT_TRY(lt_weight_source_open(&g->source, s, g->path));
    if (n < 1 || n > LT_DRAFT_HEAD_LAYERS) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: num_nextn_predict_layers is %lld; 1 to %d layers of multi-token prediction "
                "are read",
                g->path, (long long)n, LT_DRAFT_HEAD_LAYERS);
    }
    h->n_layers = n;
    if (!lt_family_get(s->family)->mtp_layers || target->family != s->family) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: layers of multi-token prediction are read as Xiaomi's MiMo has them, beside "
                "layers of qwen2; this model is %s, the served one %s",
                g->path, lt_family_name(s->family), lt_family_name(target->family));
    }
    l = lt_model_layer(s, 0);
    if (l.window > 0 || lt_rope_switch(s) > 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: its first layer has a window of %lld tokens; a layer of multi-token "
                "prediction has none, and no rotation by length",
                g->path, (long long)l.window);
    }
    s->n_layers = 1;
    h->vocab_size = s->vocab_size;
    return check_target(g, s->width);
}

static lt_err read_eagle_config(reading *g, const json_t *config, const char *path) {
    lt_err err = LT_OK;
    lt_draft_head *h = g->head;
    json_t *llama = json_copy((json_t *)(uintptr_t)config);
    bool norm_before_residual = false;
    int64_t target_width;
    LT_TRY_DONE(check_architecture(g, config));
    for (size_t i = 0; i < sizeof own_keys / sizeof *own_keys; i++) {
        (void)json_object_del(llama, own_keys[i]);
    }
    LT_TRY_DONE(lt_config_read(&h->spec, llama, path));
    h->n_layers = 1;
    h->vocab_size = h->spec.vocab_size;
    target_width = h->spec.width;
    LT_TRY_DONE(lt_json_i64(config, "draft_vocab_size", &h->vocab_size, true, path));
    LT_TRY_DONE(lt_json_i64(config, "target_hidden_size", &target_width, true, path));
    LT_TRY_DONE(lt_json_bool(config, "norm_before_residual", &norm_before_residual, true, path));
    LT_TRY_DONE(check_target(g, target_width));
    LT_TRY_DONE(check_block(g, norm_before_residual));
    h->reads[0] = FIRST_LAYER;
    h->reads[1] = (int)(h->target->spec.n_layers / 2);
    h->reads[2] = (int)h->target->spec.n_layers - LAYERS_ABOVE;
    LT_TRY_DONE(check_layers(g, config));
done:
    json_decref(llama);
    return err;
}

static lt_err read_config(reading *g) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    json_t *config = NULL;
    int64_t n_mtp = 0;
    LT_TRY(lt_path_join(path, g->path, "config.json"));
    LT_TRY(lt_json_load(&config, path, MAX_CONFIG_BYTES));
    LT_TRY_DONE(lt_json_i64(config, "num_nextn_predict_layers", &n_mtp, true, path));
    err = n_mtp != 0 ? read_mtp_config(g, n_mtp) : read_eagle_config(g, config, path);
done:
    json_decref(config);
    return err;
}

/* ---- Tensors ---- */

/* Columns [from, from + C) of a tensor (rows, cols) go to rows [to, to + rows) of dst; cols 0: a
 * vector of rows numbers. */
typedef struct {
    const char *name; /* Of an MTP layer's tensor, what follows the layer's number. */
    int64_t rows, cols, from, to;
    lt_tensor *dst;
} piece;

enum { MOST_PIECES = 20, NAME_BYTES = 96 };

/* All of an MTP layer, in any order. */
static int list_mtp_pieces(lt_draft_head *h, int64_t layer, piece out[MOST_PIECES]) {
    lt_draft_layer *l = &h->layer[layer];
    const lt_model_spec *s = &h->spec;
    const int64_t C = s->width, F = s->ffn_width, Q = s->n_heads * s->head_dim,
                  K = s->n_kv_heads * s->head_dim;
    const piece all[] = {{"input_proj.weight", C, 2 * C, 0, 0, &l->join_hidden.w},
                         {"input_proj.weight", C, 2 * C, C, 0, &l->join_token.w},
                         {"self_attn.q_proj.weight", Q, C, 0, 0, &l->qkv.w},
                         {"self_attn.k_proj.weight", K, C, 0, Q, &l->qkv.w},
                         {"self_attn.v_proj.weight", K, C, 0, Q + K, &l->qkv.w},
                         {"self_attn.q_proj.bias", Q, 0, 0, 0, &l->qkv_bias},
                         {"self_attn.k_proj.bias", K, 0, 0, Q, &l->qkv_bias},
                         {"self_attn.v_proj.bias", K, 0, 0, Q + K, &l->qkv_bias},
                         {"self_attn.o_proj.weight", C, Q, 0, 0, &l->attn_out.w},
                         {"mlp.gate_proj.weight", F, C, 0, 0, &l->up.w},
                         {"mlp.up_proj.weight", F, C, 0, F, &l->up.w},
                         {"mlp.down_proj.weight", C, F, 0, 0, &l->down.w},
                         {"token_layernorm.weight", C, 0, 0, 0, &l->norm_token},
                         {"hidden_layernorm.weight", C, 0, 0, 0, &l->norm_hidden},
                         {"input_layernorm.weight", C, 0, 0, 0, &l->norm_attn},
                         {"post_attention_layernorm.weight", C, 0, 0, 0, &l->norm_mlp},
                         {"final_layernorm.weight", C, 0, 0, 0, &l->norm_last}};
    static_assert(sizeof all / sizeof *all <= MOST_PIECES, "room for all");
    memcpy(out, all, sizeof all);
    return (int)(sizeof all / sizeof *all);
}

/* All of an EAGLE-3 head, in any order. */
static int list_eagle_pieces(lt_draft_head *h, piece out[MOST_PIECES]) {
    lt_draft_layer *l = &h->layer[0];
    const lt_model_spec *s = &h->spec;
    const int64_t C = s->width, F = s->ffn_width, Q = s->n_heads * s->head_dim,
                  K = s->n_kv_heads * s->head_dim;
    const piece all[] = {{"fc.weight", C, 3 * C, 0, 0, &h->fuse[0].w},
                         {"fc.weight", C, 3 * C, C, 0, &h->fuse[1].w},
                         {"fc.weight", C, 3 * C, 2 * C, 0, &h->fuse[2].w},
                         {"midlayer.self_attn.q_proj.weight", Q, 2 * C, 0, 0, &l->qkv_token.w},
                         {"midlayer.self_attn.k_proj.weight", K, 2 * C, 0, Q, &l->qkv_token.w},
                         {"midlayer.self_attn.v_proj.weight", K, 2 * C, 0, Q + K, &l->qkv_token.w},
                         {"midlayer.self_attn.q_proj.weight", Q, 2 * C, C, 0, &l->qkv_hidden.w},
                         {"midlayer.self_attn.k_proj.weight", K, 2 * C, C, Q, &l->qkv_hidden.w},
                         {"midlayer.self_attn.v_proj.weight", K, 2 * C, C, Q + K, &l->qkv_hidden.w},
                         {"midlayer.self_attn.o_proj.weight", C, Q, 0, 0, &l->attn_out.w},
                         {"midlayer.mlp.gate_proj.weight", F, C, 0, 0, &l->up.w},
                         {"midlayer.mlp.up_proj.weight", F, C, 0, F, &l->up.w},
                         {"midlayer.mlp.down_proj.weight", C, F, 0, 0, &l->down.w},
                         {"lm_head.weight", h->vocab_size, C, 0, 0, &h->head.w},
                         {"midlayer.input_layernorm.weight", C, 0, 0, 0, &l->norm_token},
                         {"midlayer.hidden_norm.weight", C, 0, 0, 0, &l->norm_hidden},
                         {"midlayer.post_attention_layernorm.weight", C, 0, 0, 0, &l->norm_mlp},
                         {"norm.weight", C, 0, 0, 0, &l->norm_last},
                         {"embed_tokens.weight", s->vocab_size, C, 0, 0, &h->embed}};
    static_assert(sizeof all / sizeof *all <= MOST_PIECES, "room for all");
    memcpy(out, all, sizeof all);
    return (int)(sizeof all / sizeof *all);
}

static int list_pieces(lt_draft_head *h, int64_t layer, piece out[MOST_PIECES]) {
    return h->is_mtp ? list_mtp_pieces(h, layer, out) : list_eagle_pieces(h, out);
}

static void name_of(const reading *g, int64_t layer, const piece *p, char name[NAME_BYTES]) {
    if (g->head->is_mtp) {
        (void)snprintf(name, NAME_BYTES, LT_MTP_LAYERS "%lld.%s", (long long)layer, p->name);
    } else {
        (void)snprintf(name, NAME_BYTES, "%s", p->name);
    }
}

static lt_tensor take_matrix(const lt_draft_head *h, lt_arena *a, int64_t rows, int64_t cols) {
    return lt_tensor_take(a, h->target->options.dtype, rows, cols, 0);
}

static lt_draft_matrix take_packed(const lt_draft_head *h, lt_arena *a, int64_t rows,
                                   int64_t cols) {
    lt_draft_matrix m = {.w = take_matrix(h, a, rows, cols)};
    const size_t bytes = h->target->backend->matmul_pack_bytes(h->target->device, &m.w, true);
    m.packed = bytes > 0 ? lt_arena_take(a, bytes, LT_ARENA_ALIGN) : NULL;
    return m;
}

static void carve_layer(lt_draft_head *h, lt_draft_layer *l, lt_arena *a) {
    const lt_model_spec *s = &h->spec;
    const int64_t C = s->width, F = s->ffn_width, Q = s->n_heads * s->head_dim,
                  all = Q + 2 * s->n_kv_heads * s->head_dim;
    lt_tensor *const gains[] = {&l->norm_token, &l->norm_hidden, &l->norm_mlp, &l->norm_last};
    if (h->is_mtp) {
        l->join_token = take_packed(h, a, C, C);
        l->join_hidden = take_packed(h, a, C, C);
        l->qkv = take_packed(h, a, all, C);
        l->qkv_bias = lt_tensor_take(a, LT_F32, all, 0, 0);
        l->norm_attn = lt_tensor_take(a, LT_F32, C, 0, 0);
    } else {
        l->qkv_token = take_packed(h, a, all, C);
        l->qkv_hidden = take_packed(h, a, all, C);
    }
    l->attn_out = take_packed(h, a, C, Q);
    l->up = take_packed(h, a, 2 * F, C);
    l->down = take_packed(h, a, C, F);
    for (int i = 0; i < 4; i++) {
        *gains[i] = lt_tensor_take(a, LT_F32, C, 0, 0);
    }
}

static void head_carve(lt_draft_head *h, lt_arena *a, bool own_embedding) {
    const int64_t C = h->spec.width;
    for (int64_t i = 0; i < h->n_layers; i++) {
        carve_layer(h, &h->layer[i], a);
    }
    if (h->is_mtp) {
        return;
    }
    for (int i = 0; i < LT_DRAFT_HEAD_STATES; i++) {
        h->fuse[i] = take_packed(h, a, C, C);
    }
    h->head = take_packed(h, a, h->vocab_size, C);
    h->embed = own_embedding ? take_matrix(h, a, h->spec.vocab_size, C) : (lt_tensor){0};
}

static lt_err read_piece(const reading *g, int64_t layer, const piece *p) {
    char name[NAME_BYTES];
    const lt_safetensor *t;
    const int64_t cols = p->cols > 0 ? p->cols : 1;
    const int64_t n = p->cols > 0 ? p->dst->shape[1] : 1;
    const size_t to_bytes = lt_dtype_bytes(p->dst->dtype);
    char *dst = (char *)p->dst->data + (size_t)(p->to * n) * to_bytes;
    name_of(g, layer, p, name);
    t = find(g, name);
    if (t == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "%s: a tensor is missing: %s", g->path, name);
    }
    if (t->n_dims != (p->cols > 0 ? 2 : 1)) {
        LT_FAIL(LT_ERR_FORMAT, "%s: tensor %s has %d dimensions, not %d", g->path, name, t->n_dims,
                p->cols > 0 ? 2 : 1);
    }
    if (t->shape[0] != p->rows || (p->cols > 0 && t->shape[1] != p->cols)) {
        LT_FAIL(LT_ERR_FORMAT, "%s: tensor %s is %lld x %lld; by config.json it is %lld x %lld",
                g->path, name, (long long)t->shape[0], (long long)(t->n_dims > 1 ? t->shape[1] : 1),
                (long long)p->rows, (long long)cols);
    }
    if (t->dtype != LT_F32 && t->dtype != LT_BF16 && t->dtype != LT_F16) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: tensor %s is %s; F32, BF16 and F16 are read", g->path,
                name, lt_dtype_name(t->dtype));
    }
    for (int64_t r = 0; r < p->rows; r++) {
        const size_t at = (size_t)(r * cols + p->from) * lt_dtype_bytes(t->dtype);
        lt_convert(dst + (size_t)(r * n) * to_bytes, p->dst->dtype, t->data + at, t->dtype,
                   (size_t)n);
    }
    return LT_OK;
}

static bool is_piece(const reading *g, const char *name) {
    piece pieces[MOST_PIECES];
    char piece_name[NAME_BYTES];
    for (int64_t layer = 0; layer < g->head->n_layers; layer++) {
        const int n = list_pieces(g->head, layer, pieces);
        for (int k = 0; k < n; k++) {
            name_of(g, layer, &pieces[k], piece_name);
            if (strcmp(name, piece_name) == 0) {
                return true;
            }
        }
    }
    return false;
}

/* An unknown tensor means that the head is of another kind. But a model's folder has other tensors
 * besides those of its MTP layers. */
static lt_err check_names(const reading *g, const lt_safetensors *file) {
    const bool is_mtp = g->head->is_mtp;
    for (size_t i = 0; i < file->n_tensors; i++) {
        const char *name = file->tensors[i].name;
        const bool others = is_mtp ? strncmp(name, LT_MTP_LAYERS, strlen(LT_MTP_LAYERS)) != 0
                                   : strcmp(name, "d2t") == 0 || strcmp(name, "t2d") == 0;
        if (!others && !is_piece(g, name)) {
            LT_FAIL(
                LT_ERR_UNSUPPORTED, "%s: tensor %s is none of %s", g->path, name,
                is_mtp ? "the layers of multi-token prediction that num_nextn_predict_layers counts"
                       : "an EAGLE-3 head");
        }
    }
    return LT_OK;
}

/* ---- The vocabularies ---- */

static lt_err find_map(const reading *g, const char *name, lt_dtype type, int64_t n,
                       const lt_safetensor **out) {
    const lt_safetensor *t = find(g, name);
    if (t != NULL && (t->dtype != type || t->n_dims != 1 || t->shape[0] != n)) {
        LT_FAIL(LT_ERR_FORMAT, "%s: tensor %s has %lld elements of type %s; it has %lld of %s",
                g->path, name, (long long)t->shape[0], lt_dtype_name(t->dtype), (long long)n,
                lt_dtype_name(type));
    }
    *out = t;
    return LT_OK;
}

/* t2d says the same as d2t. taken (V): the ids that d2t names. */
static lt_err check_t2d(const reading *g, const bool *taken) {
    const lt_safetensor *t2d;
    const int64_t V = g->head->spec.vocab_size;
    LT_TRY(find_map(g, "t2d", LT_BOOL, V, &t2d));
    for (int64_t id = 0; t2d != NULL && id < V; id++) {
        if ((t2d->data[id] != 0) != taken[id]) {
            LT_FAIL(LT_ERR_FORMAT,
                    "%s: t2d and d2t disagree about token %lld: the head has it by %s alone",
                    g->path, (long long)id, taken[id] ? "d2t" : "t2d");
        }
    }
    return LT_OK;
}

static lt_err read_map(const reading *g, bool *taken) {
    lt_draft_head *h = g->head;
    const int64_t V = h->spec.vocab_size;
    const lt_safetensor *d2t;
    LT_TRY(find_map(g, "d2t", LT_I64, h->vocab_size, &d2t));
    if (d2t == NULL && h->vocab_size != V) {
        LT_FAIL(LT_ERR_FORMAT, "%s: tensor d2t is missing: the head has %lld of the %lld tokens",
                g->path, (long long)h->vocab_size, (long long)V);
    }
    for (int64_t i = 0; i < h->vocab_size; i++) {
        int64_t more = 0;
        if (d2t != NULL) {
            memcpy(&more, d2t->data + (size_t)i * sizeof more, sizeof more);
        }
        if (more < -i || more >= V - i) {
            LT_FAIL(LT_ERR_FORMAT, "%s: d2t[%lld] is %lld: token %lld + %lld is none of the %lld",
                    g->path, (long long)i, (long long)more, (long long)i, (long long)more,
                    (long long)V);
        }
        if (taken[i + more]) {
            LT_FAIL(LT_ERR_FORMAT, "%s: d2t[%lld] is %lld: the head has token %lld twice", g->path,
                    (long long)i, (long long)more, (long long)(i + more));
        }
        h->ids[i] = (int32_t)(i + more);
        taken[i + more] = true;
    }
    return check_t2d(g, taken);
}

/* ---- All of it ---- */

static lt_err pack_all(lt_exec *r, const lt_draft_matrix *const *all, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (all[i]->packed != NULL) {
            LT_TRY(lt_exec_matmul_pack(
                r, &(lt_matmul_pack_args){.dst = all[i]->packed, .b = all[i]->w, .trans_b = true}));
        }
    }
    return LT_OK;
}

static lt_err pack(const lt_draft_head *h) {
    const lt_draft_matrix *const whole[] = {&h->fuse[0], &h->fuse[1], &h->fuse[2], &h->head};
    lt_exec r;
    lt_err err = LT_OK;
    LT_TRY(lt_exec_open(&r, h->target, NULL));
    LT_TRY_DONE(pack_all(&r, whole, sizeof whole / sizeof *whole));
    for (int64_t i = 0; i < h->n_layers; i++) {
        const lt_draft_layer *l = &h->layer[i];
        const lt_draft_matrix *const all[] = {&l->qkv_token,   &l->qkv_hidden, &l->join_token,
                                              &l->join_hidden, &l->qkv,        &l->attn_out,
                                              &l->up,          &l->down};
        LT_TRY_DONE(pack_all(&r, all, sizeof all / sizeof *all));
    }
    LT_TRY_DONE(r.backend->sync(r.queue));
done:
    lt_exec_close(&r);
    return err;
}

static lt_err read_layer(const reading *g, int64_t layer) {
    piece pieces[MOST_PIECES];
    const int n = list_pieces(g->head, layer, pieces);
    for (int i = 0; i < n; i++) {
        LT_TRY(pieces[i].dst->data != NULL ? read_piece(g, layer, &pieces[i]) : LT_OK);
    }
    return LT_OK;
}

/* If the device has its own memory, tensors are read into host memory with the same layout, and
 * sent together. */
static lt_err place(reading *g, bool own_embedding) {
    lt_err err = LT_OK;
    lt_draft_head *h = g->head;
    const lt_model *m = h->target;
    lt_arena host = {0};
    head_carve(h, &host, own_embedding);
    h->arena.used_bytes = host.used_bytes;
    LT_TRY(lt_arena_open(&host, "a draft head"));
    LT_TRY_DONE(lt_arena_place(&h->arena, m->device, "a draft head"));
    head_carve(h, &host, own_embedding);
    for (int64_t layer = 0; layer < h->n_layers; layer++) {
        LT_TRY_DONE(read_layer(g, layer));
    }
    head_carve(h, &h->arena, own_embedding);
    LT_TRY_DONE(lt_model_upload(m, h->arena.base, host.base, host.used_bytes));
    err = pack(h);
done:
    lt_arena_close(&host);
    return err;
}

static lt_err read_tensors(reading *g) {
    lt_err err = LT_OK;
    lt_draft_head *h = g->head;
    const bool own_embedding = find(g, "embed_tokens.weight") != NULL;
    bool *taken = NULL;
    LT_TRY(h->is_mtp ? LT_OK : check_names(g, &g->file));
    for (size_t i = 0; i < g->source.n_shards; i++) {
        LT_TRY(check_names(g, &g->source.shards[i]));
    }
    LT_TRY(place(g, own_embedding));
    h->ids = calloc((size_t)h->vocab_size, sizeof *h->ids);
    taken = calloc((size_t)h->spec.vocab_size, sizeof *taken);
    if (h->ids == NULL || taken == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s", g->path);
    }
    LT_TRY_DONE(read_map(g, taken));
done:
    free(taken);
    return err;
}

lt_err lt_draft_head_open(lt_draft_head **out, const lt_model *target, const char *path) {
    lt_err err = LT_OK;
    char file[LT_PATH_BYTES];
    reading g = {.path = path};
    if (!lt_file_is_dir(path)) {
        LT_FAIL(LT_ERR_NOT_FOUND,
                "%s is not a folder; a draft head is the folder of an EAGLE-3 head, or of a model "
                "with layers of multi-token prediction",
                path);
    }
    LT_TRY(lt_path_join(file, path, "model.safetensors"));
    g.head = calloc(1, sizeof *g.head);
    if (g.head == NULL) {
        LT_FAIL(LT_ERR_OOM, "draft head %s", path);
    }
    g.head->target = target;
    LT_TRY_DONE(read_config(&g));
    LT_TRY_DONE(g.head->is_mtp ? LT_OK : lt_safetensors_open(&g.file, file));
    LT_TRY_DONE(read_tensors(&g));
    *out = g.head;
    g.head = NULL;
done:
    lt_safetensors_close(&g.file);
    lt_weight_source_close(&g.source);
    lt_draft_head_close(g.head);
    return err;
}

void lt_draft_head_close(lt_draft_head *h) {
    if (h == NULL) {
        return;
    }
    lt_arena_release(&h->arena, h->target->device);
    free(h->ids);
    free(h);
}

int64_t lt_draft_head_vocab(const lt_draft_head *h) {
    return h->vocab_size;
}

int64_t lt_draft_head_layers(const lt_draft_head *h) {
    return h->n_layers;
}

void lt_draft_head_widen(const lt_draft_head *h, const float *logits, float *wide) {
    for (int64_t id = 0; id < h->spec.vocab_size; id++) {
        wide[id] = -INFINITY;
    }
    for (int64_t i = 0; i < h->vocab_size; i++) {
        wide[h->ids[i]] = logits[i];
    }
}

size_t lt_draft_head_page_bytes(const lt_draft_head *h, int64_t page_tokens, lt_dtype keys,
                                lt_dtype values) {
    return (size_t)h->n_layers * lt_paged_forward_page_bytes(&h->spec, page_tokens, keys, values) +
           (size_t)(page_tokens * h->spec.width) * lt_dtype_bytes(h->target->options.dtype);
}
