/* plan_own.c: `lateen plan --model RECIPE.yaml`: predicts a run of `lateen train`: the bytes that
 * it announces for this recipe and, for a kind of GPU, the time of a step. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include "base/error.h"
#include "base/file.h"
#include "cli/plan/plan_verbs.h"
#include "plan/own.h"
#include "train/recipe/fit.h"

#define MIB 1048576.0

static bool ends_in(const char *s, const char *end) {
    const size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

bool lt_plan_is_own(const char *model, char recipe[LT_PATH_BYTES]) {
    struct stat st;
    if (ends_in(model, ".yaml") || ends_in(model, ".yml")) {
        snprintf(recipe, LT_PATH_BYTES, "%s", model);
        return true;
    }
    return lt_path_join(recipe, model, "recipe.yaml") == LT_OK && stat(recipe, &st) == 0;
}

typedef struct {
    const char *path;
    lt_own_run run;
    lt_memory_plan memory;
    bool on_device;
    lt_plan_cluster cluster;
    lt_own_rates rates;
    lt_dry_step step;
    double tokens; /* Tokens of a step. */
} own_plan;

/* Decide it as training does, by the memory of the kind of GPU if one is named, or of this machine.
 * Without a named kind, a GPU is assumed to have room. */
static lt_err keep_logits(const own_plan *p, lt_pass_options *o, const lt_shards *shards) {
    const double gpu = p->cluster.gpu.memory_bytes;
    return lt_fit_keep_logits(o, &p->run.recipe, &p->run.spec, p->run.dtype, NULL, shards,
                              !p->on_device ? lt_fit_host_left()
                              : gpu > 0.0   ? (size_t)gpu
                                            : SIZE_MAX);
}

/* Plan what rank 0 holds in a run whose ranks divide rows and, with ZeRO, the state. */
static lt_err plan_rank(own_plan *p, const lt_mesh_shape *shape) {
    static lt_world world;
    const lt_recipe *r = &p->run.recipe;
    lt_pass_options pass = p->run.pass;
    lt_shards shards;
    lt_rank_parts parts;
    lt_err err = LT_OK;
    world = (lt_world){.shape = *shape};
    LT_TRY(lt_layout_open(&world.layout, &p->run.spec, shape, 0));
    LT_TRY_DONE(lt_fit_shards_open(&shards, &world, r));
    parts = lt_fit_parts(&shards, pass.lora.rank > 0);
    lt_fit_divide(&pass, &shards, &parts, shards.level > 0);
    LT_TRY_DONE(keep_logits(p, &pass, &shards));
    LT_TRY_DONE(lt_memory_buffers(&p->memory, r, &p->run.spec, p->run.dtype, &pass, NULL, &shards));
done:
    lt_shards_close(&shards);
    return err;
}

/* As lt_training_open divides a step's rows. */
static void divide_rows(lt_recipe *r, int dp) {
    const int64_t parts = r->deterministic != 0 ? r->groups : dp;
    const int64_t most = lt_recipe_largest_batch(r) / parts;
    if (most > 0 && (r->micro == 0 || r->micro > most)) {
        r->micro = most;
    }
}

static lt_err read_recipe(lt_recipe *r, const char *path) {
    lt_options_default(&lt_recipe_table, r);
    return lt_options_load_yaml(&lt_recipe_table, r, path);
}

static lt_err make(own_plan *p, lt_recipe *r, const char *cluster) {
    lt_mesh_shape shape;
    lt_device_kind kind;
    LT_TRY(lt_device_name_kind(&kind, r->device));
    p->on_device = cluster[0] != '\0' || kind == LT_DEVICE_CUDA;
    if (r->layout == LT_LAYOUT_AUTO) {
        LT_FAIL(LT_ERR_ARG, "%s: layout = auto needs --gpus N, the number of ranks", p->path);
    }
    LT_TRY(lt_mesh_parse(&shape, r->mesh));
    divide_rows(r, shape.dp);
    LT_TRY(cluster[0] != '\0' ? lt_plan_cluster_load(&p->cluster, cluster) : LT_OK);
    LT_TRY(lt_own_run_open(&p->run, r, p->on_device));
    if (shape.dp > 1) {
        LT_TRY(plan_rank(p, &shape));
    } else {
        LT_TRY(keep_logits(p, &p->run.pass, NULL));
        LT_TRY(lt_memory_buffers(&p->memory, &p->run.recipe, &p->run.spec, p->run.dtype,
                                 &p->run.pass, NULL, NULL));
    }
    p->tokens = (double)(p->run.micros * p->run.pass.batch * p->run.pass.seq);
    if (cluster[0] == '\0') {
        return LT_OK;
    }
    LT_TRY(lt_own_rates_find(&p->rates, p->cluster.gpu.name));
    return lt_own_step(&p->step, &p->run, &p->cluster.gpu, &p->rates);
}

