/* rows.c: see rows.h. */
#include "train/rows.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"

int64_t lt_rows_used(const lt_batch *b, int64_t first, int64_t n, int64_t step) {
    int64_t used = 1;
    for (int64_t i = first; i < first + n; i++) {
        int64_t last = b->seq;
        while (last > used && b->labels[i * b->seq + last - 1] < 0) {
            last--;
        }
        used = last > used ? last : used;
    }
    used = (used + step - 1) / step * step;
    return used < b->seq ? used : b->seq;
}

/* ---- The loader over token shards ---- */

static lt_err loader_next(void *of, int64_t n, lt_row_batch *out) {
    return lt_loader_next(of, n, &out->ids, NULL);
}

static void loader_place(const void *of, lt_row_place *out) {
    lt_loader_get_state(of, &out->loader);
}

static json_t *loader_print(const void *of, const lt_row_place *place) {
    (void)of;
    const size_t room = (size_t)LT_LOADER_SOURCES_MAX * 256 + 4096;
    char *text = malloc(room);
    json_t *out = NULL;
    if (text != NULL && lt_loader_state_print(&place->loader, text, room) == LT_OK) {
        out = json_loads(text, 0, NULL);
    }
    free(text);
    return out;
}

static lt_err loader_seek(void *of, const json_t *place) {
    lt_err err = LT_OK;
    char *text = json_dumps(place, JSON_COMPACT);
    lt_loader_state state;

    if (text == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "loader state");
    }
    LT_TRY_DONE(lt_loader_state_parse(&state, text, strlen(text)));
    LT_TRY_DONE(lt_loader_set_state(of, &state));
done:
    free(text);
    return err;
}

lt_row_source lt_rows_of_loader(lt_loader *l) {
    return (lt_row_source){.of = l,
                           .next = loader_next,
                           .place = loader_place,
                           .print = loader_print,
                           .seek = loader_seek};
}

/* ---- Rows in memory ---- */

static lt_err memory_next(void *of, int64_t n, lt_row_batch *out) {
    lt_rows_memory *m = of;
    const lt_pass_batch *rows = &m->rows;
    const size_t bytes = (size_t)rows->seq * sizeof(int32_t);

    if (rows->seq != out->ids.seq) {
        LT_FAIL(LT_ERR_ARG, "rows of %lld tokens, wanted are rows of %lld", (long long)rows->seq,
                (long long)out->ids.seq);
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t from = m->next * rows->seq, to = i * rows->seq;
        memcpy(out->ids.tokens + to, rows->tokens + from, bytes);
        memcpy(out->ids.labels + to, rows->labels + from, bytes);
        for (int64_t k = 0; k < rows->seq; k++) {
            out->ids.doc_start[to + k] = rows->doc_start != NULL ? rows->doc_start[from + k] : 0;
            out->ids.positions[to + k] = rows->positions != NULL ? rows->positions[from + k]
                                                                 : (int32_t)k;
        }
        if (rows->weights != NULL) {
            memcpy(out->weights + to, rows->weights + from, bytes);
        }
        m->next = (m->next + 1) % rows->batch;
    }
    return LT_OK;
}

static void memory_place(const void *of, lt_row_place *out) {
    out->row = ((const lt_rows_memory *)of)->next;
}

static json_t *memory_print(const void *of, const lt_row_place *place) {
    (void)of;
    return json_pack("{s:I}", "row", (json_int_t)place->row);
}

static lt_err memory_seek(void *of, const json_t *place) {
    lt_rows_memory *m = of;
    int64_t row = -1;
    LT_TRY(lt_json_i64(place, "row", &row, false, "rows in memory"));
    if (row < 0 || row >= m->rows.batch) {
        LT_FAIL(LT_ERR_STATE, "rows in memory: row %lld of %lld", (long long)row,
                (long long)m->rows.batch);
    }
    m->next = row;
    return LT_OK;
}

lt_row_source lt_rows_in_memory(lt_rows_memory *m) {
    return (lt_row_source){.of = m,
                           .weights = m->rows.weights != NULL,
                           .next = memory_next,
                           .place = memory_place,
                           .print = memory_print,
                           .seek = memory_seek};
}
