/* plan_layouts.c: the meshes that a recipe can be trained on, ranked: `lateen plan --model RECIPE
 * --gpus N` prints them, and `layout: auto` takes the first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/plan/plan_verbs.h"
#include "kernels/cuda/runtime.h"
#include "lateen/comm.h"
#include "plan/auto.h"
#include "train/report/times.h"

#define MIB 1048576.0

/* The machine of a run: the named cluster; otherwise, on GPUs, this machine with GPUs like its
 * first; otherwise CPU ranks of this machine. */
static lt_err find_machine(lt_auto_machine *m, const lt_recipe *r, const char *cluster,
                           int n_ranks) {
    lt_device_kind kind;
    lt_cuda_info gpu;
    if (cluster[0] != '\0') {
        return lt_auto_machine_gpu(m, cluster, n_ranks);
    }
    LT_TRY(lt_device_name_kind(&kind, r->device));
    if (kind != LT_DEVICE_CPU && lt_cuda_describe(&gpu, 0) != LT_OK) {
        if (kind == LT_DEVICE_CUDA) {
            LT_FAIL(LT_ERR_ARG,
                    "device %s, and this machine has no GPU: name the kind of GPU with --cluster",
                    r->device);
        }
        kind = LT_DEVICE_CPU;
    }
    if (kind == LT_DEVICE_CPU) {
        lt_auto_machine_cpu(m, (int)sysconf(_SC_NPROCESSORS_ONLN), n_ranks);
        return LT_OK;
    }
    LT_TRY(lt_auto_machine_gpu(m, gpu.name, n_ranks));
    m->memory_bytes = m->memory_bytes / m->cluster.gpu.memory_bytes * (double)gpu.memory_bytes;
    return LT_OK;
}

static void print_line(size_t i, const lt_auto_layout *l, double tokens) {
    char mesh[LT_AUTO_MESH_BYTES];
    printf("%3zu  %-22s %4d %6lld %10.1f %10.1f %10.1f %9.1f %12.0f %10.1f%s\n", i + 1,
           lt_auto_mesh_text(mesh, &l->mesh), l->zero, (long long)l->micro, 1e3 * l->step_s,
           1e3 * l->compute_s, 1e3 * (lt_auto_exposed_s(l) - l->bubble_s), 1e3 * l->bubble_s,
           tokens / l->step_s, l->bytes / MIB, l->fits ? "" : "  does not fit");
}

static void print_text(const lt_recipe *r, const lt_auto_machine *m, const lt_auto_layout *l,
                       size_t n, int n_ranks, int top) {
    const double tokens = (double)(lt_recipe_largest_batch(r) * r->seq);
    char mesh[LT_AUTO_MESH_BYTES];
    size_t n_fit = 0;
    for (size_t i = 0; i < n; i++) {
        n_fit += l[i].fits;
    }
    printf("%d ranks of kind %s: %zu layouts, %zu fit%s\n\n", n_ranks, m->cluster.gpu.name, n,
           n_fit,
           !m->on_device        ? " (rates of CPUs are rough: for comparisons only)"
           : !m->rates.measured ? " (no step of Lateen was measured on this kind)"
                                : "");
    printf("%3s  %-22s %4s %6s %10s %10s %10s %9s %12s %10s\n", "", "mesh", "zero", "micro",
           "step ms", "computing", "exposed", "bubble", "tokens/s", "MiB a rank");
    for (size_t i = 0; i < n && i < (size_t)top; i++) {
        print_line(i, &l[i], tokens);
    }
    if (l[0].fits && n > 1) {
        printf("\ntrain with --mesh %s --mesh.zero %d, or --layout auto\n",
               lt_auto_mesh_text(mesh, &l[0].mesh), l[0].zero);
    }
}

static json_t *layout_json(const lt_auto_layout *l, int n_ranks) {
    char mesh[LT_AUTO_MESH_BYTES];
    return json_pack("{s:i, s:s, s:i, s:I, s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I}",
                     "ranks", n_ranks, "mesh", lt_auto_mesh_text(mesh, &l->mesh), "zero", l->zero,
                     "micro", (json_int_t)l->micro, "fits", l->fits, "step_s", l->step_s,
                     "compute_s", l->compute_s, "comm_s", lt_auto_exposed_s(l), "dp_s", l->dp_s,
                     "tp_s", l->tp_s, "cp_s", l->cp_s, "ep_s", l->ep_s, "pp_s", l->pp_s, "bubble_s",
                     l->bubble_s, "bytes", (json_int_t)l->bytes);
}

static void print_json(const lt_auto_machine *m, const lt_auto_layout *l, size_t n, int n_ranks,
                       int top) {
    json_t *list = json_array(), *root;
    for (size_t i = 0; i < n && i < (size_t)top; i++) {
        json_array_append_new(list, layout_json(&l[i], n_ranks));
    }
    root = json_pack("{s:s, s:i, s:I, s:o}", "kind", m->cluster.gpu.name, "ranks", n_ranks, "found",
                     (json_int_t)n, "layouts", list);
    json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(root);
}

/* *n_ranks 0: of the recipe's mesh, whose ranks are counted. */
static lt_err find(lt_auto_layout **list, size_t *n, lt_auto_machine *m, const lt_recipe *r,
                   const char *cluster, int *n_ranks) {
    lt_mesh_shape mesh;
    if (*n_ranks > 0) {
        LT_TRY(find_machine(m, r, cluster, *n_ranks));
        return lt_auto_find(list, n, r, *n_ranks, m);
    }
    LT_TRY(lt_mesh_parse(&mesh, r->mesh));
    *n_ranks = mesh.pp * mesh.dp * mesh.cp * mesh.tp;
    LT_TRY(find_machine(m, r, cluster, *n_ranks));
    *list = calloc(1, sizeof **list);
    if (*list == NULL) {
        LT_FAIL(LT_ERR_OOM, "a layout");
    }
    *n = 1;
    return lt_auto_price(*list, r, &mesh, m);
}

