/* lora_pool.c: see lora_pool.h. */
#include "model/lora/lora_pool.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "lateen/tensor.h"
#include "model/alloc.h"
#include "model/lora/lora_gguf.h"
#include "model/lora/lora_pool_impl.h"

/* In 16 bits, rows of u and B begin at multiples of 16 bytes, as fast products require. */
#define RANK_STEP 8

/* A rank rounded up for products. */
static int64_t stepped(int64_t rank) {
    return (rank + RANK_STEP - 1) / RANK_STEP * RANK_STEP;
}

static size_t weights_bytes(const lt_lora_pool *p) {
    return lt_param_buffer_bytes(&p->plan.table, p->model->options.dtype);
}

/* Number of elements of an array with one for each possible module. */
static size_t n_modules(const lt_lora_pool *p) {
    return (size_t)p->model->spec.n_layers * LT_LORA_LAYER_KINDS * LT_LORA_PARTS;
}

lt_err lt_lora_pool_open(lt_model *m, int32_t n_places, int64_t rank, bool dora) {
    lt_err err = LT_OK;
    lt_lora_pool *p = NULL;

    LT_ASSERT(m->lora_pool == NULL && n_places > 0 && n_places <= LT_LORA_POOL_MOST && rank > 0);
    if (m->lora != NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "adapters that requests choose, beside a model that is opened with adapters of its "
                "own: serve its base, and name them with --lora");
    }
    p = calloc(1, sizeof *p);
    if (p == NULL) {
        LT_FAIL(LT_ERR_OOM, "adapters");
    }
    p->model = m;
    p->most = rank;
    p->rank = stepped(rank);
    p->n = n_places;
    LT_TRY_DONE(lt_lora_plan_all(&p->plan, &m->spec, p->rank));
    p->places = calloc((size_t)n_places, sizeof *p->places);
    p->ranks = calloc((size_t)n_places * n_modules(p), sizeof *p->ranks);
    if (p->places == NULL || p->ranks == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "adapters");
    }
    LT_TRY_DONE(
        m->backend->alloc(m->device, &p->data, (size_t)p->n * weights_bytes(p), "adapters"));
    LT_TRY_DONE(dora ? lt_lora_pool_open_dora(p) : LT_OK);
    m->lora_pool = p;
    p = NULL;
done:
    lt_lora_pool_close(p);
    return err;
}

void lt_lora_pool_close(lt_lora_pool *p) {
    if (p == NULL) {
        return;
    }
    if (p->data != NULL) {
        p->model->backend->release(p->model->device, p->data, (size_t)p->n * weights_bytes(p));
    }
    lt_lora_pool_close_dora(p);
    lt_lora_plan_close(&p->plan);
    free(p->places);
    free(p->ranks);
    free(p);
}

int32_t lt_lora_pool_places(const lt_lora_pool *p) {
    return p != NULL ? p->n : 0;
}

int64_t lt_lora_pool_rank(const lt_lora_pool *p) {
    return p->most;
}

int64_t lt_lora_pool_columns(const lt_lora_pool *p) {
    return p->rank;
}

size_t lt_lora_pool_place_bytes(const lt_lora_pool *p) {
    return weights_bytes(p) + lt_lora_pool_dora_bytes(p);
}

bool lt_lora_pool_has_factors(const lt_lora_pool *p, int32_t place) {
    return atomic_load(&p->places[place].scaled);
}

uint64_t lt_lora_pool_digest(const lt_lora_pool *p, int32_t place) {
    return atomic_load(&p->places[place].digest);
}

void lt_lora_pool_hold(lt_lora_pool *p, int32_t place) {
    atomic_fetch_add(&p->places[place].holds, 1);
}

void lt_lora_pool_release(lt_lora_pool *p, int32_t place) {
    const int before = atomic_fetch_sub(&p->places[place].holds, 1);
    LT_ASSERT(before > 0);
}

int lt_lora_pool_holds(const lt_lora_pool *p, int32_t place) {
    return atomic_load(&p->places[place].holds);
}

/* ---- Files ---- */

/* Adapters that are being read into an image: from PEFT's folder, or from a GGUF, for which config
 * and file are not used.
 */
