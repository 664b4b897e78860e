/* golden.c: optest --golden: ref/ in F64 against values that PyTorch, Hugging Face transformers or
 * a paper's algorithm gave in float64, stored in tests/golden/ops/<op>.json by
 * tools/make_op_goldens.py. A record holds the inputs too, so it stands on its own:
 *     {"op": "rope", "case": "heads", "inputs": {"x": {"shape": [9, 3, 16], "data": [...]}, ...},
 *     "want": {"y": [...]}}
 * The record of a backward op holds the forward op's inputs; the forward results are computed
 * here. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "ops/optest.h"

/* The file has 12 digits, and both sides compute in double. */
static const lt_tolerance TOLERANCE = {1e-9, 1e-9};
#define MAX_FILE_BYTES ((size_t)4 << 20)

static const lt_op_cases *find_op(const char *name) {
    for (int op = 0; op < LT_OP_COUNT; op++) {
        if (strcmp(lt_op_name((lt_op)op), name) == 0) {
            return lt_all_op_cases[op];
        }
    }
    return NULL;
}

static const lt_case *find_case(const lt_op_cases *o, const char *name) {
    for (int i = 0; i < o->n_cases; i++) {
        if (strcmp(o->cases[i].name, name) == 0) {
            return &o->cases[i];
        }
    }
    return NULL;
}

static lt_err read_numbers(double *values, int64_t count, const json_t *array, const char *name) {
    if (!json_is_array(array) || (int64_t)json_array_size(array) != count) {
        LT_FAIL(LT_ERR_FORMAT, "golden %s: %zu numbers, expected %lld", name,
                json_array_size(array), (long long)count);
    }
    for (int64_t i = 0; i < count; i++) {
        const json_t *x = json_array_get(array, (size_t)i);
        /* "-inf" */
        values[i] = json_is_string(x) ? strtod(json_string_value(x), NULL) : json_number_value(x);
    }
    return LT_OK;
}

/* lt_values_from: the record's inputs. */
static lt_err from_record(double *values, const lt_case_tensor *t, void *ctx) {
    const json_t *input = json_object_get((const json_t *)ctx, t->name);
    if (input == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "golden: no input %s", t->name);
    }
    return read_numbers(values, t->count, json_object_get(input, "data"), t->name);
}

/* Compare every stored result; *worst gets the largest share of the tolerance. */
static lt_err compare_record(const json_t *record, const lt_world *w, double *worst, char *why,
                             size_t why_bytes) {
    const char *name;
    json_t *stored;
    json_object_foreach(json_object_get(record, "want"), name, stored) {
        const lt_case_tensor *t = lt_setup_find(&w->setup, name);
        double *want, *got, ratio;
        int64_t at = 0;
        lt_err err;

        if (t == NULL) {
            LT_FAIL(LT_ERR_FORMAT, "golden: no result %s", name);
        }
        want = malloc((size_t)t->count * sizeof *want);
        got = malloc((size_t)t->count * sizeof *got);
        LT_ASSERT(want != NULL && got != NULL);
        err = read_numbers(want, t->count, stored, name);
        if (err == LT_OK) {
            lt_world_get(w, (int)(t - w->setup.tensors), got);
            ratio = lt_compare(got, want, t, TOLERANCE, &at);
            if (ratio > *worst) {
                *worst = ratio;
                snprintf(why, why_bytes, "%s[%lld] is %.12g, stored %.12g", name, (long long)at,
                         got[at], want[at]);
            }
        }
        free(want);
        free(got);
        LT_TRY(err);
    }
    return LT_OK;
}

static lt_err run_record(const json_t *record, const lt_op_cases *o, const lt_case *c,
                         double *worst, char *why, size_t why_bytes) {
    lt_world w = {0};
    lt_values v = {0};
    lt_err err = LT_OK;

    LT_TRY_DONE(lt_world_open(&w, lt_world_ref(), o, c, LT_F64, false, false));
    LT_TRY_DONE(lt_values_make(&v, &w.setup, o, from_record, json_object_get(record, "inputs")));
    lt_world_fill(&w, &v);
    LT_TRY_DONE(lt_world_run(&w, lt_registry_list(lt_backend_ref(), o->op).impls));
    LT_TRY_DONE(compare_record(record, &w, worst, why, why_bytes));
done:
    lt_values_free(&v);
    lt_world_close(&w);
    return err;
}

