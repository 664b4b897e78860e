/* lora.c: determines which adapters there are, and opens them; see lora.h. */
#include "model/lora/lora.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "model/lora/adapted.h"
#include "model/alloc.h"
#include "model/lora/dora.h"
#include "model/init.h"
#include "model/names.h"

static const struct {
    lt_param_kind kind;
    const char *name;
} kinds[LT_LORA_LAYER_KINDS + LT_LORA_TOP_KINDS] = {
    {LT_PARAM_QKV, "qkv"},   {LT_PARAM_ATTN_OUT, "attn_out"}, {LT_PARAM_UP, "up"},
    {LT_PARAM_DOWN, "down"}, {LT_PARAM_EMBED, "embed"},       {LT_PARAM_HEAD, "head"}};
enum { TOP_EMBED = LT_LORA_LAYER_KINDS, TOP_HEAD }; /* Indexes of the last two. */

int lt_lora_n_sites(const lt_model_spec *spec) {
    return (int)spec->n_layers * LT_LORA_LAYER_KINDS + LT_LORA_TOP_KINDS;
}

lt_lora_site *lt_lora_top_of(lt_lora_site *sites, const lt_model_spec *spec, lt_param_kind kind) {
    return &sites[lt_lora_n_sites(spec) - (kind == LT_PARAM_EMBED ? 2 : 1)];
}

const lt_lora_site *lt_lora_site_of(const lt_lora_site *sites, lt_param_kind kind, int layer) {
    for (int k = 0; k < LT_LORA_LAYER_KINDS; k++) {
        const lt_lora_site *s = &sites[layer * LT_LORA_LAYER_KINDS + k];
        if (kinds[k].kind == kind) {
            return s->n_parts > 0 ? s : NULL;
        }
    }
    return NULL;
}

/* ---- Names of modules ---- */

bool lt_lora_is_module(const lt_name_row *row) {
    for (int k = 0; k < LT_LORA_LAYER_KINDS; k++) {
        if (kinds[k].kind == row->kind) {
            return !lt_name_has_expert(row) && strstr(row->name, "experts") == NULL;
        }
    }
    return false;
}

/* Gate and up can be one module only if their rows are one after the other in the base's matrix,
 * which is so only in families whose files have them as two matrices. */
static const lt_name_row expert_rows[] = {
    {.kind = LT_PARAM_UP, .name = "model.layers.%L.mlp.experts.gate_up_proj"},
    {.kind = LT_PARAM_DOWN, .name = "model.layers.%L.mlp.experts.down_proj"}};

const lt_name_row *lt_lora_expert_row(const lt_model_spec *spec, lt_param_kind kind) {
    const bool has = spec->n_experts > 0 && lt_family_get(spec->family)->lora_experts;
    return !has                    ? NULL
           : kind == LT_PARAM_UP   ? &expert_rows[0]
           : kind == LT_PARAM_DOWN ? &expert_rows[1]
                                   : NULL;
}

bool lt_lora_is_top(const lt_name_row *row) {
    return row->kind == LT_PARAM_EMBED || row->kind == LT_PARAM_HEAD;
}

static void without_weight(char *name) {
    static const char ending[] = ".weight";
    const size_t n = strlen(name), m = sizeof ending - 1;
    if (n > m && strcmp(name + n - m, ending) == 0) {
        name[n - m] = '\0';
    }
}

void lt_lora_module(char out[LT_FOREIGN_NAME_BYTES], const lt_lora_part *part, int layer) {
    lt_foreign_name(out, part->name->name, layer, 0);
    without_weight(out);
}

/* The part of a name that follows the layer's number. */
static const char *in_layer(const lt_name_row *row) {
    const char *at = strstr(row->name, "%L.");
    return at != NULL ? at + 3 : row->name;
}

static const char *last_word(const char *name) {
    const char *end = strstr(name, ".weight"), *at = end != NULL ? end : name + strlen(name);
    while (at > name && at[-1] != '.') {
        at--;
    }
    return at;
}

