/* Whole runs on a device whose memory the host cannot access: the same weights, moments and
 * losses as on the CPU, also if the run resumes from a checkpoint of the other device; including
 * micro-batches, a ramp and a partial last micro-batch. */
#include "unit/model/far.h"
#include "unit/model/golden.h"

#include "base/file.h"
#include "train/run.h"

#define N_TOKENS 20000

static char folder[] = "/tmp/lateen-device-XXXXXX";

static int make_shard(void **state) {
    char path[128];
    static int32_t header[256] = {20240520, 1, N_TOKENS};
    static uint16_t tokens[N_TOKENS];
    FILE *f;
    (void)state;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/shard.bin", folder);
    for (int i = 0; i < N_TOKENS; i++) {
        tokens[i] = (uint16_t)((i * i / 7 + i) % 61);
    }
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(header, sizeof header, 1, f), 1);
    assert_int_equal(fwrite(tokens, sizeof tokens, 1, f), 1);
    fclose(f);
    return 0;
}

static int remove_all(void **state) {
    (void)state;
    return lt_file_remove_tree(folder) == LT_OK ? 0 : -1;
}

static void set(lt_recipe *r, const char *name, const char *value) {
    must(lt_options_set(&lt_recipe_table, r, name, value, "test"), name);
}

static void recipe(lt_recipe *r, const char *out, int steps, const char *optim) {
    char text[192];
    lt_options_default(&lt_recipe_table, r);
    (void)snprintf(text, sizeof text, "%s/%s", folder, out);
    set(r, "out", text);
    (void)snprintf(text, sizeof text, "%s/shard.bin", folder);
    set(r, "data.train", text);
    (void)snprintf(text, sizeof text, "%d", steps);
    set(r, "steps", text);
    set(r, "optim.kind", optim);
    set(r, "data.val_fraction", "0.1");
    set(r, "data.seq", "24");
    set(r, "model.vocab", "64");
    set(r, "model.layers", "2");
    set(r, "model.width", "32");
    set(r, "model.heads", "2");
    set(r, "model.dtype", "bf16");
    set(r, "batch.size", "7"); /* Micro-batches of 3, 3 and 1. */
    set(r, "batch.micro", "3");
    set(r, "batch.ramp", "2@0,4@8");
    set(r, "data.goldfish_k", "5");
    set(r, "data.goldfish_h", "3");
    set(r, "lr.schedule", "constant");
    set(r, "optim.clip", "0.5");
    set(r, "eval.every", "5");
    set(r, "eval.rows", "8");
    set(r, "export", "false");
    set(r, "threads", "1");
    set(r, "optim.mix_warmup", "6");
}

/* Checksums of the files of the newest checkpoint. */
static json_t *files_of(const char *out, int step) {
    char path[192];
    json_t *root, *files;
    (void)snprintf(path, sizeof path, "%s/%s/checkpoints/step-%09d/manifest.json", folder, out,
                   step);
    root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    files = json_incref(json_object_get(root, "files"));
    json_decref(root);
    return files;
}

/* optim: a kind, followed by "+bf16" for moments in BF16, or "+fp8" for linear layers in 8
 * bits. */
static void train(const char *out, int steps, const char *optim, const lt_backend *backend) {
    lt_recipe *r = calloc(1, sizeof *r);
    char kind[32];
    (void)snprintf(kind, sizeof kind, "%.*s", (int)strcspn(optim, "+"), optim);
    assert_non_null(r);
    recipe(r, out, steps, kind);
    set(r, "optim.moments", strstr(optim, "+bf16") != NULL ? "bf16" : "fp32");
    set(r, "model.fp8", strstr(optim, "+fp8") != NULL ? "blockwise" : "none");
    must(lt_run_training(r, device_of(backend)), out);
    free(r);
}

static void same(const char *a, const char *b, int step) {
    json_t *x = files_of(a, step), *y = files_of(b, step);
    if (!json_equal(x, y)) {
        fail_msg("%s and %s differ at step %d:\n%s\n%s", a, b, step, json_dumps(x, 0),
                 json_dumps(y, 0));
    }
    json_decref(x);
    json_decref(y);
}

