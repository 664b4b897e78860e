/* Adapters beside linear layers. tests/e2e/sft_truth.py compares training them with PEFT. Here,
 * for every family: a model with adapters computes what the model computes after their product
 * has been added, in a pass and in a session; gradients are those of finite differences, with the
 * same bits for every level of recompute, and the base has none. Files: what PEFT wrote is read
 * and written unchanged, merging gives PEFT's merged model, and what would not be honoured is
 * refused by name. */
#include "unit/model/adapters.h"

#include <unistd.h>

#include "base/file.h"
#include "base/json.h"

#define SFT    "tests/golden/sft"
#define UNEVEN "tests/golden/serve/lora/"

/* F32 sums in another order: W x + s B (A x), or (W + s B A) x. */
#define TOLERANCE_SUMS 3e-6
/* A difference quotient over a step of 2^-9 of F32 losses. */
#define TOLERANCE_DIFFERENCE 4e-3
/* Some row chooses other experts at the two ends of the step. */
#define TOLERANCE_EXPERTS 3e-2

static void says(const char *text) {
    if (strstr(lt_error_message(), text) == NULL) {
        fail_msg("'%s' is not in: %s", text, lt_error_message());
    }
}

static double loss_of(lt_model *m, const lt_pass_batch *b, bool train) {
    lt_pass *p = NULL;
    lt_pass_result r;
    must(lt_pass_open(&p, m, &(lt_pass_options){.batch = b->batch, .seq = b->seq, .train = train}),
         "pass");
    must(lt_pass_eval(p, b, &r, NULL), "eval");
    lt_pass_close(p);
    return r.loss_sum / (double)r.n_labels;
}

/* Logits of a prompt in one call and of the next token alone. */
static void logits_of(lt_model *m, const lt_pass_batch *b, float *out) {
    const int64_t V = m->spec.vocab_size, n = b->seq / 2, seq = 0;
    lt_session *s = NULL;
    must(lt_session_open(&s, m, 1, b->seq), "session");
    must(lt_session_eval(s, 0, b->tokens, n, out), "prompt");
    must(lt_session_step(s, &seq, b->tokens + n, 1, out + V), "step");
    lt_session_close(s);
}

static void equals_the_sum(const golden *g, const lt_lora_options *o) {
    char path[256];
    lt_model *m;
    lt_lora *l = NULL;
    float *with, *merged, most = 0.0f, apart = 0.0f;
    double loss, after;
    (void)snprintf(path, sizeof path, GOLDEN_ROOT "%s", g->name);
    m = open_base(path, lt_backend_cpu(), LT_F32);
    const double plain = loss_of(m, &g->batch, false);
    must(lt_lora_open(&l, m, o, 1), g->name);
    if (fabs(loss_of(m, &g->batch, false) - plain) > TOLERANCE_SUMS * plain) {
        fail_msg("%s: new adapters change the loss", g->name);
    }
    fill(l);
    loss = loss_of(m, &g->batch, true);
    assert_true(fabs(plain - loss) > 1e-4); /* The adapters have an effect. */
    with = calloc((size_t)m->spec.vocab_size * 4, sizeof *with);
    assert_non_null(with);
    merged = with + 2 * m->spec.vocab_size;
    logits_of(m, &g->batch, with);
    must(lt_lora_merge(l), g->name);
    lt_lora_close(l);
    after = loss_of(m, &g->batch, true);
    logits_of(m, &g->batch, merged);
    for (int64_t i = 0; i < 2 * m->spec.vocab_size; i++) {
        most = fmaxf(most, fabsf(merged[i]));
        apart = fmaxf(apart, fabsf(merged[i] - with[i]));
    }
    if (fabs(loss - after) > TOLERANCE_SUMS * after || apart > 10 * TOLERANCE_SUMS * most) {
        fail_msg("%s: loss %.9f, merged %.9f; logits %g of %g apart", g->name, loss, after,
                 (double)apart, (double)most);
    }
    free(with);
    lt_model_close(m);
}

static double loss_in_training(lt_model *m, const lt_pass_batch *b) {
    lt_pass *p = NULL;
    lt_pass_result r;
    must(lt_pass_open(&p, m, &(lt_pass_options){.batch = b->batch, .seq = b->seq, .train = true}),
         "pass");
    must(lt_pass_eval(p, b, &r, NULL), "eval");
    lt_pass_close(p);
    return r.loss_sum;
}

