/* The arithmetic of outer steps against its definitions in outer.h, and the folder through which
 * sites meet: which sites count in a round, which one decides, what is damaged or belongs to
 * another run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "parallel/sites.h"

#define N        (3 * LT_OUTER_BLOCK + 29) /* An odd number, and a short block. */
#define PATIENCE 60.0

static void must(lt_err err, const char *what) {
    if (err != LT_OK) {
        fail_msg("%s: %s", what, lt_error_message());
    }
}

/* ---- Arithmetic ---- */

static void fill(float *outer, float *own, int64_t n) {
    uint32_t state = 12345;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        own[i] = 0.0f;
        outer[i] = ldexpf((float)(int32_t)state, -31 - (int)(i % 11) - (int)(i / 128));
    }
    memset(outer + LT_OUTER_BLOCK, 0, LT_OUTER_BLOCK * sizeof *outer); /* A block of zeros. */
}

/* The magnitudes that a code of a block can represent, as outer.h lists them: *n of them. */
static void values_of(lt_outer_bits bits, double most, double *values, int *n) {
    *n = 0;
    for (int c = 0; bits == LT_OUTER_8 && c <= 127; c++) {
        values[(*n)++] = (double)((float)most / 127.0f) * c;
    }
    for (int c = 0; bits == LT_OUTER_4 && c <= 7; c++) {
        values[(*n)++] = c == 0 ? 0.0 : most * pow(2.0, c - 7);
    }
}

static void check_nearest(lt_outer_bits bits, const float *given, const float *got, int64_t n) {
    for (int64_t at = 0; at < n; at += LT_OUTER_BLOCK) {
        const int64_t end = at + LT_OUTER_BLOCK < n ? at + LT_OUTER_BLOCK : n;
        double values[128], most = 0.0;
        int n_values;
        for (int64_t i = at; i < end; i++) {
            most = fmax(most, fabs((double)given[i]));
        }
        values_of(bits, most, values, &n_values);
        for (int64_t i = at; i < end; i++) {
            const double want = fabs((double)given[i]), is = fabs((double)got[i]);
            double least = 1e30;
            for (int k = 0; k < n_values; k++) {
                least = fmin(least, fabs(want - values[k]));
            }
            if (fabs(want - is) > least + 1e-6 * most || (got[i] != 0 && given[i] * got[i] <= 0)) {
                fail_msg("%s bits, %lld: %g became %g, and %g lies nearer",
                         bits == LT_OUTER_8 ? "8" : "4", (long long)i, (double)given[i],
                         (double)got[i], least);
            }
        }
    }
}

static void codes_are_the_nearest(void **state) {
    static float outer[N], own[N], got[N];
    static const size_t bytes[] = {N * 4, 4 * 4 + N + 3, 4 * 4 + (N + 7) / 8 * 4};
    (void)state;
    fill(outer, own, N);
    for (int bits = LT_OUTER_32; bits <= LT_OUTER_4; bits++) {
        unsigned char code[N * 4];
        memset(got, 0, sizeof got);
        assert_int_equal(lt_outer_bytes((lt_outer_bits)bits, N), bytes[bits]);
        must(lt_outer_encode(code, (lt_outer_bits)bits, outer, own, N), "encode");
        lt_outer_add(got, (lt_outer_bits)bits, code, N);
        if (bits == LT_OUTER_32) {
            assert_memory_equal(got, outer, sizeof got);
        } else {
            check_nearest((lt_outer_bits)bits, outer, got, N);
        }
    }
}

/* Half way between two of them, and next to that; the largest of the block keeps its value. */
static void four_bits_by_hand(void **state) {
    const float given[] = {8.0f, -6.0f, 5.99f, 3.0f, -2.99f, 0.0626f, 0.0624f, 0.125f},
                want[] = {8.0f, -8.0f, 4.0f, 4.0f, -2.0f, 0.125f, 0.0f, 0.125f};
    float zeros[8] = {0}, got[8] = {0};
    unsigned char code[8];
    (void)state;
    must(lt_outer_encode(code, LT_OUTER_4, given, zeros, 8), "encode");
    lt_outer_add(got, LT_OUTER_4, code, 8);
    assert_memory_equal(got, want, sizeof got);
    /* The first code is in the low half: 7; then 7 with a sign. */
    assert_int_equal(code[4], 0xF7);
}

