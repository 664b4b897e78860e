/* Checkpoints in parts: written in 1, 2, 3 and 8 parts, cut in any way, and read with any other
 * number and cut, all weights and moments have the bits of the whole; an older checkpoint
 * (version 1) is read in parts; replicas count once; missing, overlapping or damaged parts are
 * refused, and a damaged file that is not needed is not read. */
#include "unit/train/side.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/file.h"
#include "base/thread.h"
#include "model/files/safetensors.h"
#include "train/checkpoint/checkpoint.h"

static char root[] = "/tmp/lateen-ckpt-parts-XXXXXX";

static int set_up(void **state) {
    (void)state;
    lt_thread_set_count(1); /* The models are small, so threads would only wait for each other. */
    return mkdtemp(root) == NULL;
}

static int tear_down(void **state) {
    (void)state;
    return lt_file_remove_tree(root) != LT_OK;
}

static lt_run_state state_at(int64_t step) {
    return (lt_run_state){.step = step,
                          .rows = 5,
                          .tokens = 80,
                          .loss = 2.5,
                          .loader = json_object(),
                          .guard = json_object()};
}

/* A whole run after some steps. */
static void open_whole(side *whole, const lt_recipe *r) {
    const lt_model_spec spec = spec_of(true, 37);
    must(side_open(whole, r, &spec, LT_F32, NULL), "whole");
    take_steps(whole, r);
}

static lt_err open_part(side *s, const side *whole, const lt_recipe *r, const lt_partition *p) {
    return side_open(s, r, &whole->model->spec, LT_F32, p);
}

static lt_err write_part(const side *whole, const lt_recipe *r, const lt_partition *partition,
                         int64_t step, int part, int n) {
    side s;
    lt_err err;
    must(open_part(&s, whole, r, partition), "part");
    take_steps(&s, r);
    err = lt_checkpoint_write_part(root, step, part, n, s.model, &s.optimiser, NULL, NULL);
    side_close(&s);
    return err;
}

/* A run on one rank saves each parameter under its own name, as other programs read it. */
static void expect_names(const side *whole, int64_t step) {
    char folder[LT_PATH_BYTES], path[LT_PATH_BYTES];
    const lt_param_table *t = &whole->model->table;
    lt_safetensors file = {0};
    must(lt_checkpoint_path(folder, root, step), "path");
    must(lt_path_join(path, folder, "weights.safetensors"), "path");
    must(lt_safetensors_open(&file, path), path);
    for (int i = 0; i < t->n_params; i++) {
        if (lt_safetensors_find(&file, t->params[i].name) == NULL) {
            fail_msg("%s has no %s", path, t->params[i].name);
        }
    }
    lt_safetensors_close(&file);
}

static void write_parts(const side *whole, const lt_recipe *r, parts_kind kind, int n,
                        int64_t step) {
    lt_run_state state = state_at(step);
    if (n == 1) {
        must(lt_checkpoint_save(root, whole->model, &whole->optimiser, &state, NULL), "save");
        expect_names(whole, step);
    } else {
        must(lt_checkpoint_begin(root, step, NULL), "begin");
        for (int part = 0; part < n; part++) {
            const parts_of of = parts_make(kind, n, part, &whole->model->table);
            const lt_partition partition = {parts_boxes, &of, NULL};
            must(write_part(whole, r, &partition, step, part, n), "write");
        }
        must(lt_checkpoint_publish(root, n, whole->model, &whole->optimiser, &state, NULL),
             "publish");
    }
    lt_run_state_clear(&state);
}

static void expect_bits(const side *s, const side *whole, int64_t *n_held, const char *what) {
    const lt_param_table *a = &s->model->table, *b = &whole->model->table;
    int64_t other = 0;
    parts_expect_slice(a, &s->model->master, b, &whole->model->master, n_held, what);
    for (int m = 0; m < s->optimiser.n_moments; m++) {
        parts_expect_slice(a, &s->optimiser.moments[m], b, &whole->optimiser.moments[m], &other,
                           what);
    }
}

static lt_err load_part(side *s, int64_t step) {
    char path[LT_PATH_BYTES];
    lt_run_state state = {0};
    lt_err err;
    must(lt_checkpoint_path(path, root, step), "path");
    err = lt_checkpoint_load(path, s->model, &s->optimiser, &state);
    if (err == LT_OK) {
        assert_int_equal(state.step, step);
        assert_int_equal(state.rows, 5);
    }
    lt_run_state_clear(&state);
    return err;
}

