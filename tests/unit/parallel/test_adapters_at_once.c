/* Several adapters of one model trained at once, on meshes: losses, gradient norms, validations
 * and the folder for PEFT of each are those of the run that trains it alone on one rank; with
 * different ranks, modules, numbers of rows, rates and steps; resumed on another mesh; while one
 * diverges. Folders are compared as files, so everything that ranks divide has been put
 * together. */
#include "unit/parallel/adapters.h"

#include "model/files/safetensors.h"
#include "train/together.h"

#define N 3

static const ranks_model four = {"four", "model.layers=4 model.width=32 model.heads=4 "
                                         "model.kv_heads=2 model.ffn=64 model.family=qwen3"};
/* One key head, a head that is the embedding, and blocks that ranks of tp can cut. */
static const ranks_model tied = {"tied", "model.layers=4 model.width=64 model.heads=4 "
                                         "model.kv_heads=1 model.ffn=128 model.family=qwen3 "
                                         "model.tied=true"};
static const lt_lora_options linear = {.rank = 4, .alpha = 8, .targets = LT_LORA_ALL};

/* The activation has scalars, which ops read in F32 while weights are in BF16. */
static const ranks_model scalars = {"scalars", "model.layers=2 model.width=32 model.heads=4 "
                                               "model.kv_heads=2 model.ffn=64 "
                                               "model.family=apertus"};

static ranks_adapted plain, blocks, narrow;

/* Largest relative differences of losses, of gradient norms, of a tensor. */
typedef struct {
    double loss, norm, weights;
} bounds;
static const bounds f32 = {1e-5, 5e-5, 5e-4}, bf16 = {5e-3, 3e-2, 3e-2};

/* Options of each adapter, on top of those of all. The first run, which owns the model and the
 * passes, has fewer rows, and leaves while the others go on; the third has steps with fewer rows
 * at first, so that the last passes have none of them. */
static const char *const names[N] = {"short", "begun", "few"};
static const char *const own[N] = {
    "steps=4 lora.init= lora.rank=2 lora.targets=down_proj seed=9 batch.size=8 optim.clip=0.05 "
    "optim.kind=lion",
    "steps=6",
    "steps=6 lora.init= lora.rank=3 lora.targets=q_proj,v_proj batch.ramp=8@0,16@16 "
    "optim.lr=3e-3 lora.scale=sqrt data.val_fraction=0.1 eval.every=2"};
static const char common[] = "batch.size=16 checkpoint.every=2 checkpoint.keep_last=9 export=true "
                             "model.recompute=selective sample.tokens=0";

/* ---- Runs ---- */

static lt_recipe *recipe_of(const ranks_adapted *a, const char *out, int i, const char *more) {
    char all[1024];
    (void)snprintf(all, sizeof all, "%s %s %s %s", a->options, common, own[i], more);
    return run_recipe(out, all);
}

static void alone(const ranks_adapted *a, const char *more) {
    lt_log_set_level(LT_LOG_ERROR);
    for (int i = 0; i < N; i++) {
        char out[64];
        (void)snprintf(out, sizeof out, "%s-alone/%s", a->model.name, names[i]);
        lt_recipe *r = recipe_of(a, out, i, more);
        must(lt_run_training(r, NULL), out);
        free(r);
    }
}

typedef struct {
    lt_named_recipe named[N];
    const char *out, *mesh;
    int64_t micro;
} job;

static lt_err rank_main(lt_comm *c, void *ctx) {
    const job *j = ctx;
    lt_world w = {0};
    if (c != NULL) {
        LT_TRY(lt_world_open_on(&w, c, j->mesh));
    }
    return lt_run_together_in(&w, j->named, N, j->micro, j->out);
}

/* Train all of them in folder `out`. mesh NULL: one rank. */
static lt_err at_once(const ranks_adapted *a, const char *out, const char *mesh, int n_ranks,
                      int64_t micro, const char *more) {
    const lt_comm_options o = {.deadline_s = 240, .check = true};
    char folder[LT_PATH_BYTES];
    job j = {.out = folder, .mesh = mesh, .micro = micro};
    lt_err err;
    run_path(folder, out);
    for (int i = 0; i < N; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "%s/%s", out, names[i]);
        (void)snprintf(j.named[i].name, sizeof j.named[i].name, "%s", names[i]);
        j.named[i].recipe = recipe_of(a, name, i, more);
        run_set(j.named[i].recipe, "mesh", mesh != NULL ? mesh : "");
    }
    lt_log_set_level(LT_LOG_ERROR);
    lt_thread_set_count(1);
    err = mesh == NULL ? rank_main(NULL, &j) : lt_comm_run_threads(n_ranks, &o, rank_main, &j);
    for (int i = 0; i < N; i++) {
        free(j.named[i].recipe);
    }
    return err;
}