typedef struct {
    const lt_lora_pool *pool;
    const json_t *config;
    const lt_safetensors *file;
    const lt_gguf *gguf;
    char path[LT_PATH_BYTES]; /* Path of the file. */
    double alpha;             /* Alpha of a GGUF; 0: the rank. */
    bool by_root;
    bool alone;     /* The image has no other source. */
    bool dora;      /* Modules have magnitudes. */
    float scale;    /* Scale of the source. */
    char *data;     /* Data of the image. */
    float *factors; /* Factors of the image, or NULL. */
    uint16_t *used; /* (sites, LT_LORA_PARTS) rows of A that other folders have taken */
    size_t n_read;
} reading;

/* The alpha of a module's adapter, whose tensors are those of the configuration. */
static lt_err alpha_of(double *alpha, const reading *r, const char *module, int64_t rank) {
    lt_lora_module_config c;
    if (r->gguf != NULL) {
        *alpha = r->alpha == 0.0 ? (double)rank : r->alpha;
        return LT_OK;
    }
    LT_TRY(lt_lora_config_module(&c, r->config, module, true, r->path));
    if (!c.has || c.rank != rank) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: %s has an adapter of rank %lld, of which " LT_LORA_CONFIG " says rank %lld",
                r->path, module, (long long)rank, (long long)(c.has ? c.rank : 0));
    }
    *alpha = c.alpha;
    return LT_OK;
}

/* Write rows x cols numbers into a parameter of the image, whose rows have `ld` numbers, from
 * `first` on. */
static void put(const reading *r, const lt_param *param, int64_t first, int64_t ld,
                const float *values, int64_t rows, int64_t cols) {
    const lt_param_table *t = &r->pool->plan.table;
    const lt_dtype dtype = r->pool->model->options.dtype;
    const size_t bytes = lt_dtype_bytes(dtype);
    char *to = r->data + (size_t)(t->units[param->unit].at + param->at + first) * bytes;
    for (int64_t i = 0; i < rows; i++) {
        lt_convert(to + (size_t)(i * ld) * bytes, dtype, values + i * cols, LT_F32, (size_t)cols);
    }
}

/* Put A and B of a part into the image. */
static lt_err put_part(reading *r, const lt_lora_site *s, int i, uint16_t *used, int64_t rank,
                       float factor, const float *a, const float *b) {
    const lt_param *params = r->pool->plan.table.params;
    const lt_param *pa = &params[s->a], *pb = &params[s->b];
    const lt_lora_part *p = &s->parts[i];
    const int64_t R = r->pool->rank, cols = pa->shape[1], all_rows = pb->shape[0];
    float *t = NULL;
    LT_TRY(lt_lora_transpose(&t, b, p->n_rows, rank, factor));
    put(r, pa, (i * R + *used) * cols, cols, a, rank, cols);
    put(r, pb, *used * all_rows + p->b_row, all_rows, t, rank, p->n_rows);
    free(t);
    *used = (uint16_t)(*used + rank);
    r->n_read += 2;
    return LT_OK;
}

/* The name in the file of A, B or DoRA's magnitudes M of a part; false: the file has none. */
static bool tensor_name(char out[LT_LORA_TENSOR_BYTES], const reading *r, const lt_lora_site *s,
                        int i, char letter) {
    const lt_param *a = &r->pool->plan.table.params[s->a];
    char module[LT_FOREIGN_NAME_BYTES];
    if (letter == 'M' && !r->dora) {
        return false;
    }
    if (r->gguf != NULL) {
        return lt_lora_gguf_name(out, r->pool->model, a, &s->parts[i], letter == 'A' ? 'a' : 'b');
    }
    lt_lora_module(module, &s->parts[i], a->layer);
    if (letter == 'M') {
        (void)snprintf(out, LT_LORA_TENSOR_BYTES, LT_DORA_TENSOR, module);
    } else {
        (void)snprintf(out, LT_LORA_TENSOR_BYTES, LT_LORA_TENSOR, module, letter);
    }
    return true;
}

/* The rows of a matrix in a GGUF; 0: it is not a matrix. */
static int64_t gguf_rows(const lt_gguf_tensor *t) {
    return t->n_dims == 2 && t->n_elems > 0 ? (int64_t)t->dims[1] : 0;
}

