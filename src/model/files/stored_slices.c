/* stored_slices.c: weights in blocks of which each rank keeps a slice (mesh.zero = 3): see
 * stored_weights.h. A rank that opens its slice makes the blocks of one unit at a time on the host,
 * and keeps its part of them. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/alloc.h"
#include "model/files/stored_weights.h"
#include "tensor/backend.h"

void lt_stored_unit_bytes(size_t *bytes, const lt_param_table *t, lt_stored_weight *stored, int n) {
    for (int u = 0; u < t->n_units; u++) {
        const lt_unit *unit = &t->units[u];
        const size_t step = (size_t)n * LT_STORED_ALIGN;
        bytes[u] = 0;
        for (int i = unit->first_param; i < unit->first_param + unit->n_params; i++) {
            for (int j = 0; j < stored[i].n_ranges; j++) {
                stored[i].ranges[j].at = bytes[u];
                bytes[u] += lt_stored_range_bytes(&stored[i].ranges[j]);
            }
        }
        bytes[u] = (bytes[u] + step - 1) / step * step;
    }
}

lt_err lt_stored_slices_plan(lt_stored_weight **stored, size_t *bytes, const char *path,
                             const lt_model_options *o, bool on_device, int n) {
    lt_stored_found f;
    const lt_err err = lt_stored_weights_find(&f, path, NULL, o, on_device);
    if (err == LT_OK) {
        lt_stored_unit_bytes(bytes, &f.m->table, f.m->stored, n);
        *stored = f.m->stored;
        f.m->stored = NULL;
    }
    lt_stored_weights_found_close(&f);
    return err;
}

/* The memory of this rank's slices, one unit after another. */
static lt_err place_slices(lt_model *m, lt_stored_slices *s, const size_t *bytes) {
    size_t at = 0;
    for (int u = 0; u < m->table.n_units; u++) {
        s->bytes[u] = bytes[u] / (size_t)s->n;
        m->stored_copies_bytes += s->bytes[u];
    }
    if (m->stored_copies_bytes == 0) {
        return LT_OK;
    }
    LT_TRY(m->backend->alloc(m->device, &m->stored_copies, m->stored_copies_bytes, "weights"));
    for (int u = 0; u < m->table.n_units; u++) {
        s->base[u] = s->bytes[u] > 0 ? (unsigned char *)m->stored_copies + at : NULL;
        at += s->bytes[u];
    }
    return LT_OK;
}

/* The slice of a unit, whose blocks are made in `room`. */
static lt_err fill_unit(const lt_stored_found *f, const lt_stored_slices *s, int u, size_t bytes,
                        unsigned char *room) {
    const lt_model *m = f->m;
    const lt_unit *unit = &m->table.units[u];
    memset(room, 0, bytes);
    for (int i = unit->first_param; i < unit->first_param + unit->n_params; i++) {
        for (int j = 0; j < m->stored[i].n_ranges; j++) {
            LT_TRY(lt_stored_range_write(f->m,
                                         (const lt_stored_origin(*)[LT_STORED_RANGES])f->origins, i,
                                         j, room + m->stored[i].ranges[j].at));
        }
    }
    return lt_model_upload(m, s->base[u], room + (size_t)s->own * s->bytes[u], s->bytes[u]);
}

static lt_err fill_all(const lt_stored_found *f, const lt_stored_slices *s, const size_t *bytes) {
    const int n_units = f->m->table.n_units;
    size_t most = 0;
    unsigned char *room;
    lt_err err = LT_OK;
    for (int u = 0; u < n_units; u++) {
        most = bytes[u] > most ? bytes[u] : most;
    }
    room = malloc(most + 1);
    if (room == NULL) {
        LT_FAIL(LT_ERR_OOM, "%zu bytes of a layer's weights", most);
    }
    for (int u = 0; u < n_units && err == LT_OK; u++) {
        err = bytes[u] > 0 ? fill_unit(f, s, u, bytes[u], room) : LT_OK;
    }
    free(room);
    return err;
}

lt_err lt_stored_slices_open(lt_model **out, const char *path, const lt_model_spec *spec,
                             const lt_model_options *o, int n, int own) {
    lt_err err = LT_OK;
    lt_stored_found f = {.m = NULL};
    size_t *bytes = NULL;
    lt_stored_slices *s;

    LT_ASSERT(o->decoded && o->elsewhere);
    LT_TRY_DONE(lt_stored_weights_find(&f, path, spec, o, !o->device->backend->host_memory));
    s = f.m->slices = calloc(1, sizeof *s);
    bytes = calloc((size_t)f.m->table.n_units, sizeof *bytes);
    if (s == NULL || bytes == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "slices");
    }
    *s = (lt_stored_slices){n, own, calloc((size_t)f.m->table.n_units, sizeof *s->bytes),
                            calloc((size_t)f.m->table.n_units, sizeof *s->base)};
    if (s->bytes == NULL || s->base == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "slices");
    }
    lt_stored_unit_bytes(bytes, &f.m->table, f.m->stored, n);
    LT_TRY_DONE(place_slices(f.m, s, bytes));
    LT_TRY_DONE(fill_all(&f, s, bytes));
    LT_TRY_DONE(lt_stored_number_rows(f.m));
    lt_param_table_skip_stored(&f.m->table, f.m->stored, o->partition);
    lt_stored_slices_use(f.m, -1, NULL);
    LT_TRY_DONE(lt_model_place(f.m));
    *out = f.m;
    f.m = NULL;
done:
    free(bytes);
    lt_stored_weights_found_close(&f);
    return err;
}

void lt_stored_slices_use(lt_model *m, int unit, unsigned char *blocks) {
    for (int i = 0; i < m->table.n_params; i++) {
        for (int j = 0; j < m->stored[i].n_ranges; j++) {
            lt_weight_range *range = &m->stored[i].ranges[j];
            if (unit < 0 || m->table.params[i].unit == unit) {
                range->w.data = blocks != NULL ? blocks + range->at : NULL;
                range->each = NULL;
            }
        }
    }
}

void lt_stored_slices_close(lt_stored_slices *s) {
    if (s != NULL) {
        free(s->bytes);
        free(s->base);
        free(s);
    }
}
