/* The tuner's record of products: an entry is found for exactly its product; broken lines of the
 * file are skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "kernels/cuda/gemm/winners.h"

static const lt_cuda_info gpu = {.name = "NVIDIA Test 80GB"}, other_gpu = {.name = "NVIDIA Other"};
static char folder[] = "/tmp/lateen-winners-XXXXXX", path[LT_PATH_BYTES];

static lt_gemm_args product(int64_t m) {
    return (lt_gemm_args){.m = m,
                          .n = 768,
                          .k = 3072,
                          .trans_b = true,
                          .in = LT_BF16,
                          .out = LT_BF16,
                          .alpha = 1.0f,
                          .act = -1,
                          .act_bwd = -1};
}

static lt_gemm_winner winner(int splits) {
    return (lt_gemm_winner){.by = LT_GEMM_BY_CUBLASLT,
                            .tile = {.bn = 256,
                                     .wg_m = 1,
                                     .consumers = 2,
                                     .cluster = 2,
                                     .stages = 4,
                                     .splits = splits,
                                     .group = 8},
                            .choice = 3,
                            .vendor = 130002,
                            .us = {11.25, 10.5, 0.0}};
}

static int setup(void **state) {
    (void)state;
    return mkdtemp(folder) == NULL || setenv("LATEEN_CACHE_DIR", folder, 1) != 0 ||
           lt_path_join(path, folder, "gemm.tune") != LT_OK;
}

static int teardown(void **state) {
    (void)state;
    return remove(path) != 0 || remove(folder) != 0;
}

static void kept_is_found(void **state) {
    (void)state;
    lt_gemm_args a = product(64), b = product(64);
    const lt_gemm_winner w = winner(2), again = winner(4);
    const lt_gemm_winner *found;
    float bias = 0;

    assert_null(lt_gemm_winner_find(&gpu, &a));
    assert_int_equal(lt_gemm_winner_keep(&gpu, &a, &w), LT_OK);
    found = lt_gemm_winner_find(&gpu, &a);
    assert_non_null(found);
    assert_int_equal(found->by, w.by);
    assert_int_equal(found->tile.splits, 2);
    assert_int_equal(found->tile.cluster, 2);
    assert_int_equal(found->choice, 3);
    assert_true(found->us[0] == 11.25 && found->us[1] == 10.5 && found->us[2] == 0.0);
    assert_int_equal(lt_gemm_winner_keep(&gpu, &a, &again), LT_OK);
    assert_int_equal(lt_gemm_winner_find(&gpu, &a)->tile.splits, 4);

    assert_null(lt_gemm_winner_find(&other_gpu, &a));
#define DIFFERS(change)                                                                            \
    b = a;                                                                                         \
    change;                                                                                        \
    assert_null(lt_gemm_winner_find(&gpu, &b))
    DIFFERS(b.m = 65);
    DIFFERS(b.trans_a = true);
    DIFFERS(b.trans_b = false);
    DIFFERS(b.out = LT_F32);
    DIFFERS(b.accumulate = true);
    DIFFERS(b.bias = &bias);
    DIFFERS(b.act = LT_ACT_SILU);
    DIFFERS(b.residual = true);
}

static void broken_lines_are_skipped(void **state) {
    (void)state;
    static const char tail[] = " 256 1 2 1 4 1 8 0 0 1 130002 5.00 4.00 0.00\n";
    char *text = NULL, line[4096];
    size_t n = 0;
    lt_gemm_args a = product(64), b = product(128), c = product(256);
    const lt_gemm_winner w = winner(1);
    FILE *f = fopen(path, "a");

    assert_non_null(f);
    fprintf(f, "nonsense\n\n# a comment\n");
    fprintf(f, "NVIDIA_Test_80GB 128 768 3072 nt bf16 bf16 0 none nobody%s", tail);
    fprintf(f, "NVIDIA_Test_80GB 128 768 3072 nt bf16 bf16 0 none wgmma 257 1 2 1 4 1 8 0 0 1 0 5 "
               "4 0\n");
    fprintf(f, "NVIDIA_Test_80GB 128 768 3072 nt bf16 bf16 0 none wgmma 256 1 2 1 4 99 8 0 0 1 0 5 "
               "4 0\n");
    memset(line, 'x', sizeof line - 1);
    line[sizeof line - 1] = '\0';
    fprintf(f, "%s %s", line, "128\n");
    fprintf(f, "NVIDIA_Test_80GB 256 768 3072 nt bf16 bf16 0 none wgmma%s", tail);
    /* The line is cut off. */
    fprintf(f, "NVIDIA_Test_80GB 128 768 3072 nt bf16 bf16 0 none wgmma 256 1 2");
    fclose(f);
    a.m = 32;
    assert_int_equal(lt_gemm_winner_keep(&gpu, &a, &w), LT_OK); /* Reads the file again. */
    assert_null(lt_gemm_winner_find(&gpu, &b));
    assert_non_null(lt_gemm_winner_find(&gpu, &c));
    assert_int_equal(lt_gemm_winner_find(&gpu, &c)->by, LT_GEMM_BY_WGMMA);
    assert_int_equal(lt_file_read(&text, &n, path, 1 << 20), LT_OK);
    assert_null(strstr(text, "nonsense")); /* The writer keeps only what it understood. */
    assert_non_null(strstr(text, "NVIDIA_Test_80GB 64 768 3072 nt bf16 bf16 0 none cublaslt"));
    free(text);
}

/* Lines that were written before later kinds existed hold fewer times. */
static void shipped_lines_are_read(void **state) {
    (void)state;
    static const lt_cuda_info h100 = {.name = "NVIDIA H100 80GB HBM3"};
    lt_gemm_args a = product(65536);
    a.n = 3072, a.k = 768, a.trans_b = false;
    assert_non_null(lt_gemm_winner_find(&h100, &a));
    assert_int_equal(lt_gemm_winner_find(&h100, &a)->by, LT_GEMM_BY_CUBLASLT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_is_found),
        cmocka_unit_test(broken_lines_are_skipped),
        cmocka_unit_test(shipped_lines_are_read),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
