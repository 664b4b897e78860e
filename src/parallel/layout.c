/* layout.c: see layout.h. */
#include "parallel/layout.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/layer.h"

int64_t lt_share_first(int64_t count, int n, int i) {
    return count / n * i + count % n * i / n;
}

/* ---- Can the model be divided like this? ---- */

static bool tp_fits(const lt_model_spec *s, int64_t tp) {
    for (int64_t layer = 0; layer < s->n_layers; layer++) {
        const lt_layer_spec l = lt_model_layer(s, layer);
        const bool keys = l.n_kv_heads % tp == 0 || tp % l.n_kv_heads == 0;
        if (l.n_heads % tp != 0 || l.ffn_width % tp != 0 || !keys) {
            return false;
        }
    }
    return tp <= s->vocab_size;
}

/* The tp that fits and is nearest to this one; of two at the same distance, the smaller. */
static int64_t nearest_tp(const lt_model_spec *s, int tp) {
    int64_t off = 1;
    while (!(off < tp && tp_fits(s, tp - off)) && !tp_fits(s, tp + off)) {
        off++;
    }
    return off < tp && tp_fits(s, tp - off) ? tp - off : tp + off;
}

static lt_err refuse_tp(const lt_model_spec *s, int tp, int64_t count, const char *what) {
    LT_FAIL(LT_ERR_ARG, "mesh: tp=%d does not divide the model's %lld %s; tp=%lld does", tp,
            (long long)count, what, (long long)nearest_tp(s, tp));
}

static lt_err check_tp(const lt_model_spec *s, int tp) {
    if (tp_fits(s, tp)) {
        return LT_OK;
    }
    for (int64_t layer = 0; layer < s->n_layers; layer++) {
        const lt_layer_spec l = lt_model_layer(s, layer);
        if (l.n_heads % tp != 0) {
            return refuse_tp(s, tp, l.n_heads, "heads");
        }
        if (l.ffn_width % tp != 0) {
            return refuse_tp(s, tp, l.ffn_width, "columns of the MLP");
        }
        if (l.n_kv_heads % tp != 0 && tp % l.n_kv_heads != 0) {
            LT_FAIL(LT_ERR_ARG,
                    "mesh: tp=%d and the model's %lld key heads: neither divides the other; "
                    "tp=%lld fits",
                    tp, (long long)l.n_kv_heads, (long long)nearest_tp(s, tp));
        }
    }
    LT_FAIL(LT_ERR_ARG, "mesh: tp=%d is more than the vocabulary's %lld entries; tp=%lld fits", tp,
            (long long)s->vocab_size, (long long)nearest_tp(s, tp));
}

static lt_err check(const lt_model_spec *s, const lt_mesh_shape *m) {
    LT_TRY(check_tp(s, m->tp));
    if (m->pp > s->n_layers) {
        LT_FAIL(LT_ERR_ARG, "mesh: pp=%d stages, and the model has %lld layers; pp=%lld fits",
                m->pp, (long long)s->n_layers, (long long)s->n_layers);
    }
    if (m->ep > 1 && s->n_experts == 0) {
        LT_FAIL(LT_ERR_ARG, "mesh: ep=%d, and the model has no experts; leave ep out", m->ep);
    }
    if (m->ep > 1 && s->n_experts % m->ep != 0) {
        LT_FAIL(LT_ERR_ARG, "mesh: ep=%d does not divide the model's %lld experts; ep=%lld does",
                m->ep, (long long)s->n_experts, (long long)lt_mesh_divisor(s->n_experts, m->ep));
    }
    return LT_OK;
}

/* ---- A rank's place ---- */

static void place_heads(lt_layout *l) {
    const lt_model_spec *s = l->spec;
    const int tp = l->shape.tp;
    l->n_heads = s->n_heads / tp;
    l->first_head = l->n_heads * l->tp;
    l->kv_copies = s->n_kv_heads < tp ? (int)(tp / s->n_kv_heads) : 1;
    l->n_kv_heads = s->n_kv_heads < tp ? 1 : s->n_kv_heads / tp;
    l->first_kv_head = l->tp / l->kv_copies * l->n_kv_heads;
    l->first_id = lt_share_first(s->vocab_size, tp, l->tp);
    l->end_id = lt_share_first(s->vocab_size, tp, l->tp + 1);
}