static bool is_magnitude(const lt_param *p) {
    return p->n_dims == 1;
}

/* The slope along the direction d of a gradient g of all adapters, or only of DoRA's magnitudes,
 * or only of the rest: (L(p + h d) - L(p - h d)) / 2 h = g d. DoRA's factors are constants in the
 * gradients of A and B, and stay unchanged as long as the version does. */
static void slope_is(const golden *g, lt_lora *l, const float *gradient, bool magnitudes) {
    const float h = 0x1p-9f;
    float *const master = lt_param_floats(&l->params->master);
    double norm = 0.0, loss[2];
    for (int measure = 1; measure >= 0; measure--) {
        for (int side = 0; side < (measure ? 1 : 3); side++) {
            for (int i = 0; i < l->params->table.n_params; i++) {
                const lt_param *p = &l->params->table.params[i];
                const int64_t at = l->params->table.units[p->unit].at + p->at;
                for (int64_t k = 0; k < p->count && is_magnitude(p) == magnitudes; k++) {
                    const float d = gradient[at + k] / (float)norm * h;
                    norm += measure ? (double)gradient[at + k] * (double)gradient[at + k] : 0.0;
                    master[at + k] += measure ? 0.0f : side == 1 ? -2.0f * d : d;
                }
            }
            l->params->version += magnitudes;
            if (!measure && side < 2) {
                loss[side] = loss_in_training(l->base, &g->batch);
            }
        }
        norm = measure ? sqrt(norm) : norm;
        assert_true(norm > 0.0);
    }
    const double along = (loss[0] - loss[1]) / (2.0 * (double)h);
    const double tolerance = l->base->spec.n_experts > 0 ? TOLERANCE_EXPERTS : TOLERANCE_DIFFERENCE;
    if (fabs(along - norm) > tolerance * norm) {
        fail_msg("%s: slope %.6f along a gradient of length %.6f", g->name, along, norm);
    }
}

static void equals_differences(const golden *g, const lt_lora_options *o) {
    char path[256];
    lt_model *m;
    lt_lora *l = NULL;
    float *ours, *again;
    (void)snprintf(path, sizeof path, GOLDEN_ROOT "%s", g->name);
    m = open_base(path, lt_backend_cpu(), LT_F32);
    must(lt_lora_open(&l, m, o, 1), g->name);
    fill(l);
    ours = gradients(m, &g->batch, LT_RECOMPUTE_NONE, 1);
    for (int level = 0; level < 3; level++) {
        again = gradients(m, &g->batch, (lt_recompute)level, 2);
        assert_memory_equal(ours, again, (size_t)l->params->table.n_elements * sizeof *ours);
        free(again);
    }
    slope_is(g, l, ours, false);
    if (o->dora) {
        slope_is(g, l, ours, true);
    }
    free(ours);
    lt_lora_close(l);
    lt_model_close(m);
}

static void every_family(void **state) {
    int n = 0;
    (void)state;
    for (int i = 0; i < N_GOLDEN_CASES; i++) {
        golden g;
        golden_open(&g, golden_cases[i], lt_backend_cpu(), LT_F32);
        const bool has_bias = g.model->spec.qkv_bias || g.model->spec.mlp_bias;
        const bool dora_too = (has_bias || i % 4 == 0) && g.model->spec.n_experts == 0;
        for (int dora = 0; dora < (dora_too ? 2 : 1); dora++) {
            lt_lora_options o = adapters_of_all;
            o.dora = dora == 1;
            equals_the_sum(&g, &o);
            equals_differences(&g, &o);
        }
        n++;
        golden_close(&g);
    }
    assert_true(n == N_GOLDEN_CASES);
}

/* Compare each tensor of a golden file that has the name of one of ours. */
static void equals_file(const char *folder, const lt_safetensors *want, double tolerance) {
    char path[LT_PATH_BYTES];
    lt_safetensors file;
    must(lt_path_join(path, folder, LT_LORA_WEIGHTS), folder);
    must(lt_safetensors_open(&file, path), path);
    assert_true(file.n_tensors > 0);
    for (size_t i = 0; i < file.n_tensors; i++) {
        const lt_safetensor *t = &file.tensors[i], *w = lt_safetensors_find(want, t->name);
        if (w == NULL || w->n_dims != 2 || w->shape[0] != t->shape[0] ||
            w->shape[1] != t->shape[1]) {
            fail_msg("%s: %s is not PEFT's", path, t->name);
        }
        const double far = distance((const void *)t->data, (const void *)w->data,
                                    t->shape[0] * t->shape[1]);
        if (!(far <= tolerance)) {
            fail_msg("%s: %s is %g of its largest number apart", path, t->name, far);
        }
    }
    lt_safetensors_close(&file);
}