static void read_parts(const side *whole, const lt_recipe *r, parts_kind kind, int n, int64_t step,
                       const char *written) {
    int64_t n_held = 0;
    for (int part = 0; part < n; part++) {
        const parts_of of = parts_make(kind, n, part, &whole->model->table);
        const lt_partition partition = {parts_boxes, &of, NULL};
        char what[160];
        side s;
        (void)snprintf(what, sizeof what, "%s, read as %s %d of %d", written, parts_names[kind],
                       part, n);
        must(open_part(&s, whole, r, n == 1 ? NULL : &partition), what);
        must(load_part(&s, step), what);
        expect_bits(&s, whole, &n_held, what);
        side_close(&s);
    }
    assert_int_equal(n_held, parts_count(&whole->model->table));
}

static void any_division_reads_any_other(void **state) {
    static const int counts[] = {1, 2, 3, 8};
    static const char *const moments[] = {"fp32", "bf16"};
    int64_t step = 1;
    (void)state;
    for (int c = 0; c < 2; c++) {
        lt_recipe *r = recipe_of(c == 0 ? "ademamix" : "adamw", moments[c]);
        side whole;
        open_whole(&whole, r);
        for (int kind = 0; kind < PARTS_KIND_COUNT; kind++) {
            /* All counts; of the other cuts only some, in turn. */
            const bool all = kind == 0 && c == 0;
            for (int w = all ? 0 : 1 + (kind + c) % 3; w < (all ? 4 : 2 + (kind + c) % 3); w++) {
                char written[64];
                (void)snprintf(written, sizeof written, "written as %s of %d", parts_names[kind],
                               counts[w]);
                write_parts(&whole, r, (parts_kind)kind, counts[w], step);
                for (int reader = all ? 0 : 1; reader < (all ? 4 : 3); reader++) {
                    read_parts(&whole, r, (parts_kind)((kind + 2 * reader + w) % PARTS_KIND_COUNT),
                               counts[reader], step, written);
                }
                step++;
            }
        }
        side_close(&whole);
        free(r);
    }
}

/* Rows of matrices are cut; every part has all vectors. */
static lt_err with_replicas(const void *ctx, const lt_param *p, lt_box_list *out) {
    const parts_of *of = ctx;
    return p->n_dims == 1 ? parts_range(out, p, 0, 1, 0)
                          : parts_range(out, p, p->n_dims - 2, of->n, of->part);
}

static void replicas_count_once(void **state) {
    lt_recipe *r = recipe_of("lion", "fp32");
    lt_run_state at = state_at(900);
    side whole;
    (void)state;
    open_whole(&whole, r);
    must(lt_checkpoint_begin(root, 900, NULL), "begin");
    for (int part = 0; part < 3; part++) {
        const parts_of of = parts_make(PARTS_ROWS, 3, part, &whole.model->table);
        const lt_partition partition = {with_replicas, &of, NULL};
        must(write_part(&whole, r, &partition, 900, part, 3), "write");
    }
    must(lt_checkpoint_publish(root, 3, whole.model, &whole.optimiser, &at, NULL), "publish");
    read_parts(&whole, r, PARTS_FLAT, 2, 900, "with replicas");
    read_parts(&whole, r, PARTS_ROWS, 1, 900, "with replicas");
    lt_run_state_clear(&at);
    side_close(&whole);
    free(r);
}

/* Write two parts: the first of n columns, and the second of three, so that something is held
 * twice or missing. */
static void expect_unpublished(const side *whole, const lt_recipe *r, int n, const char *words) {
    lt_run_state at = state_at(901);
    char path[LT_PATH_BYTES];
    must(lt_checkpoint_begin(root, 901, NULL), "begin");
    for (int part = 0; part < 2; part++) {
        const parts_of of = parts_make(PARTS_COLUMNS, part == 0 ? n : 3, part,
                                       &whole->model->table);
        const lt_partition partition = {parts_boxes, &of, NULL};
        must(write_part(whole, r, &partition, 901, part, 2), "write");
    }
    assert_int_equal(lt_checkpoint_publish(root, 2, whole->model, &whole->optimiser, &at, NULL),
                     LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), words));
    must(lt_checkpoint_path(path, root, 901), "path");
    assert_false(lt_file_exists(path));
    lt_checkpoint_abandon(root, 901, NULL);
    lt_run_state_clear(&at);
}