static void print_step(const own_plan *p) {
    printf("\nstep on one %s: %.4f s, %.0f tokens/s%s\n", p->cluster.gpu.name, p->step.step_s,
           p->tokens / p->step.step_s,
           p->rates.measured ? "" : " (no step of Lateen was measured on this kind)");
    printf("  efficiencies: products %.3f, attention %.3f, memory %.3f\n", p->rates.gemm,
           p->rates.attention, p->rates.memory);
    for (int op = 0; op < LT_OP_COUNT; op++) {
        if (p->step.ops_s[op] > 0.0) {
            printf("  %-18s %6lld calls %10.3f ms  %5.1f %%\n", lt_op_name((lt_op)op),
                   (long long)p->step.calls[op], 1e3 * p->step.ops_s[op],
                   100.0 * p->step.ops_s[op] / p->step.step_s);
        }
    }
    printf("  %-18s %12s %10.3f ms  %5.1f %%\n", "zeroing, copies", "", 1e3 * p->step.stream_s,
           100.0 * p->step.stream_s / p->step.step_s);
    if ((double)p->memory.device_bytes > p->cluster.gpu.memory_bytes) {
        printf("  does not fit: %.1f GiB of %.1f GiB\n", (double)p->memory.device_bytes / 0x1p30,
               p->cluster.gpu.memory_bytes / 0x1p30);
    }
}

static void print_text(const own_plan *p) {
    const lt_pass_options *o = &p->run.pass;
    printf("%s: %lld parameters, %s, steps of %lld micro-batches of %lld x %lld tokens\n\n",
           p->path, (long long)lt_model_spec_params(&p->run.spec), lt_dtype_name(p->run.dtype),
           (long long)p->run.micros, (long long)o->batch, (long long)o->seq);
    printf("memory that `lateen train` announces, by what the recipe decides:\n");
    for (int i = 0; i < p->memory.n_rows; i++) {
        const lt_memory_row *r = &p->memory.rows[i];
        printf("  %-18s %16zu bytes %10.1f MiB\n", r->name, r->bytes, (double)r->bytes / MIB);
    }
    printf("  %-18s %16zu bytes %10.1f MiB, %zu bytes of them on the device\n", "together",
           p->memory.buffers_bytes, (double)p->memory.buffers_bytes / MIB, p->memory.device_bytes);
    if (p->step.step_s > 0.0) {
        print_step(p);
    }
}

static json_t *step_json(const own_plan *p) {
    json_t *ops = json_object();
    for (int op = 0; op < LT_OP_COUNT; op++) {
        if (p->step.ops_s[op] > 0.0) {
            json_object_set_new(ops, lt_op_name((lt_op)op),
                                json_pack("{s:I, s:f}", "calls", (json_int_t)p->step.calls[op],
                                          "seconds", p->step.ops_s[op]));
        }
    }
    return json_pack("{s:s, s:f, s:f, s:b, s:{s:f, s:f, s:f}, s:o}", "gpu", p->cluster.gpu.name,
                     "step_s", p->step.step_s, "tokens_per_s", p->tokens / p->step.step_s,
                     "measured", p->rates.measured, "efficiencies", "gemm", p->rates.gemm,
                     "attention", p->rates.attention, "memory", p->rates.memory, "ops", ops);
}

static void print_json(const own_plan *p) {
    json_t *root = json_pack("{s:s, s:I, s:o, s:I, s:I}", "recipe", p->path, "parameters",
                             (json_int_t)lt_model_spec_params(&p->run.spec), "memory",
                             lt_memory_plan_json(&p->memory), "buffers_bytes",
                             (json_int_t)p->memory.buffers_bytes, "device_bytes",
                             (json_int_t)p->memory.device_bytes);
    if (p->step.step_s > 0.0) {
        json_object_set_new(root, "step", step_json(p));
    }
    json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(root);
}

/* Whether ranks hold parts of the model. */
static bool is_divided(const lt_recipe *r) {
    lt_mesh_shape s;
    return lt_mesh_parse(&s, r->mesh) == LT_OK && s.pp * s.cp * s.tp * s.ep > 1;
}

int lt_plan_own_run(const char *recipe, const char *cluster, int n_ranks, int top, bool json) {
    static own_plan p;
    static lt_recipe r; /* Static, because it takes some KB. */
    lt_err err;
    p = (own_plan){.path = recipe};
    err = read_recipe(&r, recipe);
    if (err == LT_OK && (n_ranks > 0 || is_divided(&r))) {
        return lt_plan_layouts(&r, cluster, n_ranks, top, json);
    }
    err = err == LT_OK ? make(&p, &r, cluster) : err;
    if (err != LT_OK) {
        return lt_verb_fail(err);
    }
    (json ? print_json : print_text)(&p);
    return LT_EXIT_DONE;
}
