/* The groups of a mesh against lists worked out by hand, and refused meshes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "lateen/comm.h"

static void parse(void **state) {
    static const struct {
        const char *text, *why;
    } bad[] = {
        {"dp=2,dp=3", "dp is given twice"},
        {"xp=2", "'xp=2' is not AXIS=SIZE"},
        {"dp", "'dp' is not AXIS=SIZE"},
        {"dp=0", "dp=0 is not a size"},
        {"dp=-1", "dp=-1 is not a size"},
        {"dp=2x", "dp=2x is not a size"},
        {"dp=2,", "ends with a comma"},
        {",dp=2", "is not AXIS=SIZE"},
        {"dp=99999", "dp=99999 is not a size"},
        {"dp= 2", "is not a size"},
        {"d=2", "'d=2' is not AXIS=SIZE"},
        {"dpp=2", "'dpp=2' is not AXIS=SIZE"},
        {"dp=99999999999999999999", "is not a size"},
    };
    lt_mesh_shape s;
    (void)state;
    assert_int_equal(lt_mesh_parse(&s, ""), LT_OK);
    assert_true(s.pp == 1 && s.dp == 1 && s.cp == 1 && s.tp == 1 && s.ep == 1);
    assert_int_equal(lt_mesh_parse(&s, "tp=4,dp=16,ep=8,pp=3,cp=2"), LT_OK);
    assert_true(s.pp == 3 && s.dp == 16 && s.cp == 2 && s.tp == 4 && s.ep == 8);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(lt_mesh_parse(&s, bad[i].text), LT_ERR_ARG);
        if (strstr(lt_error_message(), bad[i].why) == NULL) {
            fail_msg("'%s': %s", bad[i].text, lt_error_message());
        }
    }
}

static void impossible_meshes(void **state) {
    (void)state;
    assert_int_equal(lt_mesh_check(&(lt_mesh_shape){2, 2, 1, 2, 1}, 8), LT_OK);
    assert_int_equal(lt_mesh_check(&(lt_mesh_shape){2, 3, 1, 2, 1}, 8), LT_ERR_ARG);
    assert_non_null(
        strstr(lt_error_message(), "has 12 places, and there are 8 ranks; dp=2 makes 8"));
    assert_int_equal(lt_mesh_check(&(lt_mesh_shape){4, 1, 1, 4, 1}, 8), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "pp, cp and tp alone need 16"));
    assert_int_equal(lt_mesh_check(&(lt_mesh_shape){1, 2, 3, 1, 4}, 6), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "ep=4 does not divide dp * cp = 2 * 3; ep=3 does"));
    assert_int_equal(lt_mesh_check(&(lt_mesh_shape){1, 2, 1, 1, 1}, 1), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "2 places, and there is 1 rank; dp=1 makes 1"));
    assert_int_equal(lt_mesh_check(&(lt_mesh_shape){1, 1, 1, 1, 2}, 2), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "has 1 place (ep=2 divides dp * cp and adds none), "
                                               "and there are 2 ranks; dp=2 makes 2"));
}

/* The nearest divisor, the smaller of two. */
static void divisors(void **state) {
    (void)state;
    assert_int_equal(lt_mesh_divisor(12, 5), 4);
    assert_int_equal(lt_mesh_divisor(12, 11), 12);
    assert_int_equal(lt_mesh_divisor(12, 9), 6);
    assert_int_equal(lt_mesh_divisor(7, 4), 1);
    assert_int_equal(lt_mesh_divisor(7, 5), 7);
    assert_int_equal(lt_mesh_divisor(6, 100), 6);
}

/* Check this rank's place in a group of the given size. */
static lt_err expect(const lt_group *g, const char *name, int rank, int size) {
    if (strcmp(lt_group_name(g), name) != 0 || lt_group_rank(g) != rank ||
        lt_group_size(g) != size) {
        LT_FAIL(LT_ERR_STATE, "group %s: member %d of %d, not %d of %d of %s", lt_group_name(g),
                lt_group_rank(g), lt_group_size(g), rank, size, name);
    }
    return LT_OK;
}

/* Check that the ranks of a group, gathered by it, equal a list. */
static lt_err members(lt_group *g, lt_comm *c, int a, int b, int d) {
    const int32_t own = lt_comm_rank(c), want[3] = {a, b, d};
    int32_t got[16];
    LT_TRY(lt_all_gather(g, got, &own, 1, LT_I32, NULL));
    for (int i = 0; i < lt_group_size(g); i++) {
        if (i >= 3 || got[i] != want[i]) {
            LT_FAIL(LT_ERR_STATE, "group %s of rank %d: member %d is rank %d", lt_group_name(g),
                    own, i, got[i]);
        }
    }
    return LT_OK;
}