/* The rows of a matrix; 0: the tensor is not a matrix; -1: there is no such tensor. */
static int64_t rows_of(const reading *r, const char *name) {
    if (r->gguf != NULL) {
        const lt_gguf_tensor *t = lt_gguf_tensor_find(r->gguf, name);
        return t != NULL ? gguf_rows(t) : -1;
    }
    const lt_safetensor *t = lt_safetensors_find(r->file, name);
    return t == NULL ? -1 : t->n_dims == 2 ? t->shape[0] : 0;
}

/* Read A (rank, in) and B (rows, rank); free both. */
static lt_err values_of(float **a, float **b, const reading *r, const lt_lora_site *s, int i,
                        int64_t rank, const char *a_name, const char *b_name) {
    const lt_param *pa = &r->pool->plan.table.params[s->a];
    const lt_lora_part *p = &s->parts[i];
    if (r->gguf != NULL) {
        return lt_lora_gguf_values(a, b, r->gguf, r->pool->model, pa, p, rank);
    }
    LT_TRY(lt_lora_values(a, r->file, r->path, a_name, rank, pa->shape[1]));
    return lt_lora_values(b, r->file, r->path, b_name, p->n_rows, rank);
}

/* Replace B (rows, rank) by c B, and write the factors of the part's rows. scale: that of B. */
static lt_err scale_part(reading *r, const lt_lora_site *s, int i, const lt_dora_part *part,
                         float *b) {
    const int64_t n = s->parts[i].n_rows;
    char name[LT_LORA_TENSOR_BYTES];
    lt_err err = LT_OK;
    float *m = NULL, *c = r->factors + s->m_at + s->parts[i].b_row;
    LT_ASSERT(tensor_name(name, r, s, i, 'M'));
    LT_TRY(lt_lora_values(&m, r->file, r->path, name, n, 0));
    LT_TRY_DONE(lt_lora_pool_derive(r->pool, c, part, m));
    for (int64_t row = 0; row < n; row++) {
        for (int64_t k = 0; k < part->rank; k++) {
            b[row * part->rank + k] *= c[row];
        }
    }
    r->n_read++;
done:
    free(m);
    return err;
}

/* Read the adapter of a module, if the file has one. */
static lt_err read_part(reading *r, const lt_lora_site *s, int i, uint16_t *used) {
    char module[LT_FOREIGN_NAME_BYTES], name[LT_LORA_TENSOR_BYTES], other[LT_LORA_TENSOR_BYTES];
    float *a_values = NULL, *b_values = NULL;
    lt_err err = LT_OK;
    int64_t rank;
    double alpha;
    float factor;

    if (!tensor_name(name, r, s, i, 'A') || !tensor_name(other, r, s, i, 'B')) {
        return LT_OK;
    }
    rank = rows_of(r, name);
    if (rank < 0) {
        return rows_of(r, other) < 0 ? LT_OK
                                     : lt_error_set(LT_ERR_FORMAT, "%s: %s is there without %s",
                                                    r->path, other, name);
    }
    lt_lora_module(module, &s->parts[i], r->pool->plan.table.params[s->a].layer);
    if (rank < 1 || rank > r->pool->most - *used) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: %s has rank %lld, where %lld are left: rank %lld is the most that this server "
                "has room for (--max-lora-rank)",
                r->path, module, (long long)rank, (long long)(r->pool->most - *used),
                (long long)r->pool->most);
    }
    LT_TRY_DONE(alpha_of(&alpha, r, module, rank));
    LT_TRY_DONE(values_of(&a_values, &b_values, r, s, i, rank, name, other));
    factor = (float)(alpha / (r->by_root ? sqrt((double)rank) : (double)rank)) * r->scale;
    LT_TRY_DONE(
        r->dora
            ? scale_part(r, s, i, &(lt_dora_part){s, i, rank, factor, a_values, b_values}, b_values)
            : LT_OK);
    LT_TRY_DONE(put_part(r, s, i, used, rank, factor, a_values, b_values));
done:
    free(a_values);
    free(b_values);
    return err;
}

static size_t n_tensors(const reading *r) {
    return r->gguf != NULL ? r->gguf->n_tensors : r->file->n_tensors;
}

