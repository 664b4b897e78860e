/* steering.c: see steering.h. */
#include "model/infer/steering.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/option.h"
#include "model/params.h"
#include "model/files/safetensors.h"
#include "tensor/backend.h"

#define ALIGN_COLUMNS 8 /* Rows of 16 bytes in 16 bits. */

typedef struct {
    const char *name; /* The first member, for lt_name_find. */
    char text[LT_STEERING_NAME_BYTES], path[LT_PATH_BYTES];
} vector;

struct lt_steering {
    lt_model *model;
    int32_t n;
    vector vectors[LT_STEERING_MOST];
    bool *used; /* (n_layers) */
    char *host; /* (n_layers, C, K) in the model's type */
    void *data; /* The same in the backend's memory. */
    size_t data_bytes;
};

int32_t lt_steering_count(const lt_steering *s) {
    return s != NULL ? s->n : 0;
}

int64_t lt_steering_columns(const lt_steering *s) {
    const int64_t n = lt_steering_count(s);
    return (n + ALIGN_COLUMNS - 1) / ALIGN_COLUMNS * ALIGN_COLUMNS;
}

lt_err lt_steering_find(const lt_steering *s, const char *name, int32_t *out) {
    const size_t n = (size_t)lt_steering_count(s);
    const vector *all = s != NULL ? s->vectors : NULL;
    const vector *v = n > 0 ? lt_name_find(name, all, sizeof *all, n) : NULL;
    char hint[LT_NAME_HINT_BYTES] = "";
    if (v == NULL) {
        LT_FAIL(LT_ERR_NOT_FOUND, "no steering vector is named '%.40s'%s", name,
                n > 0 ? lt_name_hint(hint, name, all, sizeof *all, n)
                      : ": none was loaded (serve --steer NAME=FILE)");
    }
    *out = (int32_t)(v - all) + 1;
    return LT_OK;
}

/* ---- Files ---- */

/* Add one "NAME=FILE" of n bytes. */
static lt_err add_name(lt_steering *s, const char *text, size_t n) {
    const char *equals = memchr(text, '=', n);
    const size_t name_n = equals != NULL ? (size_t)(equals - text) : 0;
    const size_t path_n = n - name_n - (equals != NULL);
    vector *v = &s->vectors[s->n];
    if (name_n == 0 || path_n == 0 || name_n >= sizeof v->text || path_n >= sizeof v->path) {
        LT_FAIL(LT_ERR_ARG,
                "steering vectors: '%.*s' is not NAME=FILE with a name of 1 to %d bytes",
                (int)(n < 200 ? n : 200), text, LT_STEERING_NAME_BYTES - 1);
    }
    if (s->n == LT_STEERING_MOST) {
        LT_FAIL(LT_ERR_ARG, "steering vectors: more than %d", LT_STEERING_MOST);
    }
    memcpy(v->text, text, name_n);
    memcpy(v->path, equals + 1, path_n);
    v->name = v->text;
    if (lt_name_find(v->name, s->vectors, sizeof *s->vectors, (size_t)s->n) != NULL) {
        LT_FAIL(LT_ERR_ARG, "steering vectors: the name '%s' is given twice", v->name);
    }
    s->n++;
    return LT_OK;
}

static lt_err read_names(lt_steering *s, const char *what) {
    while (*what != '\0') {
        const size_t n = strcspn(what, ",");
        LT_TRY(add_name(s, what, n));
        what += n + (what[n] == ',');
    }
    if (s->n == 0) {
        LT_FAIL(LT_ERR_ARG, "steering vectors: no NAME=FILE");
    }
    return LT_OK;
}

/* The tensor's layer; -1: it is not a direction. */
static int64_t layer_of(const lt_safetensor *t) {
    static const char prefix[] = "direction.";
    const size_t n = sizeof prefix - 1;
    char *end = NULL;
    long layer;
    if (strncmp(t->name, prefix, n) != 0 || t->name[n] < '0' || t->name[n] > '9') {
        return -1;
    }
    layer = strtol(t->name + n, &end, 10);
    return *end == '\0' ? layer : -1;
}