lt_err lt_layout_open(lt_layout *out, const lt_model_spec *spec, const lt_mesh_shape *shape,
                      int rank) {
    const int plane = shape->dp * shape->cp;
    const int at = rank / shape->tp % plane; /* Index in the plane dp x cp. */
    int64_t first, end;

    LT_ASSERT(rank >= 0 && rank < shape->pp * plane * shape->tp);
    LT_TRY(lt_mesh_check(shape, shape->pp * plane * shape->tp));
    LT_TRY(check(spec, shape));
    *out = (lt_layout){.spec = spec,
                       .shape = *shape,
                       .pp = rank / (plane * shape->tp),
                       .dp = at / shape->cp,
                       .cp = at % shape->cp,
                       .tp = rank % shape->tp,
                       .ep = at % shape->ep,
                       .edp = at / shape->ep};
    place_heads(out);
    out->n_experts = spec->n_experts / shape->ep;
    out->first_expert = out->n_experts * out->ep;
    first = lt_share_first(spec->n_layers, shape->pp, out->pp);
    end = lt_share_first(spec->n_layers, shape->pp, out->pp + 1);
    for (int64_t layer = first; layer < end; layer++) {
        out->layers[layer] = true;
    }
    out->embeds = out->pp == 0;
    out->heads = out->pp == shape->pp - 1;
    out->ends_apart = shape->pp > 1;
    return LT_OK;
}

void lt_layout_place(lt_layout *l, const lt_stages *stages) {
    const lt_schedule_shape shape = {stages->schedule, stages->ranks, stages->chunks, 1};
    const int last = lt_schedule_rank_of(&shape, stages->ranks * stages->chunks - 1);
    LT_ASSERT(stages->ranks == l->shape.pp);
    memset(l->layers, 0, sizeof l->layers);
    for (int chunk = 0; chunk < stages->chunks; chunk++) {
        int first, end;
        lt_stages_layers(stages, l->pp, chunk, &first, &end);
        for (int layer = first; layer < end; layer++) {
            l->layers[layer] = true;
        }
    }
    l->embeds = l->pp == 0;
    l->heads = l->pp == last;
    l->ends_apart = last != 0;
}

/* ---- Boxes ---- */

/* How tp divides a kind of parameter. */
typedef enum {
    WHOLE,    /* It does not. */
    VOCAB,    /* Rows of the vocabulary. */
    QKV,      /* Rows of some heads of q, k and v. */
    HEADS,    /* One number per head. */
    Q_HEADS,  /* head_dim numbers per head of q, or one such row for all heads. */
    K_HEADS,  /* The same for k. */
    HEADS_IN, /* Columns of some heads. */
    FFN_OUT,  /* Rows of gate and of up, each divided by the columns of the MLP. */
    FFN_IN,   /* Columns of the MLP. */
} division;

static const division divisions[LT_PARAM_KIND_COUNT] = {
    [LT_PARAM_EMBED] = VOCAB,     [LT_PARAM_HEAD] = VOCAB,        [LT_PARAM_QKV] = QKV,
    [LT_PARAM_QKV_BIAS] = QKV,    [LT_PARAM_SINKS] = HEADS,       [LT_PARAM_Q_NORM] = Q_HEADS,
    [LT_PARAM_K_NORM] = K_HEADS,  [LT_PARAM_ATTN_OUT] = HEADS_IN, [LT_PARAM_UP] = FFN_OUT,
    [LT_PARAM_UP_BIAS] = FFN_OUT, [LT_PARAM_DOWN] = FFN_IN,
};

/* Kinds with a slice for each expert, in layers that have experts. */
static bool of_experts(lt_param_kind kind) {
    return kind == LT_PARAM_UP || kind == LT_PARAM_UP_BIAS || kind == LT_PARAM_DOWN ||
           kind == LT_PARAM_DOWN_BIAS;
}

static lt_layer_spec layer_of(const lt_layout *l, const lt_param *p) {
    return lt_model_layer(l->spec, p->layer >= 0 ? p->layer : 0);
}

bool lt_layout_expert(const lt_layout *l, const lt_param *p) {
    return p->layer >= 0 && of_experts(p->kind) && layer_of(l, p).n_experts > 0;
}