void lt_lora_short_name(char out[LT_FOREIGN_NAME_BYTES], const lt_model_spec *spec,
                        const lt_name_row *row) {
    const lt_family_row *family = lt_family_get(spec->family);
    const char *word = last_word(in_layer(row));
    bool unique = strstr(row->name, "experts") == NULL;
    for (int i = 0; i < family->n_names; i++) {
        const lt_name_row *other = &family->names[i];
        unique = unique && (other == row || !lt_lora_is_module(other) ||
                            strcmp(last_word(in_layer(other)), word) != 0);
    }
    snprintf(out, LT_FOREIGN_NAME_BYTES, "%s", unique ? word : in_layer(row));
    without_weight(out);
}

bool lt_lora_target_is(const char *target, size_t length, const char *module) {
    const size_t n = strlen(module);
    return n >= length && memcmp(module + n - length, target, length) == 0 &&
           (n == length || module[n - length - 1] == '.');
}

/* ---- Which adapters there are ---- */

/* The next word of "a,b"; false at the end. */
static bool next_target(const char **p, const char **word, size_t *length) {
    *p += strspn(*p, ", ");
    *word = *p;
    *length = strcspn(*p, ", ");
    *p += *length;
    return *length > 0;
}

static bool is_all(const char *word, size_t length) {
    return length == sizeof LT_LORA_ALL - 1 && memcmp(word, LT_LORA_ALL, length) == 0;
}

/* of_layer: the module is one of those that all-linear stands for. */
static bool is_targeted(const char *targets, const char *module, bool of_layer) {
    const char *word;
    size_t length;
    while (next_target(&targets, &word, &length)) {
        if ((of_layer && is_all(word, length)) || lt_lora_target_is(word, length, module)) {
            return true;
        }
    }
    return false;
}

#define N_EXPERT_ROWS 2

/* The i-th of the family's names and of the experts' modules, if targets may name it; otherwise
 * NULL. */
static const lt_name_row *target_row(const lt_model_spec *spec, int i) {
    static const lt_param_kind of_experts[N_EXPERT_ROWS] = {LT_PARAM_UP, LT_PARAM_DOWN};
    const lt_family_row *family = lt_family_get(spec->family);
    if (i >= family->n_names) {
        return lt_lora_expert_row(spec, of_experts[i - family->n_names]);
    }
    const lt_name_row *row = &family->names[i];
    return lt_lora_is_module(row) || lt_lora_is_top(row) ? row : NULL;
}

/* Check that every target names a module. */
static lt_err check_targets(const lt_model_spec *spec, const char *targets) {
    const int n_rows = lt_family_get(spec->family)->n_names + N_EXPERT_ROWS;
    const char *word;
    char known[512] = "", module[LT_FOREIGN_NAME_BYTES];
    size_t length;
    for (const char *p = targets; next_target(&p, &word, &length);) {
        bool found = is_all(word, length);
        known[0] = '\0';
        for (int i = 0; i < n_rows; i++) {
            const lt_name_row *row = target_row(spec, i);
            if (row == NULL) {
                continue;
            }
            lt_foreign_name(module, row->name, 0, 0);
            without_weight(module);
            found = found || lt_lora_target_is(word, length, module);
            lt_lora_short_name(module, spec, row);
            (void)snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s",
                           known[0] != '\0' ? ", " : "", module);
        }
        if (!found) {
            LT_FAIL(LT_ERR_ARG, "lora.targets: '%.*s' is not a linear layer of %s; it has %s",
                    (int)length, word, lt_family_name(spec->family), known);
        }
    }
    return LT_OK;
}

/* The last letter of the names of such parameters. */
static const char letters[] = {
    [LT_PARAM_LORA_A] = 'a', [LT_PARAM_LORA_B] = 'b', [LT_PARAM_LORA_M] = 'm'};

/* Add A, B or the magnitudes (cols 0) of a matrix to the table; returns its index. layer: -1 for
 * the embedding and the head. s: the site whose parts determine the rows of B and of the
 * magnitudes. */
