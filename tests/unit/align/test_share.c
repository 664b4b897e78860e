/* Answers that three ranks draw in parts: which part each has, what all have afterwards, and what
 * the others learn about a rank that fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "align/share.h"
#include "base/error.h"

enum { RANKS = 3, N = 7, PARTS = 2 };

/* Answer i has i tokens: 100 i + k, with log-probability -i - k / 8. */
static void draw(lt_shared_answers *s, int32_t *ids, float *logp) {
    for (int64_t i = s->first; i < s->end; i++) {
        for (int64_t k = 0; k < i; k++) {
            ids[i * N + k] = (int32_t)(100 * i + k);
            logp[i * N + k] = (float)-i - (float)k / 8;
        }
        s->answers[i] = (lt_answer){ids + i * N, logp + i * N, i, i % 2 == 1};
        s->rewards[i] = (double)i + 0.1;
        for (int64_t k = 0; k < PARTS; k++) {
            s->parts[i * PARTS + k] = (double)-i - 0.3 * (double)k;
        }
    }
}

/* Ranks are threads, so they fail by their result. */
static lt_err expect(bool holds, const char *what) {
    return holds ? LT_OK : lt_error_set(LT_ERR_STATE, "%s", what);
}

static lt_err compare(const lt_shared_answers *s) {
    for (int64_t i = 0; i < N; i++) {
        const lt_answer *a = &s->answers[i];
        LT_TRY(expect(a->n == i && a->ended == (i % 2 == 1), "length and end"));
        LT_TRY(expect(s->rewards[i] == (double)i + 0.1, "reward"));
        for (int64_t k = 0; k < i; k++) {
            LT_TRY(expect(a->ids[k] == 100 * i + k, "token"));
            LT_TRY(expect(a->logp[k] == (float)-i - (float)k / 8, "log-probability"));
        }
        for (int64_t k = 0; k < PARTS; k++) {
            LT_TRY(expect(s->parts[i * PARTS + k] == (double)-i - 0.3 * (double)k, "part"));
        }
    }
    return LT_OK;
}

typedef struct {
    int fails; /* The rank that fails; -1: none. */
    bool judged;
} world;

static lt_err rank_main(lt_comm *c, void *ctx) {
    static const int64_t firsts[RANKS + 1] = {0, 2, 4, 7}; /* The division that share.h draws. */
    const world *w = ctx;
    const int members[RANKS] = {0, 1, 2}, rank = lt_comm_rank(c);
    lt_answer answers[N] = {{0}};
    double rewards[N] = {0}, parts[N * PARTS] = {0};
    int32_t ids[N * N] = {0};
    float logp[N * N] = {0};
    lt_shared_answers s = {
        .answers = answers, .n = N, .rewards = rewards, .parts = parts, .n_parts = PARTS};
    lt_group *g;
    LT_TRY(lt_group_open(&g, c, "all", members, RANKS));
    lt_share_part(g, N, &s.first, &s.end);
    LT_TRY(expect(s.first == firsts[rank] && s.end == firsts[rank + 1], "part of a rank"));
    draw(&s, ids, logp);
    if (!w->judged) {
        s.rewards = s.parts = NULL;
    }
    lt_err err = lt_share_answers(
        g, &s, rank == w->fails ? lt_error_set(LT_ERR_FORMAT, "its own failure") : LT_OK);
    if (w->fails >= 0) {
        err = expect(err == (rank == w->fails ? LT_ERR_FORMAT : LT_ERR_REMOTE) &&
                         strstr(lt_error_message(), rank == w->fails
                                                        ? "its own failure"
                                                        : "another rank could not draw") != NULL,
                     "the failure");
    } else if (err == LT_OK && w->judged) {
        err = compare(&s);
    } else if (err == LT_OK) {
        err = expect(answers[6].n == 6 && answers[6].ids[5] == 605 &&
                         (rewards[0] == 0.1) == (rank == 0),
                     "answers alone");
    }
    free(s.ids);
    free(s.logp);
    return err;
}

static void all_ranks_get_all_answers(void **state) {
    static const world worlds[] = {{-1, true}, {-1, false}, {0, true}, {1, true}, {2, true}};
    (void)state;
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        world w = worlds[i];
        if (lt_comm_run_threads(RANKS, NULL, rank_main, &w) != LT_OK) {
            fail_msg("world %zu: %s", i, lt_error_message());
        }
    }
}

static void one_rank_has_all(void **state) {
    lt_shared_answers s = {.n = N};
    int32_t word = 5;
    (void)state;
    lt_share_part(NULL, N, &s.first, &s.end);
    assert_true(s.first == 0 && s.end == N);
    assert_int_equal(lt_share_answers(NULL, &s, LT_OK), LT_OK);
    assert_int_equal(lt_share_answers(NULL, &s, LT_ERR_IO), LT_ERR_IO);
    assert_null(s.ids);
    assert_int_equal(lt_share_words(NULL, &word, 1), LT_OK);
    assert_int_equal(word, 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_ranks_get_all_answers),
                                       cmocka_unit_test(one_rank_has_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