static void incomplete_parts_are_not_published(void **state) {
    lt_recipe *r = recipe_of("lion", "fp32");
    lt_run_state at = state_at(902);
    side whole;
    (void)state;
    open_whole(&whole, r);
    const parts_of of = parts_make(PARTS_ROWS, 2, 0, &whole.model->table);
    const lt_partition first = {parts_boxes, &of, NULL};
    expect_unpublished(&whole, r, 2, "overlap");
    expect_unpublished(&whole, r, 3, "elements");
    /* One of the two has not been written. */
    must(lt_checkpoint_begin(root, 902, NULL), "begin");
    must(write_part(&whole, r, &first, 902, 0, 2), "write");
    assert_int_not_equal(lt_checkpoint_publish(root, 2, whole.model, &whole.optimiser, &at, NULL),
                         LT_OK);
    assert_non_null(strstr(lt_error_message(), "part-00001-of-00002.json"));
    lt_checkpoint_abandon(root, 902, NULL);
    lt_run_state_clear(&at);
    side_close(&whole);
    free(r);
}

/* Change the manifest of the first of two parts before they are published: the text `from`, which
 * it contains, into `to`. */
static void expect_refused(const side *whole, const lt_recipe *r, const char *from, const char *to,
                           const char *words) {
    lt_run_state at = state_at(905);
    char path[LT_PATH_BYTES], *text = NULL, *found, *changed;
    size_t bytes = 0;
    must(lt_checkpoint_begin(root, 905, NULL), "begin");
    for (int part = 0; part < 2; part++) {
        const parts_of of = parts_make(PARTS_ROWS, 2, part, &whole->model->table);
        const lt_partition partition = {parts_boxes, &of, NULL};
        must(write_part(whole, r, &partition, 905, part, 2), "write");
    }
    (void)snprintf(path, sizeof path, "%s/step-000000905.tmp/part-00000-of-00002.json", root);
    must(lt_file_read(&text, &bytes, path, 1 << 20), path);
    found = strstr(text, from);
    if (found == NULL) {
        fail_msg("'%s' is not in %s", from, text);
    }
    changed = malloc(bytes + strlen(to) + 1);
    assert_non_null(changed);
    (void)sprintf(changed, "%.*s%s%s", (int)(found - text), text, to, found + strlen(from));
    must(lt_file_write_atomic(path, changed, strlen(changed)), path);
    if (lt_checkpoint_publish(root, 2, whole->model, &whole->optimiser, &at, NULL) == LT_OK) {
        fail_msg("%s: is not refused", to);
    }
    if (strstr(lt_error_message(), words) == NULL) {
        fail_msg("%s: '%s' does not say '%s'", to, lt_error_message(), words);
    }
    lt_checkpoint_abandon(root, 905, NULL);
    free(text);
    free(changed);
    lt_run_state_clear(&at);
}