/* Adapters of experts that PEFT wrote: loss, gradients, and the merged model; written again, they
 * are PEFT's. */
static void experts_as_peft(void **state) {
    static const char *const families[] = {"qwen3_moe", "mixtral"};
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        char base[256], folder[256], path[300], made[] = "/tmp/lateen-experts-XXXXXX";
        lt_lora_config c;
        lt_lora *l = NULL;
        lt_safetensors truth, given;
        lt_pass_batch b = {.batch = 2, .seq = 16};
        (void)snprintf(base, sizeof base, GOLDEN_ROOT "%s", families[i]);
        (void)snprintf(folder, sizeof folder, "tests/golden/lora_experts/%s", families[i]);
        (void)snprintf(path, sizeof path, "%s/golden.safetensors", folder);
        must(lt_safetensors_open(&truth, path), path);
        (void)snprintf(path, sizeof path, "%s/" LT_LORA_WEIGHTS, folder);
        must(lt_safetensors_open(&given, path), path);
        b.tokens = (const void *)lt_safetensors_find(&truth, "tokens")->data;
        b.labels = (const void *)lt_safetensors_find(&truth, "labels")->data;
        lt_model *m = open_base(base, lt_backend_cpu(), LT_F32);
        must(lt_lora_config_read(&c, folder, &m->spec), folder);
        assert_string_equal(c.targets,
                            "q_proj,v_proj,mlp.experts.gate_up_proj,mlp.experts.down_proj");
        must(lt_lora_open(&l, m, &c.options, 1), folder);
        must(lt_lora_load(l, folder), folder);
        const float loss = *(const float *)(const void *)lt_safetensors_find(&truth, "loss")->data;
        assert_true(fabs(loss_of(m, &b, true) * 30.0 - (double)loss) < 1e-5 * (double)loss);
        assert_non_null(mkdtemp(made));
        must(lt_lora_save(l, made, base), made);
        equals_file(made, &given, 0.0);
        lt_lora_config_close(&c);
        must(lt_lora_config_read(&c, made, &m->spec), made);
        assert_string_equal(c.targets,
                            "q_proj,v_proj,mlp.experts.gate_up_proj,mlp.experts.down_proj");
        float *g = gradients(m, &b, LT_RECOMPUTE_SELECTIVE, 2);
        float *kept = malloc((size_t)l->params->table.n_elements * sizeof *kept);
        assert_non_null(kept);
        memcpy(kept, l->params->master.flat, (size_t)l->params->table.n_elements * sizeof *kept);
        memcpy(l->params->master.flat, g, (size_t)l->params->table.n_elements * sizeof *g);
        must(lt_lora_save(l, made, base), made);
        equals_file(made, &truth, 2e-5);
        memcpy(l->params->master.flat, kept, (size_t)l->params->table.n_elements * sizeof *kept);
        must(lt_lora_merge(l), "merge");
        for (int k = 0; k < 2; k++) {
            const lt_safetensor *w = lt_safetensors_find(&truth,
                                                         k == 0 ? "gate_up_proj" : "down_proj");
            const lt_tensor ours = lt_param_view(&m->table, k == 0 ? LT_PARAM_UP : LT_PARAM_DOWN, 0,
                                                 &m->master);
            assert_true(distance(ours.data, (const void *)w->data,
                                 w->shape[0] * w->shape[1] * w->shape[2]) < 1e-6);
        }
        free(g);
        free(kept);
        lt_lora_config_close(&c);
        lt_lora_close(l);
        lt_model_close(m);
        lt_safetensors_close(&truth);
        lt_safetensors_close(&given);
        assert_int_equal(lt_file_remove_tree(made), LT_OK);
    }
}

/* Only the requested layers get adapters; an unknown target is refused, with the names of the
 * known ones. */