/* Whether a tensor of this name belongs to a module of the model. */
static bool is_known(const reading *r, const char *name, size_t bytes) {
    const lt_lora_plan *plan = &r->pool->plan;
    const int n = (int)r->pool->model->spec.n_layers * LT_LORA_LAYER_KINDS * LT_LORA_PARTS;
    for (int k = 0; k < 3 * n; k++) {
        const lt_lora_site *s = &plan->sites[k / 3 / LT_LORA_PARTS];
        const int i = k / 3 % LT_LORA_PARTS;
        char expected[LT_LORA_TENSOR_BYTES];
        if (i < s->n_parts && tensor_name(expected, r, s, i, "ABM"[k % 3]) &&
            strlen(expected) == bytes && memcmp(expected, name, bytes) == 0) {
            return true;
        }
    }
    return false;
}

/* Fail, naming a tensor that belongs to no module of the model. */
static lt_err name_other(const reading *r) {
    for (size_t t = 0; t < n_tensors(r); t++) {
        const char *name = r->gguf != NULL ? r->gguf->tensors[t].name.data
                                           : r->file->tensors[t].name;
        const size_t bytes = r->gguf != NULL ? r->gguf->tensors[t].name.bytes : strlen(name);
        if (!is_known(r, name, bytes)) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "%s: %.*s belongs to no linear layer of this model that may have an adapter "
                    "(%s, %lld layers)",
                    r->path, (int)bytes, name, lt_family_name(r->pool->model->spec.family),
                    (long long)r->pool->model->spec.n_layers);
        }
    }
    LT_FAIL(LT_ERR_FORMAT, "%s has no tensor of an adapter", r->path);
}

static lt_err read_parts(reading *r) {
    const lt_lora_plan *plan = &r->pool->plan;
    const int n_sites = (int)r->pool->model->spec.n_layers * LT_LORA_LAYER_KINDS;
    for (int i = 0; i < n_sites; i++) {
        for (int k = 0; k < plan->sites[i].n_parts; k++) {
            LT_TRY(read_part(r, &plan->sites[i], k, &r->used[i * LT_LORA_PARTS + k]));
        }
    }
    return r->n_read < n_tensors(r) || r->n_read == 0 ? name_other(r) : LT_OK;
}

static lt_err read_folder(reading *r, const lt_lora_source *source) {
    lt_err err = LT_OK;
    json_t *config = NULL;
    lt_safetensors file = {0};
    LT_TRY(lt_lora_check_folder(source->path));
    LT_TRY(lt_lora_config_load(&config, source->path, &r->pool->model->spec, false));
    r->config = config;
    r->file = &file;
    LT_TRY_DONE(lt_json_bool(config, "use_dora", &r->dora, true, source->path));
    if (r->dora && r->factors == NULL) {
        LT_FAIL_DONE(LT_ERR_UNSUPPORTED,
                     "%s: use_dora is set, which this server has no room for: name an adapter with "
                     "use_dora when it starts, or let it load adapters (--lora-updating)",
                     source->path);
    }
    if (r->dora && !r->alone) {
        LT_FAIL_DONE(LT_ERR_UNSUPPORTED,
                     "%s: use_dora is set: such an adapter is not added to others, since the "
                     "lengths of rows would depend on the order in which they are added",
                     source->path);
    }
    LT_TRY_DONE(lt_json_bool(config, "use_rslora", &r->by_root, true, source->path));
    LT_TRY_DONE(lt_path_join(r->path, source->path, LT_LORA_WEIGHTS));
    LT_TRY_DONE(lt_safetensors_open(&file, r->path));
    LT_TRY_DONE(read_parts(r));
done:
    lt_safetensors_close(&file);
    json_decref(config);
    return err;
}

static lt_err read_gguf(reading *r, const lt_lora_source *source) {
    lt_err err = LT_OK;
    lt_gguf *g = NULL;
    LT_TRY(lt_gguf_open(&g, source->path));
    r->gguf = g;
    (void)snprintf(r->path, sizeof r->path, "%s", source->path);
    LT_TRY_DONE(lt_lora_gguf_check(g, &r->pool->model->spec));
    LT_TRY_DONE(lt_gguf_get_f64(g, "adapter.lora.alpha", &r->alpha));
    LT_TRY_DONE(read_parts(r));
done:
    lt_gguf_close(g);
    return err;
}