/* The embedding is 37 x 20; the first part has rows 0 to 17 of it. */
static void damaged_boxes_are_refused(void **state) {
#define EMBEDDING "\"embed\":"
#define BOXES     "{\"shape\":[37,20],\"boxes\":[[[0,0],[18,20]]]}"
    static const char *const boxes[] = {"[[-1,0],[18,20]]",
                                        "[[0,-1],[18,20]]",
                                        "[[0,0],[0,20]]",
                                        "[[0,0],[18,0]]",
                                        "[[20,0],[18,20]]",
                                        "[[0,1],[18,20]]",
                                        "[[0,0],[38,20]]",
                                        "[[\"0\",0],[18,20]]",
                                        "[[0,0.0],[18,20]]",
                                        "[[0],[18,20]]",
                                        "[[0,0,0],[18,20]]",
                                        "[[0,0],[18,20,1]]",
                                        "[[0,0],[null,20]]",
                                        "[]",
                                        "{}",
                                        "3"};
    static const struct {
        const char *shape, *words;
    } shapes[] = {{"[38,20]", "is of another shape"},     {"[37,21]", "is of another shape"},
                  {"[37]", "is of another shape"},        {"[37,20,1]", "is of another shape"},
                  {"[\"37\",20]", "is of another shape"}, {"null", "is of another shape"}};
    lt_recipe *r = recipe_of("lion", "fp32");
    side whole;
    char to[256];
    (void)state;
    open_whole(&whole, r);
    for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++) {
        (void)snprintf(to, sizeof to, EMBEDDING "{\"shape\":[37,20],\"boxes\":[%s]}", boxes[i]);
        expect_refused(&whole, r, EMBEDDING BOXES, to, "box 0 of parameter embed lies outside it");
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        (void)snprintf(to, sizeof to, EMBEDDING "{\"shape\":%s,\"boxes\":[[[0,0],[18,20]]]}",
                       shapes[i].shape);
        expect_refused(&whole, r, EMBEDDING BOXES, to, shapes[i].words);
    }
    expect_refused(&whole, r, EMBEDDING, "\"other\":", "parameter other is not one of this model");
    expect_refused(&whole, r, EMBEDDING BOXES, EMBEDDING "{\"shape\":[37,20],\"boxes\":[]}",
                   "parameter embed: the parts hold 380 of 740 elements");
    expect_refused(&whole, r, "\"part\":0", "\"part\":1", "1 of 2, wanted");
    expect_refused(&whole, r, "\"parts\":2", "\"parts\":3", "0 of 3, wanted");
    side_close(&whole);
    free(r);
}

static void flip_byte(int64_t step, const char *file) {
    char folder[LT_PATH_BYTES], path[LT_PATH_BYTES];
    unsigned char byte;
    must(lt_checkpoint_path(folder, root, step), "path");
    must(lt_path_join(path, folder, file), "path");
    const int fd = open(path, O_RDWR);
    const off_t last = lseek(fd, -1, SEEK_END);
    assert_true(fd >= 0 && pread(fd, &byte, 1, last) == 1);
    byte ^= 1;
    assert_true(pwrite(fd, &byte, 1, last) == 1);
    close(fd);
}

/* Stages of a pipeline: the second needs no file of the first. */
static void only_files_that_are_needed_are_read(void **state) {
    lt_recipe *r = recipe_of("adamw", "fp32");
    side whole;
    (void)state;
    open_whole(&whole, r);
    write_parts(&whole, r, PARTS_LAYERS, 2, 903);
    flip_byte(903, "v-00000-of-00002.safetensors");
    for (int part = 0; part < 2; part++) {
        const parts_of of = parts_make(PARTS_LAYERS, 2, part, &whole.model->table);
        const lt_partition partition = {parts_boxes, &of, NULL};
        int64_t n_held = 0;
        side s;
        must(open_part(&s, &whole, r, &partition), "part");
        if (part == 0) {
            assert_int_equal(load_part(&s, 903), LT_ERR_FORMAT);
            assert_non_null(strstr(lt_error_message(), "v-00000-of-00002.safetensors"));
        } else {
            must(load_part(&s, 903), "the second stage");
            expect_bits(&s, &whole, &n_held, "the second stage");
        }
        side_close(&s);
    }
    flip_byte(903, "part-00001-of-00002.json"); /* Every part needs all manifests. */
    assert_int_equal(load_part(&whole, 903), LT_ERR_FORMAT);
    side_close(&whole);
    free(r);
}

static void other_models_are_refused(void **state) {
    lt_recipe *r = recipe_of("adamw", "fp32");
    const lt_model_spec other[] = {spec_of(true, 38), spec_of(false, 37)};
    side whole, s;
    (void)state;
    open_whole(&whole, r);
    write_parts(&whole, r, PARTS_FLAT, 2, 904);
    for (int i = 0; i < 2; i++) {
        must(side_open(&s, r, &other[i], LT_F32, NULL), "other");
        assert_int_equal(load_part(&s, 904), LT_ERR_STATE);
        side_close(&s);
    }
    side_close(&whole);
    free(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_division_reads_any_other),
        cmocka_unit_test(replicas_count_once),
        cmocka_unit_test(incomplete_parts_are_not_published),
        cmocka_unit_test(damaged_boxes_are_refused),
        cmocka_unit_test(only_files_that_are_needed_are_read),
        cmocka_unit_test(other_models_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