static void targets(void **state) {
    lt_model *m = open_base(SFT, lt_backend_cpu(), LT_F32);
    lt_lora_options o = {
        .rank = 2, .alpha = 1, .scaling = LT_LORA_BY_ROOT, .targets = "v_proj,o_proj"};
    lt_lora *l = NULL;
    (void)state;
    must(lt_lora_open(&l, m, &o, 1), "open");
    assert_int_equal(l->n_modules, 4);
    assert_int_equal(l->sizes.columns, 2);
    assert_true(fabsf(l->scale - 0.70710678f) < 1e-7f);
    assert_non_null(lt_param_find(&l->params->table, "layers.1.qkv.lora_b"));
    assert_int_equal(lt_param_find(&l->params->table, "layers.1.qkv.lora_b")->shape[0], 16);
    assert_null(lt_param_find(&l->params->table, "layers.1.up.lora_a"));
    lt_lora_close(l);
    o.targets = "v_proj,nothing";
    assert_int_equal(lt_lora_open(&l, m, &o, 1), LT_ERR_ARG);
    says("'nothing' is not a linear layer of llama; it has embed_tokens, lm_head, q_proj, k_proj, "
         "v_proj, o_proj, gate_proj, up_proj, down_proj");
    o.targets = "proj"; /* The end of a name, but not a whole word of it. */
    assert_int_equal(lt_lora_open(&l, m, &o, 1), LT_ERR_ARG);
    o.targets = "self_attn.q_proj";
    must(lt_lora_open(&l, m, &o, 1), "open");
    assert_int_equal(l->n_modules, 2);
    lt_lora_close(l);
    lt_model_close(m);
}

/* Uniform in +- 1 / sqrt(in), different for another seed; B is zero, so at first nothing
 * changes. */
static void new_adapters(void **state) {
    lt_model *m = open_base(SFT, lt_backend_cpu(), LT_F32);
    lt_lora *l = NULL;
    const lt_lora_options o = {.rank = 16, .alpha = 16, .targets = LT_LORA_ALL};
    double sum = 0.0, squares = 0.0, first = 0.0;
    (void)state;
    for (int seed = 1; seed <= 2; seed++) {
        must(lt_lora_open(&l, m, &o, (uint64_t)seed), "open");
        const lt_param *a = lt_param_find(&l->params->table, "layers.0.qkv.lora_a"),
                       *b = lt_param_find(&l->params->table, "layers.0.qkv.lora_b");
        const float *x = lt_param_data(&l->params->master, a),
                    *y = lt_param_data(&l->params->master, b);
        const double bound = 1.0 / sqrt(24.0);
        for (int64_t i = 0; i < a->count; i++) {
            assert_true(fabs((double)x[i]) <= bound);
            sum += seed == 1 ? (double)x[i] : 0.0;
            squares += seed == 1 ? (double)x[i] * (double)x[i] : 0.0;
        }
        for (int64_t i = 0; i < b->count; i++) {
            assert_true(y[i] == 0.0f);
        }
        assert_true(seed == 1 || (double)x[0] != first);
        first = (double)x[0];
        if (seed == 1) { /* Mean 0, variance bound^2 / 3. */
            assert_true(fabs(sum / (double)a->count) < 0.1 * bound);
            assert_true(fabs(squares / (double)a->count * 3.0 / bound / bound - 1.0) < 0.1);
        }
        lt_lora_close(l);
    }
    lt_model_close(m);
}

/* ---- Files ---- */

static lt_lora *open_adapter(lt_model *m, const char *folder) {
    lt_lora_config c;
    lt_lora *l = NULL;
    must(lt_lora_config_read(&c, folder, &m->spec), folder);
    must(lt_lora_open(&l, m, &c.options, 1), folder);
    must(lt_lora_load(l, folder), folder);
    lt_lora_config_close(&c);
    return l;
}

/* PEFT's adapter, merged here, is PEFT's merged model. */
static void equals_merged(const char *adapter, const char *file, float bound) {
    lt_model *m = open_base(SFT, lt_backend_cpu(), LT_F32);
    lt_lora *l = open_adapter(m, adapter);
    lt_safetensors merged;
    const lt_safetensor *q, *down;
    const float *qkv, *w;
    must(lt_lora_merge(l), "merge");
    must(lt_safetensors_open(&merged, file), "merged");
    q = lt_safetensors_find(&merged, "model.layers.1.self_attn.k_proj.weight");
    down = lt_safetensors_find(&merged, "model.layers.0.mlp.up_proj.weight");
    assert_true(q != NULL && down != NULL && q->bytes == 16 * 24 * 4 && down->bytes == 40 * 24 * 4);
    qkv = lt_param_view(&m->table, LT_PARAM_QKV, 1, &m->master).data;
    w = lt_param_view(&m->table, LT_PARAM_UP, 0, &m->master).data;
    for (int i = 0; i < 16 * 24; i++) {
        float want;
        memcpy(&want, q->data + 4 * i, 4);
        assert_true(fabsf(qkv[32 * 24 + i] - want) <= bound);
    }
    for (int i = 0; i < 40 * 24; i++) {
        float want;
        memcpy(&want, down->data + 4 * i, 4);
        assert_true(fabsf(w[40 * 24 + i] - want) <= bound);
    }
    lt_safetensors_close(&merged);
    lt_lora_close(l);
    lt_model_close(m);
}