/* ---- Comparison ---- */

static void same_lines(const char *got, const char *want, const char *kind, const bounds *near) {
    const struct {
        const char *key;
        double bound;
    } keys[] = {
        {"step", 0}, {"loss", near->loss}, {"grad_norm", near->norm}, {"lr", 0}, {"tokens", 0}};
    json_t *a = run_lines(got, kind), *b = run_lines(want, kind);
    assert_int_equal(json_array_size(a), json_array_size(b));
    for (size_t i = 0; i < json_array_size(a); i++) {
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            const json_t *x = json_object_get(json_array_get(a, i), keys[k].key),
                         *y = json_object_get(json_array_get(b, i), keys[k].key);
            assert_int_equal(x != NULL, y != NULL);
            if (x != NULL) {
                ranks_close(json_number_value(x), json_number_value(y), keys[k].bound, keys[k].key,
                            got);
            }
        }
    }
    json_decref(a);
    json_decref(b);
}

static void same_folder(const ranks_adapted *a, const char *got, const char *want, double bound) {
    const char *const folders[] = {got, want};
    lt_model *base[2] = {NULL, NULL};
    lt_lora *l[2] = {NULL, NULL};
    for (int k = 0; k < 2; k++) {
        char path[LT_PATH_BYTES], name[128];
        lt_lora_config c;
        (void)snprintf(name, sizeof name, "%s/adapter", folders[k]);
        run_path(path, name);
        must(lt_model_open(&base[k], a->base, NULL), a->base);
        must(lt_lora_config_read(&c, path, &base[k]->spec), path);
        must(lt_lora_open(&l[k], base[k], &c.options, 1), path);
        must(lt_lora_load(l[k], path), path);
        lt_lora_config_close(&c);
    }
    const lt_param_table *t = &l[1]->params->table;
    assert_int_equal(l[0]->params->table.n_params, t->n_params);
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        const float *x = lt_param_data(&l[0]->params->master, &l[0]->params->table.params[i]),
                    *y = lt_param_data(&l[1]->params->master, p);
        double off = 0.0, size = 0.0;
        for (int64_t e = 0; e < p->count; e++) {
            off += ((double)x[e] - (double)y[e]) * ((double)x[e] - (double)y[e]);
            size += (double)y[e] * (double)y[e];
        }
        if (sqrt(off) > bound * sqrt(size)) {
            fail_msg("%s: %s differs by %.3g of its size", got, p->name, sqrt(off / size));
        }
    }
    for (int k = 0; k < 2; k++) {
        lt_lora_close(l[k]);
        lt_model_close(base[k]);
    }
}

/* Check that run i in folder `out` ended like the one that was alone. */
static void as_alone(const ranks_adapted *a, const char *out, int i) {
    const bounds *near = a == &narrow ? &bf16 : &f32;
    char got[64], want[64];
    (void)snprintf(got, sizeof got, "%s/%s", out, names[i]);
    (void)snprintf(want, sizeof want, "%s-alone/%s", a->model.name, names[i]);
    same_lines(got, want, "train", near);
    same_lines(got, want, "eval", near);
    same_folder(a, got, want, near->weights);
}

static void compare(const ranks_adapted *a, const char *mesh, int n_ranks, int64_t micro,
                    const char *more) {
    static int n_runs;
    char out[32];
    (void)snprintf(out, sizeof out, "at-once-%d", n_runs++);
    must(at_once(a, out, mesh, n_ranks, micro, more), mesh);
    for (int i = 0; i < N; i++) {
        as_alone(a, out, i);
    }
}

static int make(void **state) {
    const int failed = run_root_make(state);
    ranks_adapt(&plain, &four, "", &linear);
    ranks_adapt(&blocks, &tied, "", &linear);
    alone(&plain, "");
    ranks_adapt(&narrow, &scalars, "", &linear);
    alone(&blocks, "lora.base=q8_0");
    alone(&narrow, "model.dtype=bf16");
    return failed;
}

/* ---- Tests ---- */

static void with_zero(void **state) {
    (void)state;
    compare(&plain, NULL, 1, 6, "");
    compare(&plain, "dp=4", 4, 0, "guard.replicas=2");
    compare(&plain, "dp=2", 2, 5, "mesh.zero=1 checkpoint.async=true");
    compare(&plain, "dp=2", 2, 5, "mesh.zero=2 model.recompute=full");
    compare(&plain, "dp=4", 4, 4, "mesh.zero=3 mesh.shard=2");
    compare(&blocks, "dp=2", 2, 0, "mesh.zero=3 lora.base=q8_0");
    compare(&narrow, "dp=2", 2, 0, "mesh.zero=3 model.dtype=bf16");
}