lt_err lt_lora_image_open(lt_lora_image *out, const lt_lora_pool *p, const lt_lora_source *sources,
                          int n) {
    lt_err err = LT_OK;
    lt_lora_image i = {.digest = 0};

    i.data = calloc(1, weights_bytes(p));
    i.ranks = calloc(n_modules(p), sizeof *i.ranks);
    if (i.data == NULL || i.ranks == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "an adapter of %zu bytes", lt_lora_pool_place_bytes(p));
    }
    LT_TRY_DONE(lt_lora_pool_begin_factors(p, &i.factors));
    for (int k = 0; k < n; k++) {
        reading r = {.pool = p,
                     .alone = n == 1,
                     .scale = sources[k].scale,
                     .data = i.data,
                     .factors = i.factors,
                     .used = i.ranks};
        LT_TRY_DONE(lt_lora_is_gguf_path(sources[k].path) ? read_gguf(&r, &sources[k])
                                                          : read_folder(&r, &sources[k]));
        i.dora = r.dora;
    }
    LT_TRY_DONE(i.dora ? lt_lora_pool_find_offsets(p, i.factors) : LT_OK);
    i.digest = XXH3_64bits(i.data, weights_bytes(p));
    if (i.dora) {
        i.digest = XXH3_64bits_withSeed(i.factors, lt_lora_pool_dora_bytes(p), i.digest);
    }
    *out = i;
    i = (lt_lora_image){.digest = 0};
done:
    lt_lora_image_close(&i);
    return err;
}

static lt_err rank_of_gguf(int64_t *rank, const char *path) {
    static const char a[] = ".lora_a";
    const size_t n = sizeof a - 1;
    lt_gguf *g = NULL;
    LT_TRY(lt_gguf_open(&g, path));
    for (size_t i = 0; i < g->n_tensors; i++) {
        const lt_gguf_tensor *t = &g->tensors[i];
        if (t->name.bytes > n && memcmp(t->name.data + t->name.bytes - n, a, n) == 0 &&
            gguf_rows(t) > *rank) {
            *rank = gguf_rows(t);
        }
    }
    lt_gguf_close(g);
    return LT_OK;
}

lt_err lt_lora_rank_of(int64_t *rank, const char *path) {
    static const char a[] = ".lora_A.weight";
    char weights[LT_PATH_BYTES];
    lt_safetensors file;
    *rank = 0;
    if (lt_lora_is_gguf_path(path)) {
        return rank_of_gguf(rank, path);
    }
    LT_TRY(lt_lora_check_folder(path));
    LT_TRY(lt_path_join(weights, path, LT_LORA_WEIGHTS));
    LT_TRY(lt_safetensors_open(&file, weights));
    for (size_t i = 0; i < file.n_tensors; i++) {
        const lt_safetensor *t = &file.tensors[i];
        if (lt_path_has_suffix(t->name, a) && t->n_dims == 2 && t->shape[0] > *rank) {
            *rank = t->shape[0];
        }
    }
    lt_safetensors_close(&file);
    return LT_OK;
}

void lt_lora_image_close(lt_lora_image *i) {
    free(i->data);
    free(i->ranks);
    free(i->factors);
    *i = (lt_lora_image){.digest = 0};
}

lt_err lt_lora_pool_fill(lt_lora_pool *p, int32_t place, const lt_lora_image *i) {
    const size_t bytes = weights_bytes(p);
    LT_ASSERT(place >= 0 && place < p->n && lt_lora_pool_holds(p, place) == 0);
    LT_TRY(i->factors != NULL ? lt_lora_pool_fill_factors(p, place, i->factors) : LT_OK);
    atomic_store(&p->places[place].digest, i->digest);
    atomic_store(&p->places[place].scaled, i->dora);
    memcpy(p->ranks + (size_t)place * n_modules(p), i->ranks, n_modules(p) * sizeof *p->ranks);
    return lt_model_upload(p->model, (char *)p->data + (size_t)place * bytes, i->data, bytes);
}

/* ---- Computing ---- */

