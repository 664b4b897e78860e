/* llama2c.c: the .bin files of karpathy/llama2.c, all F32, little-endian.
 *
 *   version 0  7 int32: dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size (negative: the
 *              head is not tied), seq_len; then tok_emb, att_norm (all layers), wq, wk, wv, wo,
 *              ffn_norm, w1 (gate), w2 (down), w3 (up), final_norm, two tables of seq_len x
 *              head_dim/2 that are no longer used, [head]
 *   version 1  magic "ak42" (0x616b3432), version 1, the 7 int32, u8 tied; padded to 256 bytes;
 *              then att_norm, ffn_norm, final_norm, tok_emb, wq, wk, wv, wo, w1, w2, w3, [head]
 * RoPE rotates pairs (2i, 2i+1): as in GGUF's llama, rows of q and k are brought into halves at
 * load. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/files/source.h"

#define MAGIC           0x616b3432
#define V1_HEADER_BYTES 256
#define SIZE_LIMIT      (1 << 24) /* No field of a real header is larger. */

typedef struct {
    lt_source *s;
    const unsigned char *at, *end;
} cursor;

/* Take one tensor (rows x cols, cols 0: a vector) for each of n layers (n 0: once, name without a
 * layer). */
static lt_err take(cursor *c, const char *name, int64_t n, int64_t rows, int64_t cols) {
    const int64_t count = rows * (cols > 0 ? cols : 1);
    for (int64_t layer = 0; layer < (n > 0 ? n : 1); layer++) {
        const size_t bytes = (size_t)count * sizeof(float);
        char text[64];
        lt_named_weight *w = &c->s->bin_weights[c->s->n_bin_weights];
        if ((size_t)(c->end - c->at) < bytes) {
            LT_FAIL(LT_ERR_FORMAT, "%s: cut short: %s needs %zu bytes, %td are left", c->s->path,
                    name, bytes, c->end - c->at);
        }
        if (n > 0) {
            snprintf(text, sizeof text, "blk.%lld.%s", (long long)layer, name);
        } else {
            snprintf(text, sizeof text, "%s", name);
        }
        w->name = strdup(text);
        if (w->name == NULL) {
            LT_FAIL(LT_ERR_OOM, "%s: names", c->s->path);
        }
        c->s->n_bin_weights++;
        w->weight = (lt_weight){
            .type = LT_F32, .n_dims = cols > 0 ? 2 : 1, .shape = {rows, cols}, .data = c->at};
        c->at += bytes;
    }
    return LT_OK;
}

static lt_err take_layers(cursor *c, const lt_model_spec *m, bool norms_between) {
    const int64_t layers = m->n_layers, q = m->n_heads * m->head_dim,
                  kv = m->n_kv_heads * m->head_dim;
    LT_TRY(take(c, "attn_q.weight", layers, q, m->width));
    LT_TRY(take(c, "attn_k.weight", layers, kv, m->width));
    LT_TRY(take(c, "attn_v.weight", layers, kv, m->width));
    LT_TRY(take(c, "attn_output.weight", layers, m->width, q));
    if (norms_between) {
        LT_TRY(take(c, "ffn_norm.weight", layers, m->width, 0));
    }
    LT_TRY(take(c, "ffn_gate.weight", layers, m->ffn_width, m->width));
    LT_TRY(take(c, "ffn_down.weight", layers, m->width, m->ffn_width));
    return take(c, "ffn_up.weight", layers, m->ffn_width, m->width);
}

static lt_err take_version_0(cursor *c, const lt_model_spec *m) {
    LT_TRY(take(c, "token_embd.weight", 0, m->vocab_size, m->width));
    LT_TRY(take(c, "attn_norm.weight", m->n_layers, m->width, 0));
    LT_TRY(take_layers(c, m, true));
    LT_TRY(take(c, "output_norm.weight", 0, m->width, 0));
    LT_TRY(take(c, "freq_cis.unused", 0, m->max_seq, m->head_dim));
    return m->tied ? LT_OK : take(c, "output.weight", 0, m->vocab_size, m->width);
}

static lt_err take_version_1(cursor *c, const lt_model_spec *m) {
    LT_TRY(take(c, "attn_norm.weight", m->n_layers, m->width, 0));
    LT_TRY(take(c, "ffn_norm.weight", m->n_layers, m->width, 0));
    LT_TRY(take(c, "output_norm.weight", 0, m->width, 0));
    LT_TRY(take(c, "token_embd.weight", 0, m->vocab_size, m->width));
    LT_TRY(take_layers(c, m, false));
    return m->tied ? LT_OK : take(c, "output.weight", 0, m->vocab_size, m->width);
}

static lt_err spec_from_header(lt_model_spec *m, const int32_t h[7], const char *path) {
    static const char *const names[7] = {"dim",        "hidden_dim", "n_layers", "n_heads",
                                         "n_kv_heads", "vocab_size", "seq_len"};
    for (int i = 0; i < 7; i++) {
        if (h[i] < (i == 5 ? -SIZE_LIMIT : 1) || h[i] > SIZE_LIMIT || h[i] == 0) {
            LT_FAIL(LT_ERR_FORMAT, "%s: neither GGUF nor llama2.c: header field %s would be %d",
                    path, names[i], h[i]);
        }
    }
    *m = lt_family_get(LT_FAMILY_LLAMA)->preset;
    m->width = h[0];
    m->ffn_width = h[1];
    m->n_layers = h[2];
    m->n_heads = h[3];
    m->n_kv_heads = h[4];
    m->vocab_size = h[5] < 0 ? -h[5] : h[5];
    m->tied = h[5] > 0;
    m->max_seq = h[6];
    m->head_dim = m->width / m->n_heads;
    m->norm_eps = 1e-5f;
    m->bos_id = 1;
    m->eos = (lt_ends){.ids = {2}, .n = 1};
    return lt_model_spec_check(m) == LT_OK ? LT_OK : lt_error_prefix(LT_ERR_FORMAT, "%s", path);
}

lt_err lt_llama2c_open(lt_source *s, lt_model_spec *spec, const char *path) {
    int32_t h[9];
    cursor c;

    LT_TRY(lt_file_map_open(&s->bin, path));
    if (s->bin.size_bytes < V1_HEADER_BYTES) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %zu bytes are too few for a model", path, s->bin.size_bytes);
    }
    memcpy(h, s->bin.data, sizeof h);
    c = (cursor){.s = s, .at = s->bin.data + 7 * sizeof *h, .end = s->bin.data + s->bin.size_bytes};
    s->rope_interleaved = true;
    if (h[0] != MAGIC) {
        LT_TRY(spec_from_header(spec, h, path));
    } else if (h[1] != 1) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: llama2.c format version %d; versions 0 and 1 are read",
                path, h[1]);
    } else {
        LT_TRY(spec_from_header(spec, h + 2, path));
        spec->tied = s->bin.data[sizeof h] != 0;
        c.at = s->bin.data + V1_HEADER_BYTES;
    }
    s->bin_weights = calloc((size_t)spec->n_layers * 9 + 4, sizeof *s->bin_weights);
    if (s->bin_weights == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: %lld layers", path, (long long)spec->n_layers);
    }
    return h[0] != MAGIC ? take_version_0(&c, spec) : take_version_1(&c, spec);
}