static void with_other_axes(void **state) {
    (void)state;
    compare(&plain, "tp=2", 2, 7, "");
    compare(&plain, "dp=2,tp=2", 4, 4, "mesh.zero=2");
    compare(&blocks, "dp=2,tp=2", 4, 0, "mesh.zero=3 lora.base=q8_0");
    compare(&plain, "cp=2", 2, 5, "mesh.context=ring");
    compare(&plain, "dp=2,cp=2", 4, 6, "mesh.zero=2 mesh.context=ulysses");
}

static void with_stages(void **state) {
    (void)state;
    compare(&plain, "pp=2", 2, 0, "");
    compare(&plain, "pp=2,tp=2", 4, 6, "mesh.schedule=zb-h1");
    compare(&blocks, "pp=2", 2, 5, "lora.base=q8_0");
    compare(&plain, "pp=2,dp=2", 4, 3, "mesh.schedule=zbv mesh.zero=2");
    compare(&plain, "pp=2,dp=2", 4, 4, "mesh.schedule=interleaved mesh.zero=1");
    compare(&blocks, "pp=2,dp=2", 4, 0, "mesh.zero=3 lora.base=q8_0");
}

/* Fail unless exactly the runs whose want[i] is 1 have lines of this kind in their metrics. */
static void lines_of(const char *out, const char *kind, const size_t want[N]) {
    for (int i = 0; i < N; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "%s/%s", out, names[i]);
        json_t *lines = run_lines(name, kind);
        assert_int_equal(json_array_size(lines) > 0, want[i]);
        json_decref(lines);
    }
}

/* A step is measured once, for the first run that is still training; a pipeline has as many
 * passes as keep it busy, unless batch.micro sets their number. */
static void metrics_of_each_run(void **state) {
    static const size_t times[N] = {1, 1, 0}, piped[N] = {1, 0, 0};
    (void)state;
    must(at_once(&plain, "told", "pp=2", 2, 0, "log.every=1"), "told");
    lines_of("told", "ranks", times);
    lines_of("told", "pipeline", piped);
    json_t *lines = run_lines("told/short", "pipeline");
    assert_int_equal(json_integer_value(json_object_get(json_array_get(lines, 0), "micros")), 8);
    json_decref(lines);
}

/* Some of the steps on one mesh, the rest on another. */
static void resumed_on_another_mesh(void **state) {
    static const struct {
        const char *mesh[2], *more[2];
        int n[2];
    } cases[] = {{{"dp=2", "pp=2,tp=2"}, {"mesh.zero=2", ""}, {2, 4}},
                 {{"tp=2", NULL}, {"", ""}, {2, 1}},
                 {{NULL, "dp=2,tp=2"}, {"", "mesh.zero=3"}, {1, 4}}};
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char out[32];
        (void)snprintf(out, sizeof out, "resumed-%zu", k);
        for (int part = 0; part < 2; part++) {
            char more[64];
            (void)snprintf(more, sizeof more, "%s%s", cases[k].more[part],
                           part == 0 ? " steps=2" : "");
            must(at_once(&plain, out, cases[k].mesh[part], cases[k].n[part], 4, more), out);
        }
        for (int i = 0; i < N; i++) {
            as_alone(&plain, out, i);
        }
    }
}

/* A checkpoint of one run is damaged in a part that one rank reads: all ranks take the checkpoint
 * before it, and the other runs take theirs. */
static void a_damaged_checkpoint(void **state) {
    char path[LT_PATH_BYTES];
    FILE *f;
    (void)state;
    must(at_once(&plain, "damaged", "dp=2", 2, 0, "mesh.zero=1 steps=4"), "damaged");
    run_path(path, "damaged/few/checkpoints/step-000000004/weights-00001-of-00002.safetensors");
    f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    assert_int_equal(fputc(0x5a, f), 0x5a);
    fclose(f);
    must(at_once(&plain, "damaged", "dp=2", 2, 0, "mesh.zero=1"), "damaged");
    for (int i = 0; i < N; i++) {
        as_alone(&plain, "damaged", i);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(with_zero),
                                       cmocka_unit_test(with_other_axes),
                                       cmocka_unit_test(with_stages),
                                       cmocka_unit_test(metrics_of_each_run),
                                       cmocka_unit_test(resumed_on_another_mesh),
                                       cmocka_unit_test(a_damaged_checkpoint)};
    return cmocka_run_group_tests(tests, make, run_root_remove);
}