static void not_finite_is_refused(void **state) {
    float outer[3] = {1.0f, NAN, 2.0f}, own[3] = {0};
    unsigned char code[64];
    (void)state;
    for (int bits = LT_OUTER_32; bits <= LT_OUTER_4; bits++) {
        assert_int_equal(lt_outer_encode(code, (lt_outer_bits)bits, outer, own, 3), LT_ERR_NUMERIC);
    }
    outer[1] = INFINITY;
    assert_int_equal(lt_outer_encode(code, LT_OUTER_8, outer, own, 3), LT_ERR_NUMERIC);
}

/* torch.optim.SGD([w], lr=0.7, momentum=0.9, nesterov=True) from w = 1 with gradients 0.25 and
 * -0.5: 0.6675, then 1.19075. */
static void nesterov_by_hand(void **state) {
    float outer = 1.0f, momentum = 0.0f, own = 5.0f;
    const float sums[] = {0.5f, -1.0f}; /* Sums over two sites. */
    (void)state;
    lt_outer_step(&outer, &momentum, &sums[0], 2, 0.7f, 0.9f, 1);
    assert_float_equal(outer, 0.6675f, 1e-6);
    lt_outer_step(&outer, &momentum, &sums[1], 2, 0.7f, 0.9f, 1);
    assert_float_equal(outer, 1.19075f, 1e-6);
    lt_outer_merge(&own, &outer, 0.25f, 1);
    assert_float_equal(own, 2.1430625f, 1e-6);
    lt_outer_merge(&own, &outer, 0.0f, 1);
    assert_memory_equal(&own, &outer, sizeof own);
}

/* Zero numbers are zero bytes. */
static void zero_numbers_are_encoded(void **state) {
    unsigned char bytes[16];
    (void)state;
    for (int bits = LT_OUTER_32; bits <= LT_OUTER_4; bits++) {
        memset(bytes, 7, sizeof bytes);
        must(lt_outer_encode(bytes + 8, (lt_outer_bits)bits, NULL, NULL, 0), "nothing");
        for (size_t i = 0; i < sizeof bytes; i++) {
            assert_int_equal(bytes[i], 7);
        }
    }
}

/* ---- The folder ---- */

static char folder[64];

