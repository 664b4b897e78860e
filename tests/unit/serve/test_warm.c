/* After a preload, the steps that it preloaded compile and load no kernel. After the warm-up on a
 * GPU no step needs a new kernel: neither a prompt with any number of rows, nor pieces of prompts
 * beside single tokens. */
#include "unit/serve/fleet.h"

#include <unistd.h>

#include "model/infer/paged_forward.h"

enum { ROWS = 64, MAX_ROWS = 256, SEQS = 64, PAGE = 16, V = 700 };

/* `single` single tokens and one prompt; the logits of the last row of each, or of all rows. */
static void run_step(lt_paged_forward *f, int64_t single, int64_t prompt, bool all) {
    static int32_t ids[MAX_ROWS], positions[MAX_ROWS], slots[MAX_ROWS], q_start[SEQS + 1],
        kv_len[SEQS], table[SEQS * MAX_ROWS / PAGE], out_rows[MAX_ROWS];
    lt_paged_forward_picks picks;
    const int64_t rows = single + prompt, seqs = single + 1, pages = (prompt + PAGE - 1) / PAGE;
    int64_t n_out = 0;
    for (int64_t i = 0; i < rows; i++) {
        positions[i] = i < single ? 0 : (int32_t)(i - single);
        slots[i] = -1;
        out_rows[n_out] = (int32_t)i;
        n_out += all || i < single || i == rows - 1;
    }
    for (int64_t i = 0; i < seqs; i++) {
        q_start[i + 1] = i < single ? (int32_t)i + 1 : (int32_t)rows;
        kv_len[i] = i < single ? 1 : (int32_t)prompt;
    }
    must(lt_paged_forward_run(f, &(lt_paged_forward_rows){.n_rows = rows,
                                                          .n_seqs = seqs,
                                                          .n_out = n_out,
                                                          .q_max = prompt,
                                                          .kv_max = prompt,
                                                          .max_pages = pages,
                                                          .ids = ids,
                                                          .positions = positions,
                                                          .slots = slots,
                                                          .q_start = q_start,
                                                          .kv_len = kv_len,
                                                          .table = table,
                                                          .out_rows = out_rows}),
         "step");
    must(lt_paged_forward_read_picks(f, 0, n_out, &picks), "picks");
}

static lt_paged_forward *open_forward(const lt_model *m) {
    lt_paged_forward *f = NULL;
    must(lt_paged_forward_open(&f, m,
                               &(lt_paged_forward_options){.max_rows = MAX_ROWS,
                                                           .max_seqs = SEQS,
                                                           .max_out = MAX_ROWS,
                                                           .out_rows = ROWS,
                                                           .n_penalty_states = SEQS,
                                                           .max_seq = MAX_ROWS,
                                                           .n_pages = 2 * MAX_ROWS / PAGE,
                                                           .page_tokens = PAGE,
                                                           .max_pages = MAX_ROWS / PAGE,
                                                           .cache_dtype = LT_BF16,
                                                           .value_dtype = LT_BF16}),
         "forward");
    return f;
}

/* Whether they were in the cache, or have been compiled by a first preload. */
static void what_was_preloaded_is_loaded(void **state) {
    const lt_backend *gpu = gpu_backend();
    int64_t n_kernels, n_compiled;
    bool more = true;
    (void)state;
    if (gpu == NULL) {
        skip();
    }
    lt_model *m = random_model_on(V, MAX_ROWS, LT_BF16, 0.0f, gpu);
    lt_paged_forward *f = open_forward(m);
    must(lt_paged_forward_preload(f, 2), "preload");
    while (lt_paged_forward_compiling(f)) {
        usleep(10000);
    }
    must(lt_paged_forward_preload(f, 2), "once more");
    assert_false(lt_paged_forward_compiling(f));
    n_kernels = gpu->n_kernels(device_of(gpu));
    n_compiled = gpu->n_compiled(device_of(gpu));
    assert_true(n_kernels > 0);
    must(lt_paged_forward_warm(f, 0, &more), "a token");
    must(lt_paged_forward_warm(f, 1, &more), "a prompt");
    assert_int_equal(gpu->n_kernels(device_of(gpu)), n_kernels);
    assert_int_equal(gpu->n_compiled(device_of(gpu)), n_compiled);
    lt_paged_forward_close(f);
    lt_model_close(m);
}

static void no_step_needs_a_new_kernel(void **state) {
    const lt_backend *gpu = gpu_backend();
    bool more = true;
    int64_t n_kernels;
    (void)state;
    if (gpu == NULL) {
        skip();
    }
    lt_model *m = random_model_on(V, MAX_ROWS, LT_BF16, 0.0f, gpu);
    lt_paged_forward *f = open_forward(m);
    for (int64_t i = 0; more; i++) {
        must(lt_paged_forward_warm(f, i, &more), "warm");
    }
    n_kernels = gpu->n_kernels(device_of(gpu));
    for (int64_t rows = 1; rows <= ROWS; rows++) {
        run_step(f, 0, rows, false);
        run_step(f, 0, rows, true);
        run_step(f, rows * 5 / 8, rows - rows * 5 / 8, false);
        if (gpu->n_kernels(device_of(gpu)) != n_kernels) {
            fail_msg("%lld rows: %lld kernels that nothing had warmed", (long long)rows,
                     (long long)(gpu->n_kernels(device_of(gpu)) - n_kernels));
        }
    }
    lt_paged_forward_close(f);
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_was_preloaded_is_loaded),
                                       cmocka_unit_test(no_step_needs_a_new_kernel)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