static lt_err read_direction(lt_steering *s, const vector *v, const lt_safetensor *t,
                             float *scratch) {
    const lt_model_spec *spec = &s->model->spec;
    const int64_t C = spec->width, K = lt_steering_columns(s), layer = layer_of(t);
    const lt_dtype dtype = s->model->options.dtype;
    const size_t bytes = lt_dtype_bytes(dtype);
    int64_t count = 1;
    for (int i = 0; i < t->n_dims; i++) {
        count *= t->shape[i];
    }
    if (layer < 0 || layer >= spec->n_layers || count != C ||
        t->bytes != (size_t)C * lt_dtype_bytes(t->dtype)) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: tensor %s has %lld numbers; a vector has tensors direction.N of %lld numbers, "
                "N from 0 to %lld",
                v->path, t->name, (long long)count, (long long)C, (long long)spec->n_layers - 1);
    }
    lt_convert(scratch, LT_F32, t->data, t->dtype, (size_t)C);
    for (int64_t c = 0; c < C; c++) {
        if (!isfinite(scratch[c])) {
            LT_FAIL(LT_ERR_FORMAT, "%s: number %lld of %s is not finite", v->path, (long long)c,
                    t->name);
        }
        lt_convert(s->host + (size_t)((layer * C + c) * K + (v - s->vectors)) * bytes, dtype,
                   &scratch[c], LT_F32, 1);
    }
    s->used[layer] = true;
    return LT_OK;
}

static lt_err read_file(lt_steering *s, const vector *v, float *scratch) {
    lt_err err = LT_OK;
    lt_safetensors file = {0};
    LT_TRY(lt_safetensors_open(&file, v->path));
    if (file.n_tensors == 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s has no tensor direction.N", v->path);
    }
    for (size_t i = 0; i < file.n_tensors; i++) {
        const lt_dtype type = file.tensors[i].dtype;
        if (type != LT_F32 && type != LT_BF16 && type != LT_F16 && type != LT_F64) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s: tensor %s is %s; F32, F64, BF16 and F16 are read",
                         v->path, file.tensors[i].name, lt_dtype_name(type));
        }
        LT_TRY_DONE(read_direction(s, v, &file.tensors[i], scratch));
    }
done:
    lt_safetensors_close(&file);
    return err;
}

/* ---- Memory ---- */

static lt_err place(lt_steering *s) {
    lt_err err = LT_OK;
    lt_model *m = s->model;
    lt_queue *q = NULL;
    LT_TRY(m->backend->alloc(m->device, &s->data, s->data_bytes, "steering vectors"));
    LT_TRY_DONE(m->backend->queue_open(m->device, &q));
    LT_TRY_DONE(m->backend->upload(q, s->data, s->host, s->data_bytes));
    LT_TRY_DONE(m->backend->sync(q));
done:
    if (q != NULL) {
        m->backend->queue_close(q);
    }
    return err;
}

lt_err lt_steering_open(lt_model *m, const char *what) {
    lt_err err = LT_OK;
    const int64_t C = m->spec.width, L = m->spec.n_layers;
    float *scratch = NULL;
    lt_steering *s = calloc(1, sizeof *s);
    if (s == NULL) {
        LT_FAIL(LT_ERR_OOM, "steering vectors");
    }
    s->model = m;
    LT_TRY_DONE(read_names(s, what));
    s->used = calloc((size_t)L, sizeof *s->used);
    s->data_bytes = (size_t)(L * C * lt_steering_columns(s)) * lt_dtype_bytes(m->options.dtype);
    s->host = calloc(1, s->data_bytes);
    scratch = malloc((size_t)C * sizeof *scratch);
    if (s->used == NULL || s->host == NULL || scratch == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "steering vectors");
    }
    for (int32_t i = 0; i < s->n; i++) {
        LT_TRY_DONE(read_file(s, &s->vectors[i], scratch));
    }
    LT_TRY_DONE(place(s));
    lt_steering_close(m->steering);
    m->steering = s;
    s = NULL;
done:
    free(scratch);
    lt_steering_close(s);
    return err;
}

void lt_steering_close(lt_steering *s) {
    if (s == NULL) {
        return;
    }
    if (s->data != NULL) {
        s->model->backend->release(s->model->device, s->data, s->data_bytes);
    }
    free(s->host);
    free(s->used);
    free(s);
}

/* ---- Computing ---- */

void lt_steering_fill(const lt_steering *s, void *rows, const int32_t *which, const float *scale,
                      int64_t n) {
    const lt_dtype dtype = s->model->options.dtype;
    const int64_t K = lt_steering_columns(s);
    const size_t bytes = lt_dtype_bytes(dtype);
    memset(rows, 0, (size_t)(n * K) * bytes);
    for (int64_t i = 0; i < n; i++) {
        if (which[i] > 0) {
            lt_convert((char *)rows + (size_t)(i * K + which[i] - 1) * bytes, dtype, &scale[i],
                       LT_F32, 1);
        }
    }
}

lt_tensor lt_steering_of_layer(const lt_steering *s, int64_t layer) {
    const int64_t C = s->model->spec.width, K = lt_steering_columns(s);
    const lt_dtype dtype = s->model->options.dtype;
    char *data = s->data;
    return s->used[layer]
               ? lt_tensor_2d(data + (size_t)(layer * C * K) * lt_dtype_bytes(dtype), dtype, C, K)
               : (lt_tensor){0};
}