static int begin(void **state) {
    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/lateen-sites-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int end(void **state) {
    (void)state;
    return lt_file_remove_tree(folder) != LT_OK;
}

static lt_sites_options options_of(int site, double deadline_s) {
    return (lt_sites_options){.folder = folder,
                              .n_sites = 3,
                              .site = site,
                              .n_parts = 1,
                              .leads = true,
                              .deadline_s = deadline_s,
                              .bits = LT_OUTER_32,
                              .n_elements = 4,
                              .payload_bytes = 16};
}

static lt_sites open_site(int site, double deadline_s, const char *seed) {
    const lt_sites_options o = options_of(site, deadline_s);
    json_t *facts = json_pack("{s:s}", "seed", seed);
    lt_sites s;
    const lt_err err = lt_sites_open(&s, &o, facts);
    json_decref(facts);
    must(err, "open");
    return s;
}

static void post_after(lt_sites *s, int64_t step, int64_t after, float value, uint64_t base) {
    const float payload[4] = {value, 2 * value, 3 * value, 4 * value};
    const lt_sites_round round = {
        .step = step, .payload_bytes = s->o.payload_bytes, .after = after};
    memcpy(lt_sites_payload(s), payload, sizeof payload);
    must(lt_sites_begin(s, round, base), "begin");
}

static void post(lt_sites *s, int64_t step, float value, uint64_t base) {
    post_after(s, step, 0, value, base);
}

static lt_err finish(lt_sites *s) {
    for (bool done = false;;) {
        const lt_err err = lt_sites_poll(s, &done);
        if (err != LT_OK || done) {
            return err;
        }
        (void)usleep(1000);
    }
}

static void sites_that_are_present_count(void **state) {
    lt_sites a = open_site(0, PATIENCE, "1"), b = open_site(1, PATIENCE, "1"),
             c = open_site(2, 0.05, "1");
    int64_t *steps, without;
    size_t n;
    (void)state;
    post(&a, 10, 1.0f, 7);
    post(&b, 10, 2.0f, 7);
    must(lt_sites_wait_posted(&a), "a"); /* Before the deadline of c begins. */
    must(lt_sites_wait_posted(&b), "b");
    post(&c, 10, 3.0f, 7);
    must(finish(&a), "a");
    must(finish(&b), "b");
    must(finish(&c), "c");
    assert_int_equal(lt_sites_members(&a), 3);
    assert_float_equal(((const float *)lt_sites_deltas(&b, 2))[3], 12.0, 0.0);
    assert_int_equal(lt_sites_received(&a), 2 * (64 + 16));
    lt_sites_end(&a);
    lt_sites_end(&c);

    post(&c, 20, 5.0f, 8); /* Alone, after its deadline. */
    must(finish(&c), "c");
    assert_int_equal(lt_sites_members(&c), 1);
    post(&a, 20, 6.0f, 8); /* Too late: the decision stands. */
    must(finish(&a), "a");
    assert_int_equal(lt_sites_members(&a), 1);
    assert_null(lt_sites_deltas(&a, 0));
    assert_float_equal(((const float *)lt_sites_deltas(&a, 2))[0], 5.0, 0.0);
    must(lt_sites_decided(&a, 0, &steps, &n, &without), "decided");
    assert_int_equal(n, 2);
    assert_int_equal(steps[0] + steps[1], 30);
    assert_int_equal(without, 20);
    free(steps);
    must(lt_sites_decided(&c, 10, &steps, &n, &without), "decided");
    assert_int_equal(n, 1);
    assert_int_equal(without, -1);
    free(steps);
    lt_sites_close(&a);
    lt_sites_close(&b);
    lt_sites_close(&c);
}

static void files_are_never_replaced(void **state) {
    lt_sites a = open_site(0, 0.0, "1");
    (void)state;
    post(&a, 30, 1.0f, 7);
    must(finish(&a), "first");
    lt_sites_end(&a);
    post(&a, 30, 9.0f, 7);
    must(finish(&a), "again");
    assert_float_equal(((const float *)lt_sites_deltas(&a, 0))[0], 1.0, 0.0);
    lt_sites_end(&a);
    post(&a, 30, 1.0f, 8); /* It started from other outer parameters than its file says. */
    assert_int_equal(finish(&a), LT_ERR_STATE);
    lt_sites_close(&a);
}

static void diverged_and_damaged_sites_are_reported(void **state) {
    lt_sites a = open_site(0, 0.0, "1"), b = open_site(1, PATIENCE, "1");
    char path[LT_PATH_BYTES];
    FILE *f;
    (void)state;
    post(&b, 40, 1.0f, 8);
    must(lt_sites_wait_posted(&b), "b");
    post(&a, 40, 1.0f, 7);
    assert_int_equal(finish(&a), LT_ERR_STATE);
    assert_non_null(strstr(lt_error_message(), "sites 0 and 1"));
    lt_sites_end(&a);
    lt_sites_end(&b);

    post(&b, 50, 1.0f, 7);
    must(lt_sites_wait_posted(&b), "b");
    (void)snprintf(path, sizeof path, "%s/step-000000050/site-1.part-0", folder);
    f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    assert_int_equal(fputc(1, f), 1);
    assert_int_equal(fclose(f), 0);
    post(&a, 50, 1.0f, 7);
    assert_int_equal(finish(&a), LT_ERR_FORMAT);
    lt_sites_close(&a);
    lt_sites_close(&b);
}

/* One file has the members of a round. */
static void damaged_member_files_are_reported(void **state) {
    static const struct {
        const char *text, *says;
    } rows[] = {{"{\"sites\": [0, 3]}", "members: site 3 of 3"},
                {"{\"sites\": [-1]}", "members: site -1 of 3"},
                {"{\"sites\": []}", "members names no site"},
                {"{}", "members names no site"},
                {"{\"sites\": [0", "members"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_sites a = open_site(0, PATIENCE, "1");
        const int64_t step = 70 + (int64_t)i;
        char path[LT_PATH_BYTES];
        post(&a, step, 1.0f, 7);
        must(lt_sites_wait_posted(&a), "a");
        (void)snprintf(path, sizeof path, "%s/step-0000000%lld/members", folder, (long long)step);
        must(lt_file_write_atomic(path, rows[i].text, strlen(rows[i].text)), path);
        assert_int_equal(finish(&a), LT_ERR_FORMAT);
        assert_non_null(strstr(lt_error_message(), rows[i].says));
        lt_sites_close(&a);
        (void)snprintf(path, sizeof path, "%s/step-0000000%lld", folder, (long long)step);
        must(lt_file_remove_tree(path), path);
    }
}

/* Two rounds are in progress: the second has all its files and is past its deadline, and is
 * decided after the first. */
static void rounds_are_decided_in_order(void **state) {
    lt_sites first = open_site(0, PATIENCE, "1"), second = open_site(0, 0.0, "1");
    lt_sites others[4] = {open_site(1, PATIENCE, "1"), open_site(2, PATIENCE, "1"),
                          open_site(1, PATIENCE, "1"), open_site(2, PATIENCE, "1")};
    int64_t *steps, without;
    bool done = true;
    size_t n;
    (void)state;
    post(&first, 52, 1.0f, 7);
    post_after(&second, 56, 52, 2.0f, 8);
    post_after(&others[2], 56, 52, 3.0f, 8);
    post_after(&others[3], 56, 52, 4.0f, 8);
    (void)usleep(300000); /* Longer than the pause between two checks. */
    must(lt_sites_poll(&second, &done), "second");
    assert_false(done);
    must(lt_sites_decided(&second, 51, &steps, &n, &without), "decided");
    assert_int_equal(n, 0);
    free(steps);
    post(&others[0], 52, 5.0f, 7);
    post(&others[1], 52, 6.0f, 7);
    must(finish(&second), "second");
    must(finish(&first), "first");
    assert_int_equal(lt_sites_members(&first), 3);
    assert_int_equal(lt_sites_members(&second), 3);
    for (int i = 0; i < 4; i++) {
        lt_sites_close(&others[i]);
    }
    lt_sites_close(&first);
    lt_sites_close(&second);
}

static void sites_agree_about_their_run(void **state) {
    const lt_sites_options o = options_of(1, 0.0);
    lt_sites a = open_site(0, 0.0, "1"), b;
    json_t *facts = json_pack("{s:s}", "seed", "2");
    (void)state;
    assert_int_equal(lt_sites_open(&b, &o, facts), LT_ERR_STATE);
    assert_non_null(strstr(lt_error_message(), "seed = 2"));
    json_decref(facts);
    lt_sites_close(&a);
}

static void outer_parameters_for_sites_that_join_later(void **state) {
    const float both[8] = {1, 2, 3, 4, 5, 6, 7, 8}, *got;
    lt_sites a = open_site(0, 0.0, "1");
    lt_file_map map;
    int64_t step, *steps, without;
    size_t n;
    (void)state;
    post(&a, 60, 1.0f, 7);
    must(finish(&a), "a");
    must(lt_sites_newest_outer(&a, 0, &step), "newest");
    assert_int_equal(step, -1);
    must(lt_sites_keep_outer(&a, 60, both), "keep");
    must(lt_sites_newest_outer(&a, 59, &step), "newest");
    assert_int_equal(step, 60);
    must(lt_sites_map_outer(&a, 60, &map, &got), "map");
    assert_memory_equal(got, both, sizeof both);
    lt_file_map_close(&map);
    must(lt_sites_newest_outer(&a, 60, &step), "newest");
    assert_int_equal(step, -1);
    must(lt_sites_forget(&a, 60), "forget");
    must(lt_sites_decided(&a, 0, &steps, &n, &without), "decided");
    assert_int_equal(n, 1);
    free(steps);
    lt_sites_close(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_the_nearest),
        cmocka_unit_test(zero_numbers_are_encoded),
        cmocka_unit_test(four_bits_by_hand),
        cmocka_unit_test(not_finite_is_refused),
        cmocka_unit_test(nesterov_by_hand),
        cmocka_unit_test(sites_that_are_present_count),
        cmocka_unit_test(files_are_never_replaced),
        cmocka_unit_test(diverged_and_damaged_sites_are_reported),
        cmocka_unit_test(damaged_member_files_are_reported),
        cmocka_unit_test(rounds_are_decided_in_order),
        cmocka_unit_test(sites_agree_about_their_run),
        cmocka_unit_test(outer_parameters_for_sites_that_join_later),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
