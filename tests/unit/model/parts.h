/* parts.h: models cut into parts in several ways, for tests that a part equals the slice of the
 * whole. */
#ifndef TESTS_MODEL_PARTS_H
#define TESTS_MODEL_PARTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/rng.h"
#include "model/params.h"

typedef enum {
    /* Tensor parallelism: the last dimension but one, or the dimension of a vector. */
    PARTS_ROWS,
    PARTS_COLUMNS,  /* The last dimension; vectors belong to part 0. */
    PARTS_EXPERTS,  /* The first of three dimensions; everything else belongs to part 0. */
    PARTS_LAYERS,   /* Pipeline stages: whole units. */
    PARTS_FLAT,     /* ZeRO: a range of the whole layout. */
    PARTS_RANDOM,   /* Random boxes, several per parameter, in any order. */
    PARTS_MATRICES, /* Whole matrices, as Muon needs them; the rest as PARTS_FLAT. */
    PARTS_KIND_COUNT
} parts_kind;

static const char *const parts_names[PARTS_KIND_COUNT] = {"rows", "columns", "experts", "layers",
                                                          "flat", "random",  "matrices"};

typedef struct {
    parts_kind kind;
    int n, part;
    uint64_t seed;
    int64_t n_units, whole_elements; /* Of the whole model. */
} parts_of;

static inline uint64_t parts_draw(const parts_of *o, const lt_param *p, int what, uint64_t below) {
    return lt_rng_mix(lt_rng_mix(o->seed * 1000003 + (uint64_t)p->whole_at) + (uint64_t)what) %
           below;
}

static inline lt_err parts_range(lt_box_list *out, const lt_param *p, int d, int n, int part) {
    lt_box box = {.first = {0}};
    for (int i = 0; i < p->n_dims; i++) {
        box.extent[i] = p->shape[i];
    }
    box.first[d] = p->shape[d] * part / n;
    box.extent[d] = p->shape[d] * (part + 1) / n - box.first[d];
    return box.extent[d] > 0 ? lt_box_add(out, &box) : LT_OK;
}

/* Cut points at any element, not only at multiples of the padding. */
static inline lt_err parts_flat(lt_box_list *out, const parts_of *o, const lt_param *p) {
    lt_box whole = {.first = {0}};
    const int64_t from = o->whole_elements * o->part / o->n - p->whole_at,
                  to = o->whole_elements * (o->part + 1) / o->n - p->whole_at;
    for (int i = 0; i < p->n_dims; i++) {
        whole.extent[i] = p->shape[i];
    }
    return lt_box_cut(out, &whole, 1, p->n_dims, from > 0 ? from : 0,
                      to < p->count ? to : p->count);
}

static inline lt_err parts_random(lt_box_list *out, const parts_of *o, const lt_param *p) {
    lt_box boxes[9] = {{.first = {0}}};
    int n = 1;
    for (int i = 0; i < p->n_dims; i++) {
        boxes[0].extent[i] = p->shape[i];
    }
    for (int cut = 0; cut < 8; cut++) {
        lt_box *b = &boxes[parts_draw(o, p, 4 * cut, (uint64_t)n)];
        const int d = (int)parts_draw(o, p, 4 * cut + 1, (uint64_t)p->n_dims);
        if (b->extent[d] > 1) {
            const int64_t keep = 1 +
                                 (int64_t)parts_draw(o, p, 4 * cut + 2, (uint64_t)b->extent[d] - 1);
            boxes[n] = *b;
            boxes[n].first[d] += keep;
            boxes[n++].extent[d] -= keep;
            b->extent[d] = keep;
        }
    }
    for (int i = 0; i < n; i++) {
        if (parts_draw(o, p, 100 + i, (uint64_t)o->n) == (uint64_t)o->part) {
            LT_TRY(lt_box_add(out, &boxes[i]));
        }
    }
    return LT_OK;
}

static inline lt_err parts_boxes(const void *ctx, const lt_param *p, lt_box_list *out) {
    const parts_of *o = ctx;
    const bool first = o->part == 0;
    switch (o->kind) {
    case PARTS_ROWS:
        return parts_range(out, p, p->n_dims > 1 ? p->n_dims - 2 : 0, o->n, o->part);
    case PARTS_COLUMNS:
        return p->n_dims > 1 ? parts_range(out, p, p->n_dims - 1, o->n, o->part)
               : first       ? parts_range(out, p, 0, 1, 0)
                             : LT_OK;
    case PARTS_EXPERTS:
        return p->n_dims == 3 ? parts_range(out, p, 0, o->n, o->part)
               : first        ? parts_range(out, p, 0, 1, 0)
                              : LT_OK;
    case PARTS_LAYERS:
        return p->unit * o->n / o->n_units == o->part ? parts_range(out, p, 0, 1, 0) : LT_OK;
    case PARTS_MATRICES:
        if (p->matrix) {
            return p->n_dims == 3 ? parts_range(out, p, 0, o->n, o->part)
                   : parts_draw(o, p, 0, (uint64_t)o->n) == (uint64_t)o->part
                       ? parts_range(out, p, 0, 1, 0)
                       : LT_OK;
        }
        return parts_flat(out, o, p);
    case PARTS_FLAT:
        return parts_flat(out, o, p);
    case PARTS_RANDOM:
        return parts_random(out, o, p);
    case PARTS_KIND_COUNT:
        break;
    }
    return LT_OK;
}

static inline parts_of parts_make(parts_kind kind, int n, int part, const lt_param_table *whole) {
    return (parts_of){.kind = kind,
                      .n = n,
                      .part = part,
                      .seed = 7 + (uint64_t)n,
                      .n_units = whole->n_units,
                      .whole_elements = whole->whole_elements};
}

/* Check that every element of a buffer that `part` holds has the bits of the whole; adds their
 * number to *n_held. */
static inline void parts_expect_slice(const lt_param_table *part, const lt_param_buffer *b,
                                      const lt_param_table *whole, const lt_param_buffer *w,
                                      int64_t *n_held, const char *what) {
    const size_t each = lt_dtype_bytes(b->dtype);
    assert_int_equal(b->dtype, w->dtype);
    assert_int_equal(part->n_params, whole->n_params);
    for (int i = 0; i < part->n_params; i++) {
        const lt_param *p = &part->params[i];
        const char *all = lt_param_data(w, &whole->params[i]);
        const char *held = lt_param_data(b, p);
        assert_true((held == NULL) == (p->local_count == 0));
        for (int64_t local = 0, run; local < p->local_count; local += run) {
            const int64_t at = lt_param_whole_index(part, p, local, &run);
            if (memcmp(held + (size_t)local * each, all + (size_t)at * each, (size_t)run * each) !=
                0) {
                fail_msg("%s: %s: of the %lld elements from %lld of the whole, %lld of the part, "
                         "some have other bits",
                         what, p->name, (long long)run, (long long)at, (long long)local);
            }
        }
        *n_held += p->local_count;
    }
}

static inline int64_t parts_count(const lt_param_table *t) {
    int64_t n = 0;
    for (int i = 0; i < t->n_params; i++) {
        n += t->params[i].count;
    }
    return n;
}

#endif