static void optimisers(void **state) {
    static const char *const kinds[] = {"adamw", "ademamix",   "muon",
                                        "lion",  "adamw+bf16", "ademamix+bf16"};
    (void)state;
    for (int i = 0; i < 6; i++) {
        char near_name[32], far_name[32];
        (void)snprintf(near_name, sizeof near_name, "near-%s", kinds[i]);
        (void)snprintf(far_name, sizeof far_name, "far-%s", kinds[i]);
        far_launches = 0;
        train(near_name, 12, kinds[i], lt_backend_cpu());
        train(far_name, 12, kinds[i], far_backend());
        same(near_name, far_name, 12);
        assert_true(far_launches > 10);
    }
}

static void checkpoints_change_device(void **state) {
    (void)state;
    train("whole", 12, "ademamix", lt_backend_cpu());
    train("moved", 5, "ademamix", lt_backend_cpu());
    train("moved", 9, "ademamix", far_backend());
    train("moved", 12, "ademamix", lt_backend_cpu());
    same("whole", "moved", 12);
}

/* Linear layers in 8 bits: the same bits on both devices, also after a stop and a change of
 * device; other bits than without. */
static void runs_in_8_bits(void **state) {
    json_t *eight, *plain;
    (void)state;
    train("eight", 12, "adamw+fp8", lt_backend_cpu());
    train("eight-far", 12, "adamw+fp8", far_backend());
    same("eight", "eight-far", 12);
    train("eight-stopped", 5, "adamw+fp8", far_backend());
    train("eight-stopped", 12, "adamw+fp8", lt_backend_cpu());
    same("eight", "eight-stopped", 12);
    train("plain", 12, "adamw", lt_backend_cpu());
    eight = files_of("eight", 12);
    plain = files_of("plain", 12);
    assert_false(json_equal(eight, plain));
    json_decref(eight);
    json_decref(plain);
}

static double last_loss(const char *out) {
    char path[192], line[4096];
    double loss = NAN;
    FILE *f;
    (void)snprintf(path, sizeof path, "%s/%s/metrics.jsonl", folder, out);
    f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        const char *at = strstr(line, "\"kind\":\"train\"") != NULL ? strstr(line, "\"loss\":")
                                                                    : NULL;
        loss = at != NULL ? strtod(at + 7, NULL) : loss;
    }
    fclose(f);
    return loss;
}

static int64_t bytes_of(const char *out, const char *name) {
    char path[192];
    lt_file_map map;
    int64_t bytes;
    (void)snprintf(path, sizeof path, "%s/%s/checkpoints/step-000000060/%s", folder, out, name);
    must(lt_file_map_open(&map, path), path);
    bytes = (int64_t)map.size_bytes;
    lt_file_map_close(&map);
    return bytes;
}

/* Moments in BF16: after a stop, the bits of an uninterrupted run; a loss close to that with
 * moments in F32; half their bytes; and no run resumes with moments of the other type. */
static void bf16_moments(void **state) {
    static const char *const kinds[] = {"adamw", "ademamix"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        char wide[32], low[32], stopped[32], kind[32];
        lt_recipe *r = calloc(1, sizeof *r);
        assert_non_null(r);
        (void)snprintf(wide, sizeof wide, "wide-%s", kinds[i]);
        (void)snprintf(low, sizeof low, "low-%s", kinds[i]);
        (void)snprintf(stopped, sizeof stopped, "stopped-%s", kinds[i]);
        (void)snprintf(kind, sizeof kind, "%s+bf16", kinds[i]);
        train(wide, 60, kinds[i], lt_backend_cpu());
        train(low, 60, kind, lt_backend_cpu());
        train(stopped, 23, kind, lt_backend_cpu());
        train(stopped, 60, kind, far_backend());
        same(low, stopped, 60);
        assert_true(fabs(last_loss(low) - last_loss(wide)) < 0.03);
        assert_true(last_loss(low) != last_loss(wide));
        assert_true(bytes_of(low, "m.safetensors") < bytes_of(wide, "m.safetensors") * 6 / 10);
        recipe(r, low, 70, kinds[i]);
        assert_int_equal(lt_run_training(r, device_of(lt_backend_cpu())), LT_ERR_STATE);
        assert_non_null(strstr(lt_error_message(), "optim.moments was bf16, now fp32"));
        set(r, "allow_change", "optim.moments");
        assert_int_equal(lt_run_training(r, device_of(lt_backend_cpu())), LT_ERR_STATE);
        assert_non_null(strstr(lt_error_message(), "is stored as BF16, this run keeps it as F32"));
        recipe(r, "refused", 2, "muon");
        set(r, "optim.moments", "bf16");
        assert_int_equal(lt_run_training(r, device_of(lt_backend_cpu())), LT_ERR_ARG);
        free(r);
    }
}

