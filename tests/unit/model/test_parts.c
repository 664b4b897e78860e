/* Parts of a model: boxes and their arithmetic against a count of every element; a part that is
 * initialised or loaded alone has the bits of that slice of the whole, from safetensors and GGUF,
 * in F32 and BF16; data outside a part are not read. */
#include "unit/model/golden.h"
#include "unit/model/parts.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/file.h"
#include "model/alloc.h"
#include "model/files/gguf_save.h"
#include "model/family.h"

/* ---- Boxes ---- */

/* The element of a list of boxes, found by counting. */
static int64_t counted(const lt_box *boxes, int n, const int64_t *shape, int64_t local) {
    for (int i = 0; i < n; i++) {
        const lt_box *b = &boxes[i];
        for (int64_t x = 0; x < b->extent[0]; x++) {
            for (int64_t y = 0; y < b->extent[1]; y++) {
                for (int64_t z = 0; z < b->extent[2]; z++) {
                    if (local-- == 0) {
                        return ((b->first[0] + x) * shape[1] + b->first[1] + y) * shape[2] +
                               b->first[2] + z;
                    }
                }
            }
        }
    }
    return -1;
}

static void flat_ranges_are_at_most_five_boxes(void **state) {
    const int64_t shape[3] = {3, 4, 5}, count = 60;
    const lt_box whole = {.extent = {3, 4, 5}};
    (void)state;
    for (int64_t from = 0; from <= count; from++) {
        for (int64_t to = from; to <= count; to++) {
            lt_box_list list = {0};
            int64_t n = 0, run;
            assert_int_equal(lt_box_cut(&list, &whole, 1, 3, from, to), LT_OK);
            assert_true(list.n <= 5);
            for (int i = 0; i < list.n; i++) {
                n += lt_box_count(&list.boxes[i], 3);
            }
            assert_int_equal(n, to - from);
            for (int64_t local = 0; local < n; local++) {
                assert_int_equal(counted(list.boxes, list.n, shape, local), from + local);
                assert_int_equal(lt_box_whole_index(list.boxes, list.n, 3, shape, local, &run),
                                 from + local);
            }
            free(list.boxes);
        }
    }
}

static void runs_and_counts_follow_the_elements(void **state) {
    const int64_t shape[3] = {3, 4, 5};
    (void)state;
    for (int c = 0; c < 400; c++) {
        lt_box b;
        for (int d = 0; d < 3; d++) {
            const uint64_t r = lt_rng_mix((uint64_t)(c * 3 + d));
            b.first[d] = (int64_t)(r % (uint64_t)shape[d]);
            b.extent[d] = 1 + (int64_t)((r >> 20) % (uint64_t)(shape[d] - b.first[d]));
        }
        const int64_t n = lt_box_count(&b, 3);
        for (int64_t local = 0; local < n; local++) {
            int64_t run;
            const int64_t at = lt_box_whole_index(&b, 1, 3, shape, local, &run);
            assert_int_equal(at, counted(&b, 1, shape, local));
            assert_true(run >= 1 && local + run <= n);
            assert_int_equal(counted(&b, 1, shape, local + run - 1), at + run - 1);
            if (local + run < n) { /* A run is as long as possible. */
                assert_int_not_equal(counted(&b, 1, shape, local + run), at + run);
            }
            assert_int_equal(lt_box_count_below(&b, 3, shape, at), local);
            assert_int_equal(lt_box_count_below(&b, 3, shape, at + 1), local + 1);
        }
        assert_int_equal(lt_box_count_below(&b, 3, shape, 0), 0);
        assert_int_equal(lt_box_count_below(&b, 3, shape, 60), n);
    }
}

static lt_err lying_boxes(const void *ctx, const lt_param *p, lt_box_list *out) {
    const lt_box *lie = ctx;
    lt_box whole = {.first = {0}};
    memcpy(whole.extent, p->shape, sizeof p->shape);
    LT_TRY(lt_box_add(out, &whole));
    return p->kind == LT_PARAM_EMBED ? lt_box_add(out, lie) : LT_OK;
}

static void wrong_boxes_are_refused(void **state) {
    lt_model_spec s = lt_family_get(LT_FAMILY_LLAMA)->preset;
    lt_param_table t;
    const lt_box lies[] = {{{0, 0}, {1, 1}}, {{0, -1}, {1, 1}}, {{7, 0}, {1, 1}}, {{3, 2}, {1, 0}}};
    const char *const words[] = {"overlap", "dimension 1", "dimension 0", "dimension 1"};
    (void)state;
    s.n_layers = 1;
    s.width = 8;
    s.n_heads = s.n_kv_heads = 2;
    s.head_dim = 4;
    s.ffn_width = 8;
    s.vocab_size = 7;
    s.max_seq = 4;
    lt_model_spec_derive(&s);
    for (int i = 0; i < 4; i++) {
        const lt_partition lie = {lying_boxes, &lies[i], NULL};
        assert_int_equal(lt_param_table_open_part(&t, &s, &lie), LT_ERR_ARG);
        assert_non_null(strstr(lt_error_message(), "embed"));
        assert_non_null(strstr(lt_error_message(), words[i]));
    }
}

