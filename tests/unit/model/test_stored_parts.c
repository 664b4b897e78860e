/* How far the log-probabilities of the shipped model as stored are from those of the same weights
 * in F32, and which parts cause it.
 *
 * A product with a matrix in a K format rounds its activations to 8 bits a block of 256
 * (block_act.c), and keys and values are kept in F16. There is no other cause: while the stored
 * model runs, every product is computed again in double, from the same activations with this
 * rounding and the widened matrix, and must agree except for F32 sums; the rest of a layer is the
 * code of F32.
 *
 * Then the same roundings are put into the F32 model, product by product, which shows what each
 * costs. All of them together are as far from F32 as the stored model is, and as far from that: a
 * rounding that falls the other way, for a last bit of its input, is a whole step of 8 bits, and
 * after a few layers two runs whose first products differ in their last bits round independently.
 * So the two cannot be compared token by token; how far each lies from F32 can. The figures are
 * in docs/numerics.md; LATEEN_PARTS_TEXT=FILE.jsonl measures them on other text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "data/text_reader.h"
#include "lateen/model.h"
#include "lateen/tokenizer.h"
#include "model/params.h"
#include "tensor/backend.h"
#include "tensor/block.h"
#include "tensor/ops.h"
#include "unit/device.h"

#define MODEL "models/polyglot-46m.gguf"
#define TEXT  "data/demo/val.jsonl.zst"
enum { PIECE = 128, MAX_TOKENS = 2048, MAX_COLS = 4096 };

static void must(lt_err err, const char *what) {
    if (err != LT_OK) {
        fail_msg("%s: %s", what, lt_error_message());
    }
}

/* ---- The F32 model with activations rounded ---- */

typedef enum { QKV = 1, ATTN_OUT = 2, UP = 4, DOWN = 8, HEAD = 16, EACH = 31 } which_products;
static unsigned rounded_now;
static const lt_model_spec *spec_now;

static unsigned kind_of(const lt_tensor *b) {
    const lt_model_spec *s = spec_now;
    const int64_t rows = b->shape[0], cols = b->shape[1];
    return rows == s->vocab_size                                    ? HEAD
           : cols == s->ffn_width                                   ? DOWN
           : rows == s->ffn_width                                   ? UP
           : rows == (s->n_heads + 2 * s->n_kv_heads) * s->head_dim ? QKV
                                                                    : ATTN_OUT;
}

/* Round the row as its 8-bit blocks represent it. */
static void round_row(float *out, const float *x, int64_t n) {
    for (int64_t at = 0; at < n; at += LT_BLOCK_SUPER) {
        lt_q8 block;
        lt_q8_encode(&block, LT_PARTNER_Q8_K, x + at);
        for (int64_t i = 0; i < LT_BLOCK_SUPER; i++) {
            out[at + i] = block.d * (float)block.q[i];
        }
    }
}

/* ---- The stored model, observed ---- */

static int64_t n_checked;
static double worst_product; /* Of |y - truth| / sum of |terms|. */

static const lt_model *stored_model, *wide_model;

/* The matrix of a product in the F32 model, found by the packed rows that both models' tables
 * know. */
static const float *wide_rows(const lt_matmul_args *a) {
    for (int i = 0; i < stored_model->table.n_params; i++) {
        const lt_stored_weight *h = &stored_model->stored[i];
        for (int k = 0; k < h->n_ranges; k++) {
            if (h->ranges[k].packed == a->b_packed) {
                return lt_param_floats(&wide_model->master) + wide_model->table.params[i].whole_at +
                       h->ranges[k].first_row * a->b.shape[1];
            }
        }
    }
    return NULL;
}

/* Compare a few results of a product with blocks with rounded activations times widened weights,
 * in double. */
static lt_err watched_matmul(lt_queue *q, const lt_matmul_args *a) {
    static float x[MAX_COLS];
    const lt_err err = lt_backend_cpu()->ops->matmul(q, a);
    const int64_t cols = a->a.shape[1], n_out = a->b.shape[0], step = n_out / 5 + 1;
    if (err != LT_OK || !lt_dtype_is_block(a->b.dtype)) {
        return err;
    }
    const float *rows = wide_rows(a);
    assert_non_null(rows);
    const int64_t r = n_checked % a->a.shape[0];
    round_row(x, (const float *)a->a.data + r * a->a.stride[0], cols);
    for (int64_t o = n_checked % step; o < n_out; o += step) {
        const float *w = rows + o * cols;
        double sum = 0, terms = 0;
        for (int64_t i = 0; i < cols; i++) {
            sum += (double)x[i] * (double)w[i];
            terms += fabs((double)x[i] * (double)w[i]);
        }
        const double y = (double)((const float *)a->y.data)[r * a->y.stride[0] + o];
        worst_product = fmax(worst_product, fabs(y - sum) / fmax(terms, 1e-30));
        n_checked++;
    }
    return err;
}

static lt_err matmul(lt_queue *q, const lt_matmul_args *args) {
    lt_matmul_args a = *args;
    static float rows[PIECE * MAX_COLS];
    if (!a.trans_b || a.a.dtype != LT_F32 || (rounded_now & kind_of(&a.b)) == 0) {
        return lt_backend_cpu()->ops->matmul(q, args);
    }
    const int64_t n = a.a.shape[0], cols = a.a.shape[1];
    assert_true(n <= PIECE && cols <= MAX_COLS && cols % LT_BLOCK_SUPER == 0);
    for (int64_t r = 0; r < n; r++) {
        round_row(rows + r * cols, (const float *)a.a.data + r * a.a.stride[0], cols);
    }
    a.a = lt_tensor_2d(rows, LT_F32, n, cols);
    return lt_backend_cpu()->ops->matmul(q, &a);
}

