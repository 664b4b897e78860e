/* Curricula against closed forms: Platanios et al.'s competence, the weights of Kimi k1.5 and of
 * Foster et al., and the probabilities of a weighted sample without repetition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "align/curriculum.h"
#include "base/error.h"

#define N 10

static void close_to(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) {
        fail_msg("got %.12g, want %.12g", got, want);
    }
}

/* Problems with these levels. */
typedef struct {
    lt_problem items[N];
    lt_problems all;
} made;

static void make(made *m, const double *levels) {
    *m = (made){.all = {.items = m->items, .n = N, .hash = 77}};
    for (int i = 0; i < N; i++) {
        m->items[i] = (lt_problem){.line = json_pack("{s:f}", "level", levels[i]),
                                   .line_number = (uint64_t)i + 1,
                                   .path = "p.jsonl"};
        assert_non_null(m->items[i].line);
    }
}

static void forget(made *m) {
    for (int i = 0; i < N; i++) {
        json_decref(m->items[i].line);
    }
}

static const double levels[N] = {5, 4, 4, 4, 3, 2, 2, 1, 1, 1};

static lt_curriculum open_with(const made *m, const char *member, lt_prefer prefer) {
    const lt_curriculum_options o = {
        .member = member, .start = 0.2, .steps = 100, .prefer = prefer, .pass = 1.0, .seed = 5};
    lt_curriculum c;
    assert_int_equal(lt_curriculum_open(&c, &o, &m->all), LT_OK);
    return c;
}

/* Equation 7 of the paper, by hand: c0 = 0.2, T = 100. */
static void competence_is_that_of_the_paper(void **state) {
    made m;
    lt_curriculum c;
    (void)state;
    make(&m, levels);
    c = open_with(&m, "level", LT_PREFER_NONE);
    close_to(lt_curriculum_share(&c, 0), 0.2, 1e-15);
    close_to(lt_curriculum_share(&c, 25), sqrt(0.28), 1e-15); /* 0.25 * 0.96 + 0.04. */
    close_to(lt_curriculum_share(&c, 50), sqrt(0.52), 1e-15);
    for (int64_t step = 100; step < 1000; step += 50) {
        assert_true(lt_curriculum_share(&c, step) == 1.0);
    }
    assert_int_equal(lt_curriculum_n_open(&c, 0), 3); /* Level 1. */
    /* 0.2966: the 0.3 below level 2 are easier. */
    assert_int_equal(lt_curriculum_n_open(&c, 5), 3);
    assert_int_equal(lt_curriculum_n_open(&c, 6), 5); /* 0.3124. */
    /* 0.529: the half below level 3 is easier. */
    assert_int_equal(lt_curriculum_n_open(&c, 25), 6);
    assert_int_equal(lt_curriculum_n_open(&c, 50), 9); /* 0.721. */
    /* 0.899: the 0.9 below level 5 are easier. */
    assert_int_equal(lt_curriculum_n_open(&c, 80), 9);
    assert_int_equal(lt_curriculum_n_open(&c, 81), 10); /* 0.9042. */
    lt_curriculum_close(&c);
    c = open_with(&m, "-level", LT_PREFER_NONE);
    /* 5, and every problem with 4, which only 0.1 are easier than. */
    assert_int_equal(lt_curriculum_n_open(&c, 0), 4);
    lt_curriculum_close(&c);
    c = open_with(&m, "", LT_PREFER_FAILED);
    assert_int_equal(lt_curriculum_n_open(&c, 0), N);
    lt_curriculum_close(&c);
    forget(&m);
}

/* Beta(1, 1) after 6 of 8, then 0 of 8 on halved counts: 7/10, then 4/14. */
static void weights_are_the_closed_forms(void **state) {
    made m;
    (void)state;
    make(&m, levels);
    for (lt_prefer prefer = LT_PREFER_NONE; prefer <= LT_PREFER_LEARNABLE; prefer++) {
        static const double want[][3] = {{1, 1, 1}, {0.5, 0.3, 10. / 14}, {0.25, 0.21, 40. / 196}};
        lt_curriculum c = open_with(&m, "", prefer);
        close_to(lt_curriculum_weight(&c, 3), want[prefer][0], 1e-15);
        lt_curriculum_learn(&c, 3, 6, 8);
        close_to(lt_curriculum_rate(&c, 3), 0.7, 1e-15);
        close_to(lt_curriculum_weight(&c, 3), want[prefer][1], 1e-15);
        lt_curriculum_learn(&c, 3, 0, 8);
        close_to(lt_curriculum_rate(&c, 3), 4. / 14, 1e-15);
        close_to(lt_curriculum_weight(&c, 3), want[prefer][2], 1e-15);
        assert_true(lt_curriculum_rate(&c, 2) == 0.5);
        for (int i = 0; i < 1000; i++) {
            lt_curriculum_learn(&c, 4, 512, 512);
        }
        assert_true(lt_curriculum_weight(&c, 4) > 0.0);
        lt_curriculum_close(&c);
    }
    forget(&m);
}

/* Two questions without repetition: the first is i with p(i) = w(i) / W, the second j with the
 * sum over i of p(i) w(j) / (W - w(i)). Four standard deviations of 20,000 draws. */