/* How tp divides a parameter. Where it divides the input of a matrix (the vocabulary, of an
 * embedding), it divides A, whose other dimension is the rank; where it divides the output, it
 * divides B. */
static division division_of(const lt_param *p) {
    const division d = divisions[p->kind];
    const bool input = d == HEADS_IN || d == FFN_IN || p->kind == LT_PARAM_EMBED;
    return p->role == LT_PARAM_OWN || (p->role == LT_PARAM_LORA_A) == input ? d : WHOLE;
}

static bool holds(const lt_layout *l, const lt_param *p) {
    if (p->layer >= 0) {
        return l->layers[p->layer];
    }
    switch (p->kind) {
    case LT_PARAM_EMBED:
        return l->embeds || (l->heads && l->spec->tied && p->role == LT_PARAM_OWN);
    case LT_PARAM_POS_EMBED:
        return l->embeds;
    default:
        return l->heads;
    }
}

/* Narrow dimension d of the box to [first, first + extent) of itself. */
static void narrow(lt_box *box, int d, int64_t first, int64_t extent) {
    box->first[d] += first;
    box->extent[d] = extent;
}

static lt_err add_qkv(const lt_layout *l, const lt_layer_spec *s, lt_box box, lt_box_list *out) {
    lt_box q = box, k = box, v = box;
    narrow(&q, 0, l->first_head * s->head_dim, l->n_heads * s->head_dim);
    narrow(&k, 0, lt_layer_q_cols(s) + l->first_kv_head * s->head_dim, l->n_kv_heads * s->head_dim);
    narrow(&v, 0, lt_layer_qk_cols(s) + l->first_kv_head * s->value_dim,
           l->n_kv_heads * s->value_dim);
    LT_TRY(lt_box_add(out, &q));
    LT_TRY(lt_box_add(out, &k));
    return lt_box_add(out, &v);
}

/* d: the dimension of gate's and up's rows. */
static lt_err add_ffn(const lt_layout *l, const lt_layer_spec *s, lt_box box, int d,
                      lt_box_list *out) {
    const int64_t width = s->ffn_width / l->shape.tp;
    for (int64_t half = 0; half < (s->gated ? 2 : 1); half++) {
        lt_box part = box;
        narrow(&part, d, half * s->ffn_width + width * l->tp, width);
        LT_TRY(lt_box_add(out, &part));
    }
    return LT_OK;
}

/* Add the boxes of one expert, or of a parameter without experts; d: the first dimension that does
 * not count experts. */
static lt_err add_divided(const lt_layout *l, const lt_param *p, lt_box box, int d,
                          lt_box_list *out) {
    const lt_layer_spec s = layer_of(l, p);
    const int last = p->n_dims - 1;
    if (l->shape.tp == 1) { /* In one box, so that the matrix is one piece. */
        return lt_box_add(out, &box);
    }
    switch (division_of(p)) {
    case WHOLE:
        break;
    case VOCAB:
        narrow(&box, 0, l->first_id, l->end_id - l->first_id);
        break;
    case QKV:
        return add_qkv(l, &s, box, out);
    case HEADS:
        narrow(&box, 0, l->first_head, l->n_heads);
        break;
    case Q_HEADS:
        if (s.qk_norm_whole) {
            narrow(&box, 0, l->first_head * s.head_dim, l->n_heads * s.head_dim);
        }
        break;
    case K_HEADS:
        if (s.qk_norm_whole) {
            narrow(&box, 0, l->first_kv_head * s.head_dim, l->n_kv_heads * s.head_dim);
        }
        break;
    case HEADS_IN:
        narrow(&box, last, l->first_head * s.value_dim, l->n_heads * s.value_dim);
        break;
    case FFN_OUT:
        return add_ffn(l, &s, box, d, out);
    case FFN_IN:
        narrow(&box, last, s.ffn_width / l->shape.tp * l->tp, s.ffn_width / l->shape.tp);
        break;
    }
    return lt_box_add(out, &box);
}