/* ---- Text ---- */

static int32_t tokens[MAX_TOKENS];
static int64_t n_tokens;

/* Two pieces of PIECE tokens of a document, each after the first token of texts. */
static void read_tokens(int64_t most) {
    const char *path = getenv("LATEEN_PARTS_TEXT") != NULL ? getenv("LATEEN_PARTS_TEXT") : TEXT;
    lt_tokenizer *t = NULL;
    lt_tokenizer_scratch *scratch = NULL;
    lt_text_reader *reader = NULL;
    lt_text_record doc;
    bool more = true;
    must(lt_tokenizer_open(&t, MODEL, NULL), MODEL);
    must(lt_tokenizer_scratch_open(&scratch, t), MODEL);
    must(lt_text_reader_open(&reader, path, NULL), path);
    const int32_t first = (int32_t)lt_tokenizer_describe(t).bos;
    for (n_tokens = 0; n_tokens + PIECE <= most;) {
        lt_ids ids = {0};
        must(lt_text_reader_document(reader, &doc, &more), path);
        if (!more) {
            break;
        }
        must(lt_tokenizer_encode(t, scratch, doc.data, doc.bytes < 4096 ? doc.bytes : 4096,
                                 LT_ENCODE_PLAIN, &ids),
             path);
        for (size_t at = 0;
             at < 2 * (PIECE - 1) && at + PIECE - 1 <= ids.n && n_tokens + PIECE <= most;
             at += PIECE - 1) {
            tokens[n_tokens] = first;
            memcpy(tokens + n_tokens + 1, ids.data + at, (PIECE - 1) * sizeof *tokens);
            n_tokens += PIECE;
        }
        lt_ids_free(&ids);
    }
    lt_text_reader_close(reader);
    lt_tokenizer_scratch_close(scratch);
    lt_tokenizer_close(t);
    assert_true(n_tokens > 0);
}

/* ---- Measuring ---- */

static void losses_of(const lt_model *m, float *loss) {
    static int32_t best[PIECE];
    lt_session *s = NULL;
    must(lt_session_open(&s, m, 1, PIECE), "session");
    for (int64_t at = 0; at < n_tokens; at += PIECE) {
        lt_session_truncate(s, 0, 0);
        must(lt_session_score(s, 0, tokens + at, PIECE - 1, tokens + at + 1, loss + at, best),
             "scores");
        loss[at + PIECE - 1] = 0;
    }
    lt_session_close(s);
}

typedef struct {
    double loss, mean, rms, max;
} apart;

static apart compare(const char *what, const float *a, const float *b) {
    const double n = (double)(n_tokens / PIECE * (PIECE - 1));
    apart d = {0};
    for (int64_t i = 0; i < n_tokens; i++) {
        const double off = (double)a[i] - (double)b[i];
        d.loss += (double)a[i] / n;
        d.mean += fabs(off) / n;
        d.rms += off * off / n;
        d.max = fmax(d.max, fabs(off));
    }
    d.rms = sqrt(d.rms);
    printf("# %-34s loss %.5f; apart: mean %.5f, rms %.5f, at most %.4f\n", what, d.loss, d.mean,
           d.rms, d.max);
    return d;
}

static void the_distance_is_rounding(void **state) {
    static float wide[MAX_TOKENS], stored[MAX_TOKENS], other[MAX_TOKENS];
    static const struct {
        const char *what;
        unsigned products;
    } parts[] = {{"8 bits into qkv", QKV},
                 {"8 bits into attention's output", ATTN_OUT},
                 {"8 bits into up", UP},
                 {"8 bits into down", DOWN},
                 {"8 bits into the head", HEAD}};
    lt_backend backend = *lt_backend_cpu();
    lt_ops ops = *backend.ops;
    lt_model *m = NULL, *w = NULL;
    (void)state;
    ops.matmul = watched_matmul;
    backend.ops = &ops;
    read_tokens(getenv("LATEEN_PARTS_TEXT") != NULL ? MAX_TOKENS : 2 * PIECE);
    must(lt_model_open(&m, MODEL,
                       &(lt_model_options){.stored = true, .device = device_of(&backend)}),
         MODEL);
    must(lt_model_open(&w, MODEL, &(lt_model_options){.trainable = true}), MODEL);
    stored_model = m;
    wide_model = w;
    losses_of(m, stored);
    lt_model_close(m);
    lt_model_close(w);
    printf("# %lld results of products as stored: at most %.2g of the sum of their terms off\n",
           (long long)n_checked, worst_product);
    assert_true(n_checked > 300 && worst_product < 1e-6);
    ops.matmul = matmul;
    must(lt_model_open(&m, MODEL, &(lt_model_options){.device = device_of(&backend)}), MODEL);
    spec_now = lt_model_get_spec(m);
    rounded_now = 0;
    losses_of(m, wide);
    const apart whole = compare("as stored, from fp32", stored, wide);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        rounded_now = parts[i].products;
        losses_of(m, other);
        (void)compare(parts[i].what, other, wide);
    }
    m->options.stored = true; /* Only its session reads the option: keys and values in F16. */
    rounded_now = 0;
    losses_of(m, other);
    (void)compare("keys and values in F16", other, wide);
    rounded_now = EACH;
    losses_of(m, other);
    const apart all = compare("all of these, from fp32", other, wide);
    (void)compare("all of these, from as stored", other, stored);
    assert_true(whole.rms < 1.5 * all.rms && all.rms < 1.5 * whole.rms);
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_distance_is_rounding)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