static void check_record(optest *t, const json_t *record) {
    const char *op = json_string_value(json_object_get(record, "op"));
    const char *case_name = json_string_value(json_object_get(record, "case"));
    const lt_op_cases *o = op != NULL ? find_op(op) : NULL;
    const lt_case *c = o != NULL && case_name != NULL ? find_case(o, case_name) : NULL;
    char name[160], why[256] = "", detail[400];
    double worst = 0.0;
    lt_err err;

    snprintf(name, sizeof name, "golden %s: %s", op != NULL ? op : "?",
             case_name != NULL ? case_name : "?");
    if (c == NULL) {
        optest_report(t, false, name, "no such case");
        return;
    }
    if (!optest_wants(t, o, c, LT_CASE_GOLDEN)) {
        return;
    }
    err = run_record(record, o, c, &worst, why, sizeof why);
    snprintf(detail, sizeof detail, "%.2g of the tolerance; %s", worst,
             err == LT_OK ? why : lt_error_message());
    optest_report(t, err == LT_OK && worst <= 1.0, name, detail);
}

void optest_golden(optest *t, const char *folder) {
    char **names = NULL;
    size_t n_names = 0;

    if (lt_file_list(&names, &n_names, folder) != LT_OK) {
        optest_report(t, false, "golden files", lt_error_message());
        return;
    }
    for (size_t i = 0; i < n_names; i++) {
        char path[LT_PATH_BYTES];
        json_t *records = NULL, *record;
        size_t at;
        if (lt_path_join(path, folder, names[i]) != LT_OK ||
            lt_json_load(&records, path, MAX_FILE_BYTES) != LT_OK) {
            optest_report(t, false, names[i], lt_error_message());
            continue;
        }
        json_array_foreach(records, at, record) {
            check_record(t, record);
        }
        json_decref(records);
    }
    lt_file_list_free(names, n_names);
}

/* Inputs are rounded to 1/64, so that they have few digits in the file. */
static json_t *input_json(const lt_case_tensor *t) {
    json_t *shape = json_array(), *data = json_array();
    double *values = malloc((size_t)t->count * sizeof *values);
    LT_ASSERT(values != NULL && lt_values_fill(values, t, NULL) == LT_OK);
    for (int i = 0; i < t->n_dims; i++) {
        json_array_append_new(shape, json_integer((json_int_t)t->shape[i]));
    }
    for (int64_t i = 0; i < t->count; i++) {
        const json_int_t whole = (json_int_t)values[i];
        json_array_append_new(data, t->dtype == LT_I32 ? json_integer(whole)
                                                       : json_real(round(values[i] * 64.0) / 64.0));
    }
    free(values);
    return json_pack("{s:o, s:o}", "shape", shape, "data", data);
}

static void add_inputs(json_t *inputs, const lt_setup *s) {
    for (int i = 0; i < s->n_tensors; i++) {
        const lt_case_tensor *t = &s->tensors[i];
        if ((t->role == LT_ROLE_IN || t->role == LT_ROLE_INOUT) && t->source == NULL) {
            json_object_set_new(inputs, t->name, input_json(t));
        }
    }
}

static json_t *describe(const lt_op_cases *o, const lt_case *c) {
    static lt_setup s, f;
    json_t *inputs = json_object(), *params = json_object();

    lt_setup_build(&s, o, c, LT_F64, false);
    add_inputs(inputs, &s);
    for (int i = 0; i < s.n_tensors; i++) {
        /* A backward pass also needs the forward op's inputs. */
        if (s.tensors[i].source != NULL) {
            lt_setup_build(&f, lt_all_op_cases[o->forward], c, LT_F64, true);
            add_inputs(inputs, &f);
            break;
        }
    }
#define PARAM_I64(f)  json_object_set_new(params, #f, json_integer((json_int_t)c->f));
#define PARAM_F32(f)  json_object_set_new(params, #f, json_real((double)c->f));
#define PARAM_BOOL(f) json_object_set_new(params, #f, json_boolean(c->f));
    LT_CASE_I64_MAP(PARAM_I64)
    LT_CASE_F32_MAP(PARAM_F32)
    LT_CASE_BOOL_MAP(PARAM_BOOL)
    return json_pack("{s:s, s:s, s:o, s:o}", "op", lt_op_name(o->op), "case", c->name, "params",
                     params, "inputs", inputs);
}

void optest_describe_golden(void) {
    json_t *all = json_array();
    for (int op = 0; op < LT_OP_COUNT; op++) {
        const lt_op_cases *o = lt_all_op_cases[op];
        for (int i = 0; i < o->n_cases; i++) {
            if ((o->cases[i].use & LT_CASE_GOLDEN) != 0) {
                json_array_append_new(all, describe(o, &o->cases[i]));
            }
        }
    }
    json_dumpf(all, stdout, JSON_COMPACT);
    json_decref(all);
}