/* A device with too little memory is refused before anything is allocated; the message says what
 * is missing and what fits. */
static void too_large_for_the_device(void **state) {
    lt_recipe *r = calloc(1, sizeof *r);
    const size_t used = far_used, limit = far_limit;
    (void)state;
    assert_non_null(r);
    recipe(r, "large", 2, "adamw");
    set(r, "data.seq", "2048");
    set(r, "batch.size", "64");
    set(r, "batch.micro", "64");
    set(r, "batch.ramp", "");
    far_limit = (size_t)700 << 20;
    assert_int_equal(lt_run_training(r, device_of(far_backend())), LT_ERR_OOM);
    assert_non_null(strstr(lt_error_message(), "GiB too few; what fits: batch.micro = "));
    assert_non_null(strstr(lt_error_message(), "with model.recompute = full"));
    assert_true(far_used == used);
    far_limit = (size_t)1 << 20;
    assert_int_equal(lt_run_training(r, device_of(far_backend())), LT_ERR_OOM);
    assert_non_null(strstr(lt_error_message(), "one row of 2048 tokens"));
    far_limit = limit;
    free(r);
}

/* On a GPU: the same run twice, and one that was stopped, have the same bits; a checkpoint of the
 * CPU is resumed there. */
static void runs_on_a_gpu(void **state) {
    const lt_backend *gpu = gpu_backend();
    (void)state;
    if (gpu == NULL) {
        skip();
    }
    train("gpu", 12, "ademamix", gpu);
    train("gpu-again", 12, "ademamix", gpu);
    same("gpu", "gpu-again", 12);
    train("gpu-stopped", 5, "ademamix", gpu);
    train("gpu-stopped", 12, "ademamix", gpu);
    same("gpu", "gpu-stopped", 12);
    train("from-cpu", 4, "ademamix", lt_backend_cpu());
    train("from-cpu", 12, "ademamix", gpu);
    train("from-cpu-stopped", 4, "ademamix", lt_backend_cpu());
    train("from-cpu-stopped", 7, "ademamix", gpu);
    train("from-cpu-stopped", 12, "ademamix", gpu);
    same("from-cpu", "from-cpu-stopped", 12);
    train("gpu-low", 12, "adamw+bf16", gpu);
    train("gpu-low-stopped", 4, "adamw+bf16", gpu);
    train("gpu-low-stopped", 12, "adamw+bf16", gpu);
    same("gpu-low", "gpu-low-stopped", 12);
    train("gpu-fp8", 12, "adamw+fp8", gpu);
    train("gpu-fp8-stopped", 5, "adamw+fp8", gpu);
    train("gpu-fp8-stopped", 12, "adamw+fp8", gpu);
    same("gpu-fp8", "gpu-fp8-stopped", 12);
    train("gpu-low-mix", 12, "ademamix+bf16", gpu);
    train("gpu-muon", 12, "muon", gpu);
    train("gpu-lion", 12, "lion", gpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(optimisers),
                                       cmocka_unit_test(checkpoints_change_device),
                                       cmocka_unit_test(runs_in_8_bits),
                                       cmocka_unit_test(bf16_moments),
                                       cmocka_unit_test(too_large_for_the_device),
                                       cmocka_unit_test(runs_on_a_gpu)};
    return cmocka_run_group_tests(tests, make_shard, remove_all);
}