static int add_param(lt_lora_plan *p, const lt_lora_site *s, int which, int layer,
                     lt_param_role role, int64_t rows, int64_t cols) {
    lt_param q = {.kind = kinds[which].kind,
                  .role = role,
                  .layer = layer,
                  .n_runs = role != LT_PARAM_LORA_A ? s->n_parts : 0,
                  .unit = layer >= 0           ? 1 + layer
                          : which == TOP_EMBED ? 0
                                               : p->table.n_units - 1,
                  .n_dims = cols > 0 ? 2 : 1,
                  .shape = {rows, cols},
                  .decays = true}; /* Magnitudes, too, as in transformers' Trainer. */
    if (s->n_experts > 0) {
        q.n_runs = 0;
        q.experts = true;
        q.n_dims = 3;
        q.shape[0] = s->n_experts;
        q.shape[1] = rows;
        q.shape[2] = cols;
    }
    for (int i = 0; i < q.n_runs; i++) {
        q.runs[i] = (lt_param_run){s->parts[i].first_row, s->parts[i].n_rows};
    }
    if (layer >= 0) {
        (void)snprintf(q.name, sizeof q.name, "layers.%d.%s.lora_%c", layer, kinds[which].name,
                       letters[role]);
    } else {
        (void)snprintf(q.name, sizeof q.name, "%s.lora_%c", kinds[which].name, letters[role]);
    }
    return lt_param_table_add(&p->table, &q);
}

/* The parts of a matrix that have adapters, in the order of its rows. */
static void find_parts(lt_lora_site *s, const lt_model_spec *spec, const lt_param *param,
                       const char *targets) {
    const lt_family_row *family = lt_family_get(spec->family);
    for (int i = 0; i < family->n_names; i++) {
        const lt_name_row *row = &family->names[i];
        lt_lora_part part = {.name = row};
        char module[LT_FOREIGN_NAME_BYTES];
        if (!lt_lora_is_module(row) || !lt_name_applies(row, spec, param)) {
            continue;
        }
        lt_lora_module(module, &part, param->layer);
        if (is_targeted(targets, module, true) && s->n_parts < LT_LORA_PARTS) {
            lt_part_rows(spec, param, row->part, &part.first_row, &part.n_rows);
            s->parts[s->n_parts++] = part;
        }
    }
}