static void questions_follow_their_weights(void **state) {
    enum { DRAWS = 20000 };
    double w[N], all = 0.0;
    int seen[2][N] = {{0}};
    made m;
    lt_curriculum c;
    (void)state;
    make(&m, levels);
    c = open_with(&m, "", LT_PREFER_FAILED);
    for (int i = 0; i < N; i++) {
        lt_curriculum_learn(&c, i, i, N);
        w[i] = 1.0 - (i + 1.0) / (N + 2.0);
        all += w[i];
    }
    for (int64_t d = 0; d < DRAWS; d++) {
        int64_t two[2];
        lt_curriculum_begin(&c);
        assert_int_equal(lt_curriculum_pick(&c, 0, 2 * d, 2, two), LT_OK);
        assert_true(two[0] != two[1]);
        seen[0][two[0]]++;
        seen[1][two[1]]++;
    }
    for (int j = 0; j < N; j++) {
        double second = 0.0;
        for (int i = 0; i < N; i++) {
            second += i != j ? w[i] / all * w[j] / (all - w[i]) : 0.0;
        }
        const double want[2] = {w[j] / all, second};
        for (int k = 0; k < 2; k++) {
            close_to((double)seen[k][j] / DRAWS, want[k],
                     4.0 * sqrt(want[k] * (1 - want[k]) / DRAWS));
        }
    }
    lt_curriculum_close(&c);
    forget(&m);
}

/* A draw asks no problem twice before it has asked all that are open; rounds count as one
 * draw. */
static void no_question_is_asked_twice(void **state) {
    int64_t asked[7];
    int times[N] = {0};
    made m;
    lt_curriculum c;
    (void)state;
    make(&m, levels);
    c = open_with(&m, "level", LT_PREFER_NONE);
    lt_curriculum_begin(&c);
    assert_int_equal(lt_curriculum_pick(&c, 6, 0, 3, asked), LT_OK); /* Five problems are open. */
    assert_int_equal(lt_curriculum_pick(&c, 6, 3, 4, asked + 3), LT_OK);
    for (int i = 0; i < 7; i++) {
        times[asked[i]]++;
        assert_true(levels[asked[i]] <= 2);
        assert_true(i >= 5 || times[asked[i]] == 1);
    }
    for (int i = 5; i < N; i++) {
        assert_true(times[i] == 1 || times[i] == 2);
    }
    lt_curriculum_close(&c);
    forget(&m);
}

/* What print writes, seek reads, to the last bit; counts of other problems are not restored. */
static void the_state_is_restored(void **state) {
    static const struct {
        int problem, passed, answers;
        const char *says;
    } wrong[] = {{N, 1, 2, "problem 10 of 10, 1 of 2 answers"},
                 {-1, 1, 2, "problem -1 of 10"},
                 {3, 5, 2, "5 of 2 answers"},
                 {3, -1, 2, "-1 of 2 answers"}};
    made m;
    lt_curriculum a, b;
    json_t *kept, *bad;
    int64_t of_a[6], of_b[6];
    (void)state;
    make(&m, levels);
    a = open_with(&m, "", LT_PREFER_LEARNABLE);
    b = open_with(&m, "", LT_PREFER_LEARNABLE);
    for (int i = 0; i < 40; i++) {
        lt_curriculum_learn(&a, i % 7, i % 5, 5);
    }
    kept = lt_curriculum_print(&a);
    assert_non_null(kept);
    assert_int_equal(lt_curriculum_seek(&b, kept), LT_OK);
    assert_memory_equal(a.counts, b.counts, N * sizeof *a.counts);
    assert_int_equal(lt_curriculum_pick(&a, 0, 40, 6, of_a), LT_OK);
    assert_int_equal(lt_curriculum_pick(&b, 0, 40, 6, of_b), LT_OK);
    assert_memory_equal(of_a, of_b, sizeof of_a);
    b.problems_hash++;
    assert_int_equal(lt_curriculum_seek(&b, kept), LT_OK);
    assert_true(lt_curriculum_rate(&b, 0) == 0.5);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        bad = json_pack("{s:O, s:[[i, i, i]]}", "problems", json_object_get(kept, "problems"),
                        "counts", wrong[i].problem, wrong[i].passed, wrong[i].answers);
        assert_int_equal(lt_curriculum_seek(&a, bad), LT_ERR_FORMAT);
        assert_non_null(strstr(lt_error_message(), wrong[i].says));
        json_decref(bad);
    }
    json_decref(kept);
    lt_curriculum_close(&a);
    lt_curriculum_close(&b);
    forget(&m);
}

static void problems_without_the_member(void **state) {
    const lt_curriculum_options o = {.member = "level", .start = 0.5, .steps = 1};
    lt_curriculum c;
    made m;
    (void)state;
    make(&m, levels);
    json_object_set_new(m.items[4].line, "level", json_string("hard"));
    assert_int_equal(lt_curriculum_open(&c, &o, &m.all), LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), "p.jsonl:5: there is no number in \"level\""));
    lt_curriculum_close(&c);
    json_object_del(m.items[2].line, "level");
    assert_int_equal(lt_curriculum_open(&c, &o, &m.all), LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), "p.jsonl:3: no \"level\""));
    lt_curriculum_close(&c);
    forget(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(competence_is_that_of_the_paper),
        cmocka_unit_test(weights_are_the_closed_forms),
        cmocka_unit_test(questions_follow_their_weights),
        cmocka_unit_test(no_question_is_asked_twice),
        cmocka_unit_test(the_state_is_restored),
        cmocka_unit_test(problems_without_the_member),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