static void merges_as_peft(void **state) {
    (void)state;
    equals_merged(SFT "/adapter-all-end", SFT "/merged.safetensors", 1e-7f);
    equals_merged(SFT "/adapter-dora-end", SFT "/merged-dora.safetensors", 2e-7f);
}

/* Files are written as they were read: every tensor under its name, bit for bit. */
static void written_as_it_was_read(void **state) {
    static const char *const folders[] = {SFT "/adapter-all", SFT "/adapter-rs-end",
                                          SFT "/adapter-dora-end"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        char folder[] = "/tmp/lateen-lora-XXXXXX", path[LT_PATH_BYTES];
        lt_model *m = open_base(SFT, lt_backend_cpu(), LT_F32);
        lt_lora *l = open_adapter(m, folders[i]);
        lt_safetensors was, is;
        lt_lora_config c;
        char *base = NULL;
        assert_non_null(mkdtemp(folder));
        must(lt_lora_save(l, folder, "a/base"), "save");
        must(lt_path_join(path, folder, "adapter_model.safetensors"), path);
        must(lt_safetensors_open(&is, path), path);
        must(lt_path_join(path, folders[i], "adapter_model.safetensors"), path);
        must(lt_safetensors_open(&was, path), path);
        assert_int_equal(is.n_tensors, was.n_tensors);
        for (size_t k = 0; k < is.n_tensors; k++) {
            assert_string_equal(is.tensors[k].name, was.tensors[k].name);
            assert_int_equal(is.tensors[k].bytes, was.tensors[k].bytes);
            assert_memory_equal(is.tensors[k].data, was.tensors[k].data, is.tensors[k].bytes);
        }
        must(lt_lora_config_read(&c, folder, &m->spec), folder);
        assert_true(c.options.rank == l->options.rank && c.options.alpha == l->options.alpha &&
                    c.options.scaling == l->options.scaling && c.options.dora == l->options.dora);
        assert_string_equal(c.targets, l->targets);
        bool dora = !l->options.dora;
        must(lt_lora_dora_of(&dora, folder), folder);
        assert_int_equal(dora, l->options.dora);
        must(lt_lora_base_of(&base, folder), folder);
        assert_string_equal(base, "a/base");
        free(base);
        lt_lora_config_close(&c);
        lt_safetensors_close(&was);
        lt_safetensors_close(&is);
        assert_int_equal(lt_file_remove_tree(folder), LT_OK);
        lt_lora_close(l);
        lt_model_close(m);
    }
}

/* Adapters whose modules have different ranks and alphas, or that some layers lack, give PEFT's
 * log-probabilities in float64 (tools/make_lora_goldens.py), both separate from the model and
 * merged. */