/* ---- Models ---- */

static void golden_path(char path[128], const char *name) {
    (void)snprintf(path, 128, GOLDEN_ROOT "%s", name);
}

/* Compare each of n parts, from `path` or, without one, from a seed, with the whole. */
static void expect_parts(const lt_model *whole, const char *path, parts_kind kind, int n,
                         const lt_model_options *options) {
    int64_t n_held = 0;
    for (int part = 0; part < n; part++) {
        const parts_of of = parts_make(kind, n, part, &whole->table);
        const lt_partition partition = {parts_boxes, &of, NULL};
        lt_model_options o = *options;
        char what[160];
        lt_model *m = NULL;
        int64_t twice = 0;
        (void)snprintf(what, sizeof what, "%s, %s %d of %d", path != NULL ? path : "drawn",
                       parts_names[kind], part, n);
        o.partition = &partition;
        must(path != NULL ? lt_model_open(&m, path, &o) : lt_model_create(&m, &whole->spec, &o, 11),
             what);
        parts_expect_slice(&m->table, &m->weights, &whole->table, &whole->weights, &n_held, what);
        if (m->master.flat != NULL) {
            parts_expect_slice(&m->table, &m->master, &whole->table, &whole->master, &twice, what);
        }
        lt_model_close(m);
    }
    /* No element is missing, and none is held twice. */
    assert_int_equal(n_held, parts_count(&whole->table));
}

static void parts_are_drawn_as_the_whole(void **state) {
    static const char *const cases[] = {"mixtral", "apertus", "gpt2", "gemma2"};
    (void)state;
    for (int c = 0; c < 4; c++) {
        char path[128];
        lt_model *from = NULL, *whole = NULL;
        const lt_model_options o = {.dtype = LT_BF16, .trainable = true};
        golden_path(path, cases[c]);
        must(lt_model_open(&from, path, NULL), path);
        must(lt_model_create(&whole, &from->spec, &o, 11), path);
        for (int kind = 0; kind < PARTS_KIND_COUNT; kind++) {
            expect_parts(whole, NULL, (parts_kind)kind, 3, &o);
        }
        lt_model_close(whole);
        lt_model_close(from);
    }
}

static void parts_are_loaded_as_the_whole(void **state) {
    (void)state;
    for (int c = 0; c < N_GOLDEN_CASES; c++) {
        for (int bf16 = 0; bf16 < 2; bf16++) {
            char path[128];
            lt_model *whole = NULL;
            const lt_model_options o = {.dtype = bf16 ? LT_BF16 : LT_F32};
            golden_path(path, golden_cases[c]);
            must(lt_model_open(&whole, path, &o), path);
            for (int kind = 0; kind < PARTS_KIND_COUNT; kind++) {
                expect_parts(whole, path, (parts_kind)kind, 2 + (c + kind) % 4, &o);
            }
            lt_model_close(whole);
        }
    }
}

/* Blocks do not end where columns do, and llama's rows of q and k are in pairs. */
static void parts_of_gguf_are_loaded_as_the_whole(void **state) {
    static const char *const cases[] = {"llama3", "mixtral", "qwen3", "phi3", "gpt2"};
    static const lt_gguf_mix mixes[] = {LT_GGUF_MIX_Q8_0, LT_GGUF_MIX_F32};
    (void)state;
    for (int c = 0; c < 5; c++) {
        for (int x = 0; x < 2; x++) {
            char path[128], file[64];
            lt_model *from = NULL, *whole = NULL;
            golden_path(path, cases[c]);
            (void)snprintf(file, sizeof file, "/tmp/lateen_parts_%d.gguf", (int)getpid());
            must(lt_model_open(&from, path, NULL), path);
            must(lt_model_save_gguf(from, file, "", mixes[x]), file);
            must(lt_model_open(&whole, file, NULL), file);
            for (int kind = 0; kind < PARTS_KIND_COUNT; kind++) {
                expect_parts(whole, file, (parts_kind)kind, 3,
                             &(lt_model_options){.dtype = LT_F32});
            }
            lt_model_close(whole);
            lt_model_close(from);
            unlink(file);
        }
    }
}

/* A part that holds the first rows does not read a NaN in the last one, which the whole and the
 * last part refuse. */