/* Add the experts' only part, if a target names it. */
static void find_experts(lt_lora_site *s, const lt_model_spec *spec, const lt_param *param,
                         const char *targets) {
    lt_lora_part part = {.name = lt_lora_expert_row(spec, param->kind), .n_rows = param->shape[1]};
    char module[LT_FOREIGN_NAME_BYTES];
    if (part.name == NULL) {
        return;
    }
    lt_lora_module(module, &part, param->layer);
    if (is_targeted(targets, module, true)) {
        s->n_experts = param->shape[0];
        s->parts[s->n_parts++] = part;
    }
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Number of rows of [0, end) of a matrix that are held here. */
static int64_t rows_below(const lt_param_table *base, const lt_param *p, int64_t end) {
    int64_t rows = 0;
    for (int b = 0; b < p->n_boxes; b++) {
        const lt_box *box = &lt_param_boxes(base, p)[b];
        const int64_t below = end - box->first[0];
        rows += below <= 0 ? 0 : below < box->extent[0] ? below : box->extent[0];
    }
    return rows;
}

/* Set the positions of the parts in the held part of their matrix and of B. */
static void place_parts(lt_lora_site *s, const lt_param_table *base, const lt_param *matrix) {
    int64_t b_row = 0, rows = 0;
    for (int i = 0; i < s->n_parts && s->n_experts == 0; i++) {
        lt_lora_part *p = &s->parts[i];
        p->b_row = b_row;
        b_row += p->n_rows;
        p->held.first_row = rows_below(base, matrix, p->first_row);
        p->held.n_rows = rows_below(base, matrix, p->first_row + p->n_rows) - p->held.first_row;
        p->held.b_row = rows;
        rows += p->held.n_rows;
    }
}

/* Add the site of a matrix. with_experts: the experts' modules, too. */
static void add_site(lt_lora_plan *p, const lt_model_spec *spec, const lt_param_table *base,
                     const lt_lora_options *o, bool with_experts, int layer, int which) {
    lt_lora_site *s = &p->sites[layer * LT_LORA_LAYER_KINDS + which];
    const lt_param *param = &base->params[lt_param_index(base, kinds[which].kind, layer)];
    int64_t rows;
    *s = (lt_lora_site){.a = -1, .b = -1, .m = -1};
    if (!param->experts) {
        find_parts(s, spec, param, o->targets);
    } else if (with_experts) {
        find_experts(s, spec, param, o->targets);
    }
    if (s->n_parts == 0) {
        return;
    }
    place_parts(s, base, param);
    rows = s->parts[s->n_parts - 1].b_row + s->parts[s->n_parts - 1].n_rows;
    p->n_modules += s->n_parts;
    p->sizes.columns = larger(p->sizes.columns, s->n_parts * o->rank);
    p->sizes.places = larger(p->sizes.places, s->n_experts > 0 ? spec->top_k : 1);
    s->a = add_param(p, s, which, layer, LT_PARAM_LORA_A, s->n_parts * o->rank,
                     param->shape[param->n_dims - 1]);
    s->b = add_param(p, s, which, layer, LT_PARAM_LORA_B, rows, o->rank);
    p->sizes.in = larger(p->sizes.in, param->shape[param->n_dims - 1]);
    s->m_at = p->sizes.n_magnitudes;
    p->sizes.n_magnitudes += rows;
    if (o->dora) {
        s->m = add_param(p, s, which, layer, LT_PARAM_LORA_M, rows, 0);
        p->sizes.width = larger(p->sizes.width, param->shape[0]);
    }
}

/* The name of the embedding or the head, if a target names it; otherwise NULL. */
static const lt_name_row *targeted_top(const lt_model_spec *spec, const char *targets, int which) {
    const lt_family_row *family = lt_family_get(spec->family);
    char module[LT_FOREIGN_NAME_BYTES];
    for (int i = 0; i < family->n_names; i++) {
        const lt_name_row *row = &family->names[i];
        if (row->kind != kinds[which].kind) {
            continue;
        }
        lt_lora_module(module, &(lt_lora_part){.name = row}, 0);
        if (is_targeted(targets, module, false)) {
            return row;
        }
    }
    return NULL;
}

/* Add the site of the embedding or the head. A tied head has the embedding's shape and no
 * separate parameter. */
static lt_err add_top(lt_lora_plan *p, const lt_model_spec *spec, const lt_param_table *base,
                      const lt_lora_options *o, int which) {
    lt_lora_site *s = lt_lora_top_of(p->sites, spec, kinds[which].kind);
    const lt_name_row *row = targeted_top(spec, o->targets, which);
    const int64_t V = spec->vocab_size, C = spec->width;
    *s = (lt_lora_site){.a = -1, .b = -1, .m = -1};
    if (row == NULL) {
        return LT_OK;
    }
    if (o->dora || (which == TOP_HEAD && spec->n_scores > 0)) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "lora.targets: %s with %s: not supported",
                which == TOP_EMBED ? "the embedding" : "the output head",
                o->dora ? "DoRA" : "a score head, which takes its place");
    }
    s->n_parts = 1;
    p->n_modules++;
    p->sizes.columns = larger(p->sizes.columns, o->rank);
    /* Its B has a row for each column of the matrix, and all are held. */
    if (which == TOP_EMBED) {
        s->parts[0] = (lt_lora_part){.name = row, .n_rows = C, .held = {.n_rows = C}};
        s->a = add_param(p, s, which, -1, LT_PARAM_LORA_A, V, o->rank);
    } else {
        s->parts[0] = (lt_lora_part){.name = row, .n_rows = V};
        place_parts(s, base, &base->params[lt_param_index(base, lt_param_head(spec), 0)]);
        s->a = add_param(p, s, which, -1, LT_PARAM_LORA_A, o->rank, C);
    }
    s->b = add_param(p, s, which, -1, LT_PARAM_LORA_B, s->parts[0].n_rows, o->rank);
    return LT_OK;
}

/* Add a score head or its bias, with the base's name and unit. */
static void add_score(lt_lora_plan *p, const lt_param_table *base, lt_param_kind kind) {
    const int index = lt_param_index(base, kind, 0), last = p->table.n_units - 1;
    if (index < 0) {
        return;
    }
    const lt_param *from = &base->params[index];
    lt_param q = {.kind = from->kind,
                  .layer = from->layer,
                  .unit = last,
                  .n_dims = from->n_dims,
                  .shape = {from->shape[0], from->shape[1]},
                  .decays = from->decays};
    (void)snprintf(q.name, sizeof q.name, "%s", from->name);
    p->table.index[last * LT_PARAM_KIND_COUNT + (int)kind] = lt_param_table_add(&p->table, &q);
}

