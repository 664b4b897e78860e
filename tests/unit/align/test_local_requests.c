/* Many requests to a server in the same process: each question is answered once, a bounded number
 * of them at a time; and what ends the run early. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "align/local_requests.h"
#include "base/error.h"
#include "lateen/model.h"

#define MODEL "tests/golden/sft"
enum { QUESTIONS = 100, RUNNING = 3 };

typedef struct {
    int64_t asked, in_flight, most_in_flight, answers[QUESTIONS];
    int64_t bad;   /* This question's request is refused; -1: none is. */
    int64_t fails; /* Taking this question's answer fails; */
    int64_t ended; /* while this one's is taken, a signal arrives. */
    const char *load;
} asking;

static lt_err load(void *ctx, lt_model **model, lt_tokenizer **tokenizer) {
    const asking *a = ctx;
    LT_TRY(lt_model_open(model, a->load, NULL));
    return lt_tokenizer_open(tokenizer, a->load, NULL);
}

static int64_t next(void *ctx) {
    asking *a = ctx;
    return a->asked < QUESTIONS ? a->asked++ : -1;
}

static int longest(int64_t question) {
    return 1 + (int)(question % 4);
}

/* More than the engine runs at once: the others wait. */
static int candidates(int64_t question) {
    return 1 + (int)(question % 5);
}

static char *body(void *ctx, int64_t question) {
    asking *a = ctx;
    char *text = NULL;
    a->in_flight++;
    a->most_in_flight = a->in_flight > a->most_in_flight ? a->in_flight : a->most_in_flight;
    const int n = question == a->bad
                      ? asprintf(&text, "{\"prompt\": \"Hi\", \"max_tokens\": \"many\"}")
                      : asprintf(&text, "{\"prompt\": \"Hi %lld\", \"max_tokens\": %d, \"n\": %d}",
                                 (long long)question, longest(question), candidates(question));
    return n < 0 ? NULL : text;
}

static lt_err take(void *ctx, int64_t question, const json_t *answer) {
    asking *a = ctx;
    const json_t *usage = json_object_get(answer, "usage");
    const json_int_t tokens = json_integer_value(json_object_get(usage, "completion_tokens"));
    a->in_flight--;
    a->answers[question]++;
    assert_int_equal(json_array_size(json_object_get(answer, "choices")), candidates(question));
    assert_in_range(tokens, candidates(question), candidates(question) * longest(question));
    if (question == a->ended) {
        (void)raise(SIGTERM);
    }
    return question != a->fails ? LT_OK
                                : lt_error_set(LT_ERR_IO, "answer %lld", (long long)question);
}

static void name(void *ctx, int64_t question, char *out, size_t room) {
    (void)ctx;
    (void)snprintf(out, room, "question %lld", (long long)question);
}

static lt_err run(asking *a) {
    return lt_local_requests_run(&(lt_local_requests){.model = MODEL,
                                                      .path = "/v1/completions",
                                                      .max_running = RUNNING,
                                                      .load = load,
                                                      .next = next,
                                                      .body = body,
                                                      .take = take,
                                                      .name = name,
                                                      .ctx = a});
}

static void each_question_is_answered_once(void **state) {
    asking a = {.bad = -1, .fails = -1, .ended = -1, .load = MODEL};
    (void)state;
    if (run(&a) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    for (int i = 0; i < QUESTIONS; i++) {
        assert_int_equal(a.answers[i], 1);
    }
    assert_int_equal(a.most_in_flight, RUNNING);
    /* Without a question the run ends at once. */
    a.asked = QUESTIONS;
    assert_int_equal(run(&a), LT_OK);
}

static int64_t answered(const asking *a) {
    int64_t n = 0;
    for (int i = 0; i < QUESTIONS; i++) {
        n += a->answers[i];
    }
    return n;
}

static void what_ends_a_run_early(void **state) {
    static const struct {
        int64_t bad, fails, ended;
        const char *load;
        lt_err err; /* LT_OK: any. */
        const char *says;
    } rows[] = {
        {0, -1, -1, MODEL, LT_ERR_ARG, "question 0: "},
        {9, -1, -1, MODEL, LT_ERR_ARG, "question 9: "},
        {-1, 0, -1, MODEL, LT_ERR_IO, "answer 0"},
        {-1, 9, -1, MODEL, LT_ERR_IO, "answer 9"},
        {-1, -1, 9, MODEL, LT_ERR_INTERRUPTED, "stopped before all requests were answered"},
        {-1, -1, -1, "tests/golden/none", LT_OK, "tests/golden/none"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        asking a = {.bad = rows[i].bad,
                    .fails = rows[i].fails,
                    .ended = rows[i].ended,
                    .load = rows[i].load};
        const lt_err err = run(&a);
        if (err == LT_OK || (rows[i].err != LT_OK && err != rows[i].err) ||
            strstr(lt_error_message(), rows[i].says) == NULL) {
            fail_msg("row %zu: %d: %s", i, (int)err, lt_error_message());
        }
        assert_true(answered(&a) <= a.asked);
        /* Question 9 is answered long before the last one is asked. */
        assert_true(a.asked < QUESTIONS);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_question_is_answered_once),
        cmocka_unit_test(what_ends_a_run_early),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