static void uneven_as_peft(void **state) {
    json_t *peft, *one;
    size_t k;
    int n_uneven = 0;
    (void)state;
    must(lt_json_load(&peft, UNEVEN "lora.json", (size_t)1 << 20), "golden");
    json_array_foreach(json_object_get(peft, "cases"), k, one) {
        const json_t *names = json_object_get(one, "adapters"),
                     *want = json_object_get(one, "logprobs");
        char folder[128];
        int32_t ids[32];
        float loss[32];
        int32_t best[32];
        lt_lora_config c;
        lt_lora *l = NULL;
        lt_model *m;
        const int64_t n = (int64_t)json_array_size(json_object_get(peft, "tokens"));
        if (json_array_size(names) != 1 ||
            json_number_value(json_array_get(json_object_get(one, "scales"), 0)) != 1.0) {
            continue;
        }
        (void)snprintf(folder, sizeof folder, UNEVEN "%s",
                       json_string_value(json_array_get(names, 0)));
        for (int64_t i = 0; i < n; i++) {
            ids[i] = (int32_t)json_integer_value(
                json_array_get(json_object_get(peft, "tokens"), (size_t)i));
        }
        m = open_base("tests/golden/model/llama3", lt_backend_cpu(), LT_F32);
        must(lt_lora_config_read_uneven(&c, folder, &m->spec, false), folder);
        n_uneven += c.uneven;
        must(lt_lora_open(&l, m, &c.options, 1), folder);
        must(c.uneven ? lt_lora_load_uneven(l, folder) : lt_lora_load(l, folder), folder);
        lt_lora_config_close(&c);
        for (int merged = 0; merged < 2; merged++) {
            lt_session *s = NULL;
            must(merged == 1 ? lt_lora_merge(l) : LT_OK, folder);
            must(lt_session_open(&s, m, 1, n), folder);
            must(lt_session_score(s, 0, ids, n - 1, ids + 1, loss, best), folder);
            for (int64_t i = 0; i < n - 1; i++) {
                const double wanted = json_number_value(json_array_get(want, (size_t)i));
                if (fabs((double)loss[i] + wanted) > 1e-4 * (1.0 + fabs(wanted))) {
                    fail_msg("%s: token %d: %g, not %g", folder, (int)i, -(double)loss[i], wanted);
                }
            }
            lt_session_close(s);
        }
        lt_lora_close(l);
        lt_model_close(m);
    }
    assert_int_equal(n_uneven, 2);
    json_decref(peft);
}

/* A tensor of a module that adapter_config.json leaves out is not ignored. */
static void uneven_with_another_tensor(void **state) {
    char folder[] = "/tmp/lateen-lora-XXXXXX", path[LT_PATH_BYTES];
    static const char text[] =
        "{\"peft_type\": \"LORA\", \"r\": 6, \"lora_alpha\": 9, \"use_rslora\": true, "
        "\"target_modules\": \"all-linear\", \"exclude_modules\": [\"layers.1.mlp.up_proj\"], "
        "\"rank_pattern\": {\"q_proj\": 3}}";
    static const char last[] =
        "{\"peft_type\": \"LORA\", \"r\": 6, \"lora_alpha\": 9, "
        "\"target_modules\": [\"q_proj\", \"down_proj\"], \"rank_pattern\": {\"down_proj\": 3}}";
    lt_model *m = open_base("tests/golden/model/llama3", lt_backend_cpu(), LT_F32);
    lt_lora_config c;
    lt_lora *l = NULL;
    (void)state;
    assert_non_null(mkdtemp(folder));
    must(lt_path_join(path, folder, "adapter_model.safetensors"), path);
    must(lt_file_copy(UNEVEN "green/adapter_model.safetensors", path, 1 << 20), path);
    must(lt_path_join(path, folder, "adapter_config.json"), path);
    must(lt_file_write_atomic(path, text, sizeof text - 1), path);
    must(lt_lora_config_read_uneven(&c, folder, &m->spec, false), folder);
    assert_true(c.uneven && c.options.rank == 6);
    must(lt_lora_open(&l, m, &c.options, 1), folder);
    lt_lora_config_close(&c);
    assert_int_equal(lt_lora_load_uneven(l, folder), LT_ERR_FORMAT);
    says("has no adapter for model.layers.1.mlp.up_proj");
    /* The largest rank counts, even if a smaller one comes last. */
    must(lt_file_write_atomic(path, last, sizeof last - 1), path);
    must(lt_lora_config_read_uneven(&c, folder, &m->spec, false), folder);
    assert_true(c.uneven && c.options.rank == 6 && c.options.alpha == 6.0);
    lt_lora_config_close(&c);
    assert_int_equal(lt_lora_config_read(&c, folder, &m->spec), LT_ERR_UNSUPPORTED);
    says("has rank 3");
    lt_lora_close(l);
    lt_model_close(m);
    assert_int_equal(lt_file_remove_tree(folder), LT_OK);
}