static void what_is_not_held_is_not_read(void **state) {
    char folder[] = "/tmp/lateen-parts-XXXXXX", path[LT_PATH_BYTES];
    const float bad = NAN;
    lt_model *m = NULL;
    lt_safetensors s;
    (void)state;
    assert_non_null(mkdtemp(folder));
    must(lt_model_open(&m, GOLDEN_ROOT "mixtral", NULL), "mixtral");
    must(lt_model_save(m, folder, LT_F32, 0), folder);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    must(lt_safetensors_open(&s, path), path);
    const lt_safetensor *t = lt_safetensors_find(&s, "model.layers.0.self_attn.o_proj.weight");
    assert_non_null(t);
    const off_t at = (off_t)((const char *)t->data - (const char *)s.map.data) + (off_t)t->bytes -
                     4;
    const int fd = open(path, O_WRONLY);
    assert_true(fd >= 0 && pwrite(fd, &bad, 4, at) == 4);
    close(fd);
    lt_safetensors_close(&s);
    for (int kind = PARTS_ROWS; kind <= PARTS_COLUMNS; kind++) {
        for (int part = 0; part < 3; part++) {
            const parts_of of = parts_make((parts_kind)kind, 3, part, &m->table);
            const lt_partition partition = {parts_boxes, &of, NULL};
            lt_model *p = NULL;
            const lt_err err = lt_model_open(&p, folder,
                                             &(lt_model_options){.partition = &partition});
            assert_int_equal(err, part == 2 ? LT_ERR_NUMERIC : LT_OK);
            lt_model_close(p);
        }
    }
    lt_model_close(m);
    must(lt_file_remove_tree(folder), folder);
}

/* Units: only the base pointers say where a unit is, so that it may be elsewhere, or absent. */
static void units_are_where_their_base_points(void **state) {
    lt_model *m = NULL;
    (void)state;
    must(lt_model_open(&m, GOLDEN_ROOT "llama3", NULL), "llama3");
    const lt_unit *unit = &m->table.units[1];
    float *elsewhere = malloc((size_t)unit->n_elements * sizeof *elsewhere);
    const lt_tensor before = lt_param_view(&m->table, LT_PARAM_DOWN, 0, &m->weights);
    const lt_tensor other = lt_param_view(&m->table, LT_PARAM_DOWN, 1, &m->weights);
    assert_non_null(elsewhere);
    m->weights.base[1] = elsewhere;
    const lt_tensor moved = lt_param_view(&m->table, LT_PARAM_DOWN, 0, &m->weights);
    const int64_t at = m->table.params[lt_param_index(&m->table, LT_PARAM_DOWN, 0)].at;
    assert_ptr_equal(moved.data, elsewhere + at);
    assert_ptr_equal((float *)before.data - (float *)m->weights.flat, (void *)(unit->at + at));
    m->weights.base[1] = NULL;
    assert_null(lt_param_view(&m->table, LT_PARAM_DOWN, 0, &m->weights).data);
    assert_ptr_equal(lt_param_view(&m->table, LT_PARAM_DOWN, 1, &m->weights).data, other.data);
    free(elsewhere);
    lt_model_close(m);
}

/* A part does not compute alone. */
static void a_part_does_not_run_alone(void **state) {
    lt_model *whole = NULL, *m = NULL;
    lt_session *session = NULL;
    (void)state;
    must(lt_model_open(&whole, GOLDEN_ROOT "llama3", NULL), "llama3");
    const parts_of of = parts_make(PARTS_ROWS, 2, 0, &whole->table);
    const lt_partition partition = {parts_boxes, &of, NULL};
    must(lt_model_open(&m, GOLDEN_ROOT "llama3", &(lt_model_options){.partition = &partition}), "");
    assert_int_equal(lt_session_open(&session, m, 1, 8), LT_ERR_UNSUPPORTED);
    assert_int_equal(lt_model_save(m, "/tmp/lateen-parts-never", LT_F32, 0), LT_ERR_UNSUPPORTED);
    assert_int_equal(lt_model_save_gguf(m, "/tmp/lateen-parts-never.gguf", "", LT_GGUF_MIX_F32),
                     LT_ERR_UNSUPPORTED);
    lt_model_close(m);
    lt_model_close(whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flat_ranges_are_at_most_five_boxes),
        cmocka_unit_test(runs_and_counts_follow_the_elements),
        cmocka_unit_test(wrong_boxes_are_refused),
        cmocka_unit_test(parts_are_drawn_as_the_whole),
        cmocka_unit_test(parts_are_loaded_as_the_whole),
        cmocka_unit_test(parts_of_gguf_are_loaded_as_the_whole),
        cmocka_unit_test(what_is_not_held_is_not_read),
        cmocka_unit_test(units_are_where_their_base_points),
        cmocka_unit_test(a_part_does_not_run_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