static lt_err check_dora(const lt_lora_options *o, const lt_param_table *t) {
    for (int i = 0; o->dora && i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        if (p->role != LT_PARAM_OWN && p->n_dims == 3) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "lora.targets: experts with DoRA: not supported");
        }
    }
    return LT_OK;
}

/* all: including those of experts, and a score head that is trained beside them. */
static lt_err open_plan(lt_lora_plan *out, const lt_model_spec *spec, const lt_lora_options *o,
                        const lt_partition *model, const lt_partition *adapters, bool all) {
    lt_err err = LT_OK;
    lt_lora_plan p = {.sizes = {.places = 1}};
    lt_param_table base = {0};
    const int n_sites = lt_lora_n_sites(spec);

    LT_ASSERT(o->rank > 0 && o->targets != NULL);
    LT_TRY_DONE(check_targets(spec, o->targets));
    LT_TRY_DONE(lt_param_table_open_part(&base, spec, model));
    LT_TRY_DONE(lt_param_table_begin(&p.table, spec->n_layers, 3 * n_sites + 2));
    p.sites = calloc((size_t)n_sites, sizeof *p.sites);
    if (p.sites == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "adapters of %lld layers", (long long)spec->n_layers);
    }
    LT_TRY_DONE(add_top(&p, spec, &base, o, TOP_EMBED));
    for (int layer = 0; layer < spec->n_layers; layer++) {
        for (int which = 0; which < LT_LORA_LAYER_KINDS; which++) {
            add_site(&p, spec, &base, o, all, layer, which);
        }
    }
    LT_TRY_DONE(add_top(&p, spec, &base, o, TOP_HEAD));
    if (all) {
        add_score(&p, &base, LT_PARAM_SCORE);
        add_score(&p, &base, LT_PARAM_SCORE_BIAS);
    }
    if (p.n_modules == 0) {
        LT_FAIL_DONE(LT_ERR_ARG, "lora.targets is empty: no layer would have an adapter");
    }
    LT_TRY_DONE(check_dora(o, &p.table));
    LT_TRY_DONE(lt_param_table_end(&p.table, adapters));
    *out = p;
    p = (lt_lora_plan){.n_modules = 0};
done:
    lt_param_table_close(&base);
    lt_lora_plan_close(&p);
    return err;
}

lt_err lt_lora_plan_open(lt_lora_plan *out, const lt_model_spec *spec, const lt_lora_options *o,
                         const lt_partition *model, const lt_partition *adapters) {
    return open_plan(out, spec, o, model, adapters, true);
}

lt_err lt_lora_plan_all(lt_lora_plan *out, const lt_model_spec *spec, int64_t rank) {
    const lt_lora_options all = {.rank = rank, .targets = LT_LORA_ALL};
    return open_plan(out, spec, &all, NULL, NULL, false);
}

void lt_lora_plan_close(lt_lora_plan *p) {
    lt_param_table_close(&p->table);
    free(p->sites);
    *p = (lt_lora_plan){.n_modules = 0};
}

/* ---- Opening ---- */

/* The source of random values for a parameter, from element `first` of the whole on. */
typedef void (*drawing)(float *values, const lt_param *p, uint64_t seed, int64_t first, int64_t n);

/* Uniform in +- 1 / sqrt(in). */
static void draw_a(float *values, const lt_param *p, uint64_t seed, int64_t first, int64_t n) {
    const uint64_t stream = lt_init_stream(p->name);
    const double bound = 1.0 / sqrt((double)p->shape[p->n_dims - 1]);
    for (int64_t i = 0; i < n;) {
        uint32_t words[4];
        lt_rng_block(words, seed, stream, (uint64_t)(first + i) / 4);
        for (int64_t k = (first + i) % 4; k < 4 && i < n; k++) {
            values[i++] = (float)(bound * (2.0 * ((double)words[k] + 0.5) * 0x1p-32 - 1.0));
        }
    }
}