/* pp=2, dp=3, cp=1, tp=2: rank = (pp * 3 + dp) * 2 + tp; experts over the 3 of dp. */
static lt_err box_rank(lt_comm *c, void *ctx) {
    const int r = lt_comm_rank(c), tp = r % 2, dp = r / 2 % 3, pp = r / 6;
    lt_mesh m;
    (void)ctx;
    LT_TRY(lt_mesh_open(&m, c, &(lt_mesh_shape){2, 3, 1, 2, 3}, 0));
    LT_TRY(expect(m.tp, "tp", tp, 2));
    LT_TRY(expect(m.cp, "cp", 0, 1));
    LT_TRY(expect(m.dp, "dp", dp, 3));
    LT_TRY(expect(m.pp, "pp", pp, 2));
    LT_TRY(expect(m.grad, "grad", dp, 3));
    LT_TRY(expect(m.ep, "ep", dp, 3));
    LT_TRY(expect(m.edp, "edp", 0, 1));
    LT_TRY(expect(m.world, "world", r, 12));
    LT_TRY(members(m.tp, c, r - tp, r - tp + 1, -1));
    LT_TRY(members(m.dp, c, pp * 6 + tp, pp * 6 + 2 + tp, pp * 6 + 4 + tp));
    return members(m.pp, c, r % 6, r % 6 + 6, -1);
}

/* dp=2, cp=3, ep=2: the plane 0..5 is divided into neighbours {0,1} {2,3} {4,5}. */
static lt_err experts_rank(lt_comm *c, void *ctx) {
    const int r = lt_comm_rank(c);
    lt_mesh m;
    (void)ctx;
    LT_TRY(lt_mesh_open(&m, c, &(lt_mesh_shape){1, 2, 3, 1, 2}, 0));
    LT_TRY(expect(m.grad, "grad", r, 6));
    LT_TRY(expect(m.ep, "ep", r % 2, 2));
    LT_TRY(expect(m.edp, "edp", r / 2, 3));
    LT_TRY(members(m.ep, c, r / 2 * 2, r / 2 * 2 + 1, -1));
    LT_TRY(members(m.cp, c, r / 3 * 3, r / 3 * 3 + 1, r / 3 * 3 + 2));
    return members(m.edp, c, r % 2, r % 2 + 2, r % 2 + 4);
}

static void groups_of_a_mesh(void **state) {
    (void)state;
    if (lt_comm_run_threads(12, NULL, box_rank, NULL) != LT_OK ||
        lt_comm_run_threads(6, NULL, experts_rank, NULL) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

/* A mesh and the world of GPUs each have a group of the same name: rank 0 opens both before rank
 * 1 opens the first. Sums over the first group are of both ranks' first groups. */
static lt_err opened_before(lt_comm *c, void *ctx) {
    static const int both[] = {0, 1};
    const int rank = lt_comm_rank(c);
    lt_group *world, *first, *second;
    float sum[3] = {1.0f, (float)(10 + rank), (float)(100 + rank)};
    lt_comm_work last;
    (void)ctx;
    LT_TRY(lt_group_open(&world, c, "both", both, 2));
    LT_TRY(rank == 0 ? lt_group_open(&first, c, "twin", both, 2) : LT_OK);
    LT_TRY(rank == 0 ? lt_group_open(&second, c, "twin", both, 2) : LT_OK);
    LT_TRY(lt_all_reduce(world, sum, sum, 1, LT_F32, LT_REDUCE_SUM, &last));
    LT_TRY(lt_comm_wait(c, last));
    LT_TRY(rank == 1 ? lt_group_open(&first, c, "twin", both, 2) : LT_OK);
    LT_TRY(rank == 1 ? lt_group_open(&second, c, "twin", both, 2) : LT_OK);
    LT_TRY(lt_all_reduce(first, sum + 1, sum + 1, 1, LT_F32, LT_REDUCE_SUM, &last));
    LT_TRY(lt_all_reduce(second, sum + 2, sum + 2, 1, LT_F32, LT_REDUCE_SUM, &last));
    LT_TRY(lt_comm_wait(c, last));
    if (sum[1] != 21.0f || sum[2] != 201.0f) {
        LT_FAIL(LT_ERR_STATE, "sums %g and %g", (double)sum[1], (double)sum[2]);
    }
    return LT_OK;
}

static void groups_of_the_same_name(void **state) {
    const lt_comm_options o = {.deadline_s = 10};
    (void)state;
    if (lt_comm_run_threads(2, &o, opened_before, NULL) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parse),
        cmocka_unit_test(impossible_meshes),
        cmocka_unit_test(divisors),
        cmocka_unit_test(groups_of_a_mesh),
        cmocka_unit_test(groups_of_the_same_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