/* Add those rows of B, or of the magnitudes, that belong to rows of the matrix held here. */
static lt_err add_rows(const lt_param *p, const lt_box_list *matrix, lt_box_list *out) {
    int64_t at = 0;
    for (int i = 0; i < p->n_runs; i++) {
        const lt_box run = {.first = {p->runs[i].first}, .extent = {p->runs[i].count}};
        for (int b = 0; b < matrix->n; b++) {
            lt_box both, box = {.first = {0}};
            if (!lt_box_intersect(&both, &matrix->boxes[b], &run, 1)) {
                continue;
            }
            memcpy(box.extent, p->shape, sizeof p->shape);
            narrow(&box, 0, at + both.first[0] - run.first[0], both.extent[0]);
            LT_TRY(lt_box_add(out, &box));
        }
        at += run.extent[0];
    }
    return LT_OK;
}

/* The boxes of B or of the magnitudes; tp divides their rows as it does the matrix's. */
static lt_err add_adapted(const lt_layout *l, const lt_param *p, lt_box_list *out) {
    lt_param rows = {.kind = p->kind, .layer = p->layer, .n_dims = 1};
    lt_box_list matrix = {0};
    lt_err err = add_divided(l, &rows, (lt_box){.first = {0}}, 0, &matrix);
    err = err == LT_OK ? add_rows(p, &matrix, out) : err;
    free(matrix.boxes);
    return err;
}

static lt_err boxes_of(const void *ctx, const lt_param *p, lt_box_list *out) {
    const lt_layout *l = ctx;
    lt_box box = {.first = {0}};
    if (!holds(l, p)) {
        return LT_OK;
    }
    memcpy(box.extent, p->shape, sizeof p->shape);
    if (p->n_runs > 0 && division_of(p) != WHOLE && l->shape.tp > 1) {
        return add_adapted(l, p, out);
    }
    if (!lt_layout_expert(l, p)) {
        return add_divided(l, p, box, 0, out);
    }
    if (l->shape.tp == 1) {
        narrow(&box, 0, l->first_expert, l->n_experts);
        return lt_box_add(out, &box);
    }
    for (int64_t e = l->first_expert; e < l->first_expert + l->n_experts; e++) {
        lt_box one = box;
        narrow(&one, 0, e, 1);
        LT_TRY(add_divided(l, p, one, 1, out));
    }
    return LT_OK;
}

lt_partition lt_layout_partition(const lt_layout *l) {
    return (lt_partition){boxes_of, l, NULL};
}

/* ---- Copies ---- */

/* Row of the whole matrix that is row `row` of the part p. */
static int64_t matrix_row(const lt_param *p, int64_t row) {
    for (int i = 0; i < p->n_runs; i++) {
        if (row < p->runs[i].count) {
            return p->runs[i].first + row;
        }
        row -= p->runs[i].count;
    }
    return row;
}

/* Whether a box of q, k and v lies behind the heads of q. */
static bool is_of_keys(const lt_layout *l, const lt_param *p, const lt_box *box) {
    const lt_layer_spec s = layer_of(l, p);
    return matrix_row(p, box->first[0]) >= lt_layer_q_cols(&s);
}

unsigned lt_layout_copies(const lt_layout *l, const lt_param *p, const lt_box *box) {
    const division d = division_of(p);
    const bool one_head = (d == Q_HEADS || d == K_HEADS) && !layer_of(l, p).qk_norm_whole;
    unsigned copies = LT_COPIES_NONE;
    if (l->shape.tp > 1 && (d == WHOLE || one_head)) {
        copies |= LT_COPIES_TP;
    }
    if (l->kv_copies > 1 && ((d == QKV && is_of_keys(l, p, box)) || (d == K_HEADS && !one_head))) {
        copies |= LT_COPIES_KV;
    }
    if (l->ends_apart && p->kind == LT_PARAM_EMBED && p->role == LT_PARAM_OWN && l->spec->tied) {
        copies |= LT_COPIES_STAGES;
    }
    return copies;
}

bool lt_layout_answers(const lt_layout *l, const lt_param *p, const lt_box *box) {
    const unsigned copies = lt_layout_copies(l, p, box);
    return ((copies & LT_COPIES_TP) == 0 || l->tp == 0) &&
           ((copies & LT_COPIES_KV) == 0 || l->tp % l->kv_copies == 0) &&
           ((copies & LT_COPIES_STAGES) == 0 || l->embeds);
}