/* Normally distributed. */
static void draw_b(float *values, const lt_param *p, uint64_t seed, int64_t first, int64_t n) {
    lt_init_normals(values, seed, lt_init_stream(p->name), 1.0, first, n);
}

static void draw_held(lt_model *m, const lt_param *p, uint64_t seed, drawing fill) {
    float values[256];
    for (int64_t at = 0, run; at < p->local_count; at += run) {
        const int64_t whole = lt_param_whole_index(&m->table, p, at, &run);
        run = run < 256 ? run : 256;
        fill(values, p, seed, whole, run);
        lt_model_set(m, p, at, values, LT_F32, run);
    }
}

/* Draw new values of A or, for the embedding, of B; the other is zero. */
static void draw(lt_lora *l, const lt_lora_site *s, uint64_t seed) {
    const lt_param *params = l->trained->table.params;
    if (s->n_parts > 0 && params[s->a].kind == LT_PARAM_EMBED) {
        draw_held(l->trained, &params[s->b], seed, draw_b);
    } else if (s->n_parts > 0) {
        draw_held(l->trained, &params[s->a], seed, draw_a);
    }
}

void lt_lora_set(lt_model *m, const lt_param *whole, int64_t first, const float *values,
                 int64_t count) {
    const lt_param *p = &m->table.params[whole->number];
    for (int64_t at = 0, run; at < p->local_count; at += run) {
        const int64_t index = lt_param_whole_index(&m->table, p, at, &run);
        const int64_t from = index > first ? index : first,
                      to = index + run < first + count ? index + run : first + count;
        if (from < to) {
            lt_model_set(m, p, at + from - index, values + (from - first), LT_F32, to - from);
        }
    }
}

/* Make a separate model for the adapters' weights, zeroed. Takes over the plan's table. trainable:
 * with a master. */
static lt_err open_params(lt_model **out, const lt_model *base, lt_lora_plan *plan,
                          bool trainable) {
    const lt_model_options o = {
        .dtype = base->options.dtype, .trainable = trainable, .device = base->device};
    lt_model *m = NULL;
    lt_err err;
    LT_TRY(lt_model_begin(&m, &base->spec, &o));
    lt_param_table_close(&m->table);
    m->table = plan->table;
    plan->table = (lt_param_table){0};
    err = lt_model_place(m);
    if (err != LT_OK) {
        lt_model_close(m);
        return err;
    }
    *out = m;
    return LT_OK;
}

/* Open the trained parameters, if they are a part of those with which passes compute. */
static lt_err open_kept(lt_lora *l, const lt_model *base, const lt_lora_options *o,
                        const lt_partition *kept) {
    lt_lora_plan plan = {.n_modules = 0};
    lt_err err;
    if (kept == NULL) {
        l->trained = l->params;
        return LT_OK;
    }
    LT_TRY(lt_lora_plan_open(&plan, &base->spec, o, NULL, kept));
    err = open_params(&l->trained, base, &plan, true);
    lt_lora_plan_close(&plan);
    return err;
}

lt_tensor lt_lora_score(const lt_lora *l, lt_param_kind kind, const lt_param_buffer *b) {
    return lt_param_view(&l->params->table, kind, 0, b);
}

/* The trained score head begins with the base's values. */
static lt_err begin_score(lt_lora *l, const lt_model *base, lt_param_kind kind) {
    const int index = lt_param_index(&l->params->table, kind, 0);
    const lt_param *to = index >= 0 ? &l->trained->table.params[index] : NULL;
    const lt_tensor from = lt_param_view(&base->table, kind, 0, &base->weights);
    lt_err err;
    float *values;
    if (to == NULL || to->local_count == 0) {
        return LT_OK;
    }
    if (from.data == NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "adapters beside a score head that ranks divide: not supported");
    }
    const size_t count = (size_t)to->count, bytes = count * lt_dtype_bytes(from.dtype);
    values = malloc(count * sizeof *values + bytes);
    if (values == NULL) {
        LT_FAIL(LT_ERR_OOM, "score head of %zu numbers", count);
    }
    err = lt_model_download(base, values + count, from.data, bytes);
    if (err == LT_OK) {
        lt_convert(values, LT_F32, values + count, from.dtype, count);
        lt_lora_set(l->trained, to, 0, values, to->count);
    }
    free(values);
    return err;
}