lt_err lt_lora_rows_open(lt_lora_rows *r, const lt_lora_pool *pool) {
    *r = (lt_lora_rows){.pool = pool};
    if (pool == NULL) {
        return LT_OK;
    }
    r->ranks = calloc(n_modules(pool), sizeof *r->ranks);
    r->most = calloc(n_modules(pool), sizeof *r->most);
    return r->ranks != NULL && r->most != NULL ? LT_OK : lt_error_set(LT_ERR_OOM, "adapters");
}

void lt_lora_rows_close(lt_lora_rows *r) {
    free(r->ranks);
    free(r->most);
    r->ranks = r->most = NULL;
}

void lt_lora_rows_choose(lt_lora_rows *r, const int32_t *start) {
    const size_t n = n_modules(r->pool);
    bool grown = false;
    memset(r->ranks, 0, n * sizeof *r->ranks);
    r->dora = false;
    for (int32_t place = 0; place < r->pool->n; place++) {
        r->dora = r->dora ||
                  (start[place] < start[place + 1] && lt_lora_pool_has_factors(r->pool, place));
        const uint16_t *own = r->pool->ranks + (size_t)place * n;
        for (size_t i = 0; start[place] < start[place + 1] && i < n; i++) {
            r->ranks[i] = own[i] > r->ranks[i] ? own[i] : r->ranks[i];
        }
    }
    for (size_t i = 0; i < n; i++) {
        r->ranks[i] = (uint16_t)stepped(r->ranks[i]);
        if (r->ranks[i] > r->most[i]) {
            r->most[i] = r->ranks[i];
            grown = true;
        }
    }
    grown = grown || (r->dora && !r->any_dora);
    r->any_dora = r->any_dora || r->dora;
    r->growths += grown;
}

/* Whether a device records the call, with the largest ranks that any call has needed so far. */
static bool is_kept(const lt_exec *r) {
    return r->lora_rows->by_place && r->backend->graph_begin != NULL;
}

/* The site of a matrix, and the ranks of its parts; NULL: no row has an adapter there. */
static const lt_lora_site *site_of(const lt_exec *r, lt_param_kind kind, int layer,
                                   const uint16_t **ranks) {
    const lt_lora_rows *rows = r->lora_rows;
    const lt_lora_site *s = rows != NULL && rows->n > 0
                                ? lt_lora_site_of(rows->pool->plan.sites, kind, layer)
                                : NULL;
    bool any = false;
    if (s == NULL) {
        return NULL;
    }
    *ranks = (is_kept(r) ? rows->most : rows->ranks) + (s - rows->pool->plan.sites) * LT_LORA_PARTS;
    for (int i = 0; i < s->n_parts; i++) {
        any = any || (*ranks)[i] > 0;
    }
    return any ? s : NULL;
}

bool lt_lora_rows_have(const lt_exec *r, lt_param_kind kind, int layer) {
    const uint16_t *ranks;
    return site_of(r, kind, layer, &ranks) != NULL;
}

/* A view of a parameter in all places, (places, rows, cols), from its element `first` on; ld:
 * numbers from one row to the next. */
static lt_tensor in_places(const lt_lora_pool *p, int index, int64_t first, int64_t rows,
                           int64_t cols, int64_t ld) {
    const lt_param_table *t = &p->plan.table;
    const lt_param *param = &t->params[index];
    const lt_dtype dtype = p->model->options.dtype;
    const int64_t at = t->units[param->unit].at + param->at + first;
    lt_tensor all = lt_tensor_3d((char *)p->data + (size_t)at * lt_dtype_bytes(dtype), dtype, p->n,
                                 rows, cols);
    all.stride[0] = t->n_elements;
    all.stride[1] = ld;
    return all;
}

/* us = u times the scale of each row, by the op combine with one choice per row. */
static lt_err times_scale(lt_exec *r, lt_tensor us, lt_tensor u) {
    const lt_lora_rows *rows = r->lora_rows;
    return lt_exec_moe_combine_fwd(
        r, &(lt_moe_combine_args){.y = us,
                                  .x = u,
                                  .weights = lt_tensor_2d(rows->scale.data, LT_F32, rows->n, 1),
                                  .slot_row = rows->number,
                                  .expert_start = lt_tensor_rows(&rows->start, rows->pool->n, 1)});
}