int lt_plan_layouts(const lt_recipe *r, const char *cluster, int n_ranks, int top, bool json) {
    static lt_auto_machine m;
    lt_auto_layout *list = NULL;
    size_t n = 0;
    const lt_err err = find(&list, &n, &m, r, cluster, &n_ranks);
    if (err != LT_OK) {
        return lt_verb_fail(err);
    }
    if (json) {
        print_json(&m, list, n, n_ranks, top);
    } else {
        print_text(r, &m, list, n, n_ranks, top);
    }
    free(list);
    return LT_EXIT_DONE;
}

/* ---- layout: auto ---- */

static lt_err check_free(const lt_recipe *r) {
    static const char *const names[] = {"mesh", "mesh.zero"};
    char value[LT_OPTION_STR_BYTES];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const lt_option *row = lt_option_find(&lt_recipe_table, names[i]);
        if (!lt_recipe_is_default(r, row, value)) {
            LT_FAIL(LT_ERR_ARG, "layout = auto chooses %s, and %s was given", names[i], value);
        }
    }
    if (r->sites > 1) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "layout = auto with diloco.sites = %lld: it divides the work of one site; give the "
                "mesh of a site",
                (long long)r->sites);
    }
    return LT_OK;
}

static lt_err write_prediction(const lt_recipe *r, const lt_auto_layout *l, int n_ranks) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    json_t *root = layout_json(l, n_ranks);
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    if (text == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "layout");
    }
    LT_TRY_DONE(lt_file_make_dirs(r->out));
    LT_TRY_DONE(lt_path_join(path, r->out, LT_LAYOUT_FILE));
    LT_TRY_DONE(lt_file_write_atomic(path, text, strlen(text)));
done:
    json_decref(root);
    free(text);
    return err;
}

lt_err lt_plan_choose_layout(lt_recipe *r) {
    static lt_auto_machine m;
    lt_err err = LT_OK;
    lt_auto_layout *list = NULL;
    size_t n = 0;
    int rank, n_ranks;
    char mesh[LT_AUTO_MESH_BYTES];
    LT_TRY(check_free(r));
    LT_TRY(lt_comm_started_as(&rank, &n_ranks));
    r->layout = LT_LAYOUT_MESH;
    if (n_ranks == 1) {
        return LT_OK;
    }
    LT_TRY(find_machine(&m, r, "", n_ranks));
    LT_TRY(lt_auto_find(&list, &n, r, n_ranks, &m));
    lt_auto_mesh_text(mesh, &list[0].mesh);
    if (!list[0].fits) {
        LT_FAIL_DONE(LT_ERR_OOM,
                     "layout = auto: no mesh of %d ranks fits: %s with mesh.zero = %d needs least, "
                     "%.1f MiB, and a rank has %.1f MiB",
                     n_ranks, mesh, list[0].zero, list[0].bytes / MIB, m.memory_bytes / MIB);
    }
    (void)snprintf(r->mesh, sizeof r->mesh, "%s", mesh);
    r->zero = list[0].zero;
    if (rank == 0) {
        lt_log_info("layout: mesh = %s, mesh.zero = %d, the first of %zu (lateen plan --gpus %d)",
                    mesh, list[0].zero, n, n_ranks);
        LT_TRY_DONE(write_prediction(r, &list[0], n_ranks));
    }
done:
    free(list);
    return err;
}

/* A mesh that training does not accept is refused when the run opens, with the reason. */
static lt_err predict(const lt_recipe *r, int n_ranks) {
    static lt_auto_machine m;
    lt_auto_layout l;
    lt_mesh_shape mesh;
    LT_TRY(lt_mesh_parse(&mesh, r->mesh));
    mesh.dp = r->mesh[0] == '\0' ? n_ranks : mesh.dp;
    LT_TRY(lt_mesh_check(&mesh, n_ranks));
    LT_TRY(find_machine(&m, r, "", n_ranks));
    LT_TRY(lt_auto_price(&l, r, &mesh, &m));
    return write_prediction(r, &l, n_ranks);
}

lt_err lt_plan_predict_layout(const lt_recipe *r) {
    char path[LT_PATH_BYTES];
    lt_err err;
    int rank, n_ranks;
    if (lt_comm_started_as(&rank, &n_ranks) != LT_OK || rank > 0 || n_ranks == 1) {
        return LT_OK;
    }
    LT_TRY(lt_path_join(path, r->out, LT_LAYOUT_FILE));
    err = r->sites > 1 ? LT_ERR_UNSUPPORTED : predict(r, n_ranks);
    if (err != LT_OK) {
        unlink(path); /* An existing file would be from an earlier start. */
    }
    return err == LT_ERR_IO ? err : LT_OK;
}

void lt_plan_withdraw_layout(const lt_recipe *r) {
    char path[LT_PATH_BYTES], recipe[LT_PATH_BYTES];
    int rank, n_ranks;
    if (lt_comm_started_as(&rank, &n_ranks) == LT_OK && rank == 0 && n_ranks > 1 &&
        lt_path_join(path, r->out, LT_LAYOUT_FILE) == LT_OK &&
        lt_path_join(recipe, r->out, "recipe.yaml") == LT_OK && !lt_file_exists(recipe)) {
        if (unlink(path) == 0) {
            (void)rmdir(r->out); /* Fails if it contains anything else. */
        }
    }
}