lt_err lt_lora_open(lt_lora **out, lt_model *base, const lt_lora_options *o, uint64_t seed) {
    return lt_lora_open_parts(out, base, o, seed, &(lt_lora_parts){.held = NULL});
}

lt_err lt_lora_open_parts(lt_lora **out, lt_model *base, const lt_lora_options *o, uint64_t seed,
                          const lt_lora_parts *parts) {
    lt_err err = LT_OK;
    lt_lora_plan plan = {.n_modules = 0};
    lt_lora *l = NULL;

    LT_ASSERT(base->lora == NULL && (parts->kept == NULL || parts->held != NULL));
    if (parts->held == NULL && !lt_param_table_is_whole(&base->table)) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "adapters beside a part of a model: not supported");
    }
    if (base->stored != NULL && !base->options.decoded && o->dora) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "DoRA beside weights whose products are of 8 bits: not supported");
    }
    LT_TRY(lt_lora_plan_open(&plan, &base->spec, o, parts->model, parts->held));
    l = calloc(1, sizeof *l);
    if (l == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "adapters");
    }
    l->options = *o;
    l->seed = seed;
    l->weights = parts->weights != NULL ? parts->weights : base;
    l->targets = strdup(o->targets);
    if (l->targets == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "adapters");
    }
    l->options.targets = l->targets;
    l->sizes = plan.sizes;
    l->n_modules = plan.n_modules;
    l->sites = plan.sites;
    plan.sites = NULL;
    l->scale = (float)(o->alpha /
                       (o->scaling == LT_LORA_BY_ROOT ? sqrt((double)o->rank) : (double)o->rank));
    LT_TRY_DONE(open_params(&l->params, base, &plan, parts->kept == NULL));
    LT_TRY_DONE(open_kept(l, base, o, parts->kept));
    for (int i = 0; i < lt_lora_n_sites(&base->spec); i++) {
        draw(l, &l->sites[i], seed);
    }
    LT_TRY_DONE(begin_score(l, base, LT_PARAM_SCORE));
    LT_TRY_DONE(begin_score(l, base, LT_PARAM_SCORE_BIAS));
    LT_TRY_DONE(lt_model_settle(l->trained));
    LT_TRY_DONE(lt_dora_open(l, base, parts->held == NULL));
    l->base = base;
    base->lora = l;
    *out = l;
    l = NULL;
done:
    lt_lora_close(l);
    lt_lora_plan_close(&plan);
    return err;
}

void lt_lora_close(lt_lora *l) {
    if (l == NULL) {
        return;
    }
    if (l->base != NULL && l->base->lora == l) {
        l->base->lora = NULL;
    }
    lt_dora_close(l);
    lt_model_close(l->trained != l->params ? l->trained : NULL);
    lt_model_close(l->params);
    free(l->sites);
    free(l->targets);
    free(l);
}

void lt_lora_use(lt_model *base, lt_lora *l) {
    LT_ASSERT(l == NULL || l->base == base);
    base->lora = l;
}

lt_err lt_lora_check_shared(const lt_lora *l) {
    const lt_model_spec *spec = &l->base->spec;
    const struct {
        const char *what;
        bool asked;
    } refused[] = {
        {"DoRA (lora.dora)", l->options.dora},
        {"dropout (lora.dropout)", l->options.dropout > 0.0},
        {"adapters of the embedding (lora.targets)",
         lt_lora_top_of(l->sites, spec, LT_PARAM_EMBED)->n_parts > 0},
        {"adapters of the output head (lora.targets)",
         lt_lora_top_of(l->sites, spec, LT_PARAM_HEAD)->n_parts > 0},
        {"a score head", spec->n_scores > 0},
        {"experts, whose load is balanced over all rows of a batch", spec->n_experts > 0},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (refused[i].asked) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "several adapters in one batch, with %s: not supported",
                    refused[i].what);
        }
    }
    return LT_OK;
}