static void refused_by_name(void **state) {
    static const char *const cases[][2] = {
        {"{\"use_dora\": true}",
         "no tensor base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector"},
        {"{\"rank_pattern\": {\"k_proj\": 8}}",
         "model.layers.0.self_attn.k_proj has rank 8 and alpha 8, others have 4 and 8"},
        {"{\"layers_to_transform\": [0], \"target_modules\": [\"q_proj\"]}",
         "q_proj has adapters in 1 of 2"},
        {"{\"target_modules\": [\"layers.0.self_attn.q_proj\"]}", "q_proj has adapters in 1 of 2"},
        {"{\"target_modules\": [\"nope\"]}", "target_modules names no module of llama"},
        {"{\"target_modules\": []}", "target_modules names no module of llama"},
        {"{\"r\": 0}", "r = 0"},
        {"{\"r\": 5}", "is (4, 24) where (5, 24) is expected"},
        {"{\"target_modules\": [\"q_proj\"]}", "belongs to no adapter"},
        {"{\"target_modules\": \".*q_proj\"}", "belongs to no adapter"},
        {"{\"exclude_modules\": [\"q_proj\"]}", "belongs to no adapter"},
    };
    char folder[] = "/tmp/lateen-lora-XXXXXX", path[LT_PATH_BYTES], from[LT_PATH_BYTES];
    lt_model *m = open_base(SFT, lt_backend_cpu(), LT_F32);
    (void)state;
    assert_non_null(mkdtemp(folder));
    must(lt_path_join(path, folder, "adapter_model.safetensors"), path);
    must(lt_path_join(from, SFT "/adapter-all", "adapter_model.safetensors"), path);
    must(lt_file_copy(from, path, 1 << 20), path);
    must(lt_path_join(path, folder, "adapter_config.json"), path);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text;
        json_t *config = json_pack("{s:s, s:i, s:i, s:s}", "peft_type", "LORA", "r", 4,
                                   "lora_alpha", 8, "target_modules", "all-linear");
        json_t *more = json_loads(cases[i][0], 0, NULL);
        lt_lora_config c;
        lt_lora *l = NULL;
        lt_err err;
        assert_int_equal(json_object_update(config, more), 0);
        text = json_dumps(config, 0);
        assert_non_null(text);
        must(lt_file_write_atomic(path, text, strlen(text)), path);
        free(text);
        json_decref(more);
        json_decref(config);
        err = lt_lora_config_read(&c, folder, &m->spec);
        if (err == LT_OK) {
            must(lt_lora_open(&l, m, &c.options, 1), "open");
            lt_lora_config_close(&c);
            err = lt_lora_load(l, folder);
            lt_lora_close(l);
        }
        assert_int_not_equal(err, LT_OK);
        says(cases[i][1]);
    }
    assert_int_equal(lt_file_remove_tree(folder), LT_OK);
    lt_model_close(m);
}

/* A pass refuses what it does not support with adapters. */
static void passes_refuse(void **state) {
    lt_model *m = open_base(SFT, lt_backend_cpu(), LT_F32);
    lt_lora *l = NULL;
    lt_pass *p = NULL;
    (void)state;
    must(lt_lora_open(&l, m, &adapters_of_all, 1), "open");
    assert_int_equal(
        lt_pass_open(
            &p, m,
            &(lt_pass_options){.batch = 1, .seq = 8, .train = true, .fp8 = LT_FP8_BLOCKWISE}),
        LT_ERR_UNSUPPORTED);
    says("fp8");
    lt_lora_close(l);
    lt_model_close(m);
}

/* DoRA beside the attention of a mixture of experts, but not beside its experts. */
static void dora_of_experts(void **state) {
    lt_model *m = open_base(GOLDEN_ROOT "qwen3_moe", lt_backend_cpu(), LT_F32);
    lt_lora_options o = {.rank = 2, .alpha = 2, .dora = true, .targets = LT_LORA_ALL};
    lt_lora *l = NULL;
    (void)state;
    assert_int_equal(lt_lora_open(&l, m, &o, 1), LT_ERR_UNSUPPORTED);
    says("lora.targets: experts with DoRA: not supported");
    o.targets = "q_proj,o_proj";
    must(lt_lora_open(&l, m, &o, 1), "attention");
    lt_lora_close(l);
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family),    cmocka_unit_test(experts_as_peft),
        cmocka_unit_test(targets),         cmocka_unit_test(new_adapters),
        cmocka_unit_test(merges_as_peft),  cmocka_unit_test(written_as_it_was_read),
        cmocka_unit_test(refused_by_name), cmocka_unit_test(passes_refuse),
        cmocka_unit_test(uneven_as_peft),  cmocka_unit_test(uneven_with_another_tensor),
        cmocka_unit_test(dora_of_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