/* y (n, out) += the products of the adapters of one module. */
static lt_err add_part(lt_exec *r, const lt_lora_site *s, int i, int64_t rank, lt_tensor y,
                       lt_tensor x) {
    const lt_lora_rows *rows = r->lora_rows;
    const lt_lora_pool *p = rows->pool;
    const lt_param *params = p->plan.table.params;
    const int64_t in = params[s->a].shape[1], out = params[s->b].shape[0], n = x.shape[0];
    const lt_tensor a = in_places(p, s->a, i * p->rank * in, rank, in, in),
                    b = in_places(p, s->b, s->parts[i].b_row, rank, s->parts[i].n_rows, out);
    lt_tensor u = lt_tensor_2d(rows->u.data, rows->u.dtype, n, rank);
    LT_TRY(lt_exec_matmul_grouped(r, &(lt_matmul_grouped_args){.y = u,
                                                               .a = x,
                                                               .b = a,
                                                               .expert_start = rows->start,
                                                               .trans_b = true,
                                                               .fixed_order = r->fixed_order}));
    if (rows->scale.data != NULL) {
        const lt_tensor us = lt_tensor_2d(rows->us.data, u.dtype, n, rank);
        LT_TRY(times_scale(r, us, u));
        u = us;
    }
    return lt_exec_matmul_grouped(r, &(lt_matmul_grouped_args){.y = y,
                                                               .a = u,
                                                               .b = b,
                                                               .expert_start = rows->start,
                                                               .accumulate = true,
                                                               .fixed_order = r->fixed_order});
}

/* Add the products of all modules of a matrix, with the place of each row. */
static lt_err add_by_place(lt_exec *r, const lt_lora_site *s, const uint16_t *ranks, lt_tensor y,
                           lt_tensor x) {
    const lt_lora_rows *rows = r->lora_rows;
    const lt_lora_pool *p = rows->pool;
    const lt_param *params = p->plan.table.params;
    const int64_t in = params[s->a].shape[1], out = params[s->b].shape[0], n = x.shape[0];
    int64_t rank = 0;
    for (int i = 0; i < s->n_parts; i++) {
        rank = ranks[i] > rank ? ranks[i] : rank;
    }
    const lt_tensor a = in_places(p, s->a, 0, rank, in, in);
    lt_lora_add_args call = {.y = y,
                             .x = x,
                             .a = lt_tensor_4d(a.data, a.dtype, p->n, s->n_parts, rank, in),
                             .b = in_places(p, s->b, 0, rank, out, out),
                             .u = lt_tensor_2d(rows->sums.data, LT_F32, n, s->n_parts * rank),
                             .place = rows->place,
                             .scale = rows->scale,
                             .n_parts = s->n_parts};
    call.a.stride[0] = a.stride[0];
    call.a.stride[1] = p->rank * in;
    for (int i = 0; i < s->n_parts; i++) {
        call.parts[i] = (lt_lora_add_part){s->parts[i].first_row, s->parts[i].b_row,
                                           s->parts[i].n_rows};
    }
    return lt_exec_lora_add(r, &call);
}

lt_err lt_lora_rows_forward(lt_exec *r, lt_tensor y, lt_tensor x, lt_param_kind kind, int layer) {
    const uint16_t *ranks;
    const lt_lora_site *s = site_of(r, kind, layer, &ranks);
    if (s == NULL) {
        return LT_OK;
    }
    if (is_kept(r) ? r->lora_rows->any_dora : r->lora_rows->dora) {
        LT_TRY(lt_lora_pool_scale(r, s, kind, y));
    }
    if (r->lora_rows->by_place) {
        return add_by_place(r, s, ranks, y, x);
    }
    x = lt_tensor_rows(&x, 0, r->lora_rows->n);
    y = lt_tensor_rows(&y, 0, r->lora_rows->n);
    for (int i = 0; i < s->n_parts; i++) {
        const lt_lora_part *p = &s->parts[i];
        LT_TRY(ranks[i] > 0
                   ? add_part(r, s, i, ranks[i], lt_tensor_cols(&y, p->first_row, p->n_rows), x)
                   : LT_OK);
    }
    return LT_OK;
}
