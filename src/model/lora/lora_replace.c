/* lora_replace.c: reads weights of the model that a PEFT folder has whole, beside its adapters:
 * those of modules_to_save, of bias = all or lora_only, and of an embedding or an output head
 * that PEFT saves when it is asked to. They replace the model's weights when adapters are
 * merged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/alloc.h"
#include "model/lora/lora.h"
#include "model/names.h"

#define PREFIX "base_model.model."
#define INNER  ".base_layer" /* The module inside PEFT's, which has the adapter. */

/* Remove ".word" from a name; false: the name does not contain it. */
static bool take_out(char *name, const char *word) {
    char *at = strstr(name, word);
    if (at == NULL || at[strlen(word)] != '.') {
        return false;
    }
    memmove(at, at + strlen(word), strlen(at + strlen(word)) + 1);
    return true;
}

/* The name in the model's own file. */
static bool own_name(char out[LT_FOREIGN_NAME_BYTES], const char *name) {
    const size_t n = strlen(PREFIX);
    if (strncmp(name, PREFIX, n) != 0 || strlen(name) - n >= LT_FOREIGN_NAME_BYTES) {
        return false;
    }
    memcpy(out, name + n, strlen(name) - n + 1);
    (void)take_out(out, INNER);
    return true;
}

/* With bias = all PEFT writes biases of a module that it saves whole three times: under the
 * module's name, as its copy that was trained, and as the original. The first is used. */
static bool is_repeated(const lt_safetensors *file, const char *name) {
    char plain[LT_LORA_TENSOR_BYTES];
    if (strlen(name) >= sizeof plain) {
        return false;
    }
    memcpy(plain, name, strlen(name) + 1);
    return (take_out(plain, ".modules_to_save") || take_out(plain, ".original_module")) &&
           lt_safetensors_find(file, plain) != NULL;
}

/* Whether the file has the other one of embedding and head, with the same bytes. */
static bool has_twin(const lt_safetensors *file, const lt_safetensor *one,
                     const lt_family_row *family, lt_param_kind kind) {
    for (int i = 0; i < family->n_names; i++) {
        char name[LT_FOREIGN_NAME_BYTES + sizeof PREFIX];
        const lt_safetensor *other;
        if (family->names[i].kind != kind) {
            continue;
        }
        (void)snprintf(name, sizeof name, PREFIX "%s", family->names[i].name);
        other = lt_safetensors_find(file, name);
        if (other != NULL && other->dtype == one->dtype && other->bytes == one->bytes &&
            memcmp(other->data, one->data, one->bytes) == 0) {
            return true;
        }
    }
    return false;
}

static lt_err refuse_tied(const char *path, const char *name) {
    LT_FAIL(LT_ERR_UNSUPPORTED,
            "%s: %s: embedding and output head were trained separately, which are one matrix in "
            "this model (tie_word_embeddings): merge the adapter with PEFT (merge_and_unload), "
            "whose model then has two",
            path, name);
}

/* Set the values of a place: rows x cols from `first` on. */
static lt_err put(const lt_lora *l, const lt_param *p, const lt_name_place *at,
                  const lt_safetensors *file, const char *path, const char *name) {
    float *values = NULL, *turned = NULL,
          *to = (float *)lt_param_data(&l->base->master, p) + at->first;
    const size_t bytes = (size_t)(at->rows * at->cols) * sizeof *to;
    lt_err err = LT_OK;
    LT_TRY_DONE(at->transposed ? lt_lora_values(&values, file, path, name, at->cols, at->rows)
                               : lt_lora_values(&values, file, path, name, at->rows,
                                                at->cols > 1 ? at->cols : 0));
    LT_TRY_DONE(at->transposed ? lt_lora_transpose(&turned, values, at->cols, at->rows, 1.0f)
                               : LT_OK);
    memcpy(to, turned != NULL ? turned : values, bytes);
done:
    free(values);
    free(turned);
    return err;
}

lt_err lt_lora_replace(const lt_lora *l, const lt_safetensors *file, const char *path,
                       const char *name) {
    const lt_model_spec *spec = &l->base->spec;
    const lt_family_row *family = lt_family_get(spec->family);
    const lt_safetensor *tensor = lt_safetensors_find(file, name);
    char own[LT_FOREIGN_NAME_BYTES];
    const lt_name_row *row = NULL;
    const lt_param *p;
    lt_name_place place;
    int at = -1;

    LT_ASSERT(tensor != NULL);
    LT_ASSERT(l->base->backend->host_memory && l->base->options.dtype == LT_F32);
    if (is_repeated(file, name)) {
        return LT_OK;
    }
    if (own_name(own, name)) {
        for (int i = 0; i < family->n_names && spec->tied; i++) {
            if (family->names[i].kind == LT_PARAM_HEAD && strcmp(family->names[i].name, own) == 0) {
                return has_twin(file, tensor, family, LT_PARAM_EMBED) ? LT_OK
                                                                      : refuse_tied(path, name);
            }
        }
        row = lt_name_row_of(family->names, family->n_names, spec, &l->base->table, own, &at);
    }
    if (row == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %s belongs to no adapter of this model", path, name);
    }
    p = &l->base->table.params[at];
    lt_name_place_of(&place, spec, p, row, 0, 0);
    if (place.stacked || place.alternating || p->experts) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: %s: experts that were trained whole are not read", path,
                name);
    }
    if (p->kind == LT_PARAM_EMBED && spec->tied && !has_twin(file, tensor, family, LT_PARAM_HEAD)) {
        return refuse_tied(path, name);
    }
    return put(l, p, &place, file, path, name);
}
