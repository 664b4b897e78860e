/* What Slurm's commands report about jobs. The words for states are those in squeue's manual
 * ("JOB STATE CODES", Slurm 22.05 to 24.11); the answers were recorded from squeue and sbatch
 * 22.05. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "platform/cluster/queue.h"

static void states_as_in_the_manual(void **state) {
    static const struct {
        const char *word;
        lt_queue_state means;
    } rows[] = {
        {"BOOT_FAIL", LT_QUEUE_LOST},
        {"CANCELLED", LT_QUEUE_CANCELLED},
        {"CANCELLED by 1000", LT_QUEUE_CANCELLED}, /* As sacct prints it. */
        {"COMPLETED", LT_QUEUE_DONE},
        {"COMPLETING", LT_QUEUE_BETWEEN},
        {"CONFIGURING", LT_QUEUE_WAITS},
        {"DEADLINE", LT_QUEUE_FAILED},
        {"FAILED", LT_QUEUE_FAILED},
        {"NODE_FAIL", LT_QUEUE_LOST},
        {"OUT_OF_MEMORY", LT_QUEUE_FAILED},
        {"OUT_OF_ME+", LT_QUEUE_UNKNOWN}, /* It is cut off, and could be another word. */
        {"PENDING", LT_QUEUE_WAITS},
        {"PREEMPTED", LT_QUEUE_PREEMPTED},
        {"REQUEUED", LT_QUEUE_WAITS},
        {"REQUEUE_FED", LT_QUEUE_WAITS},
        {"REQUEUE_HOLD", LT_QUEUE_WAITS},
        {"RESIZING", LT_QUEUE_RUNS},
        {"RESV_DEL_HOLD", LT_QUEUE_WAITS},
        {"RUNNING", LT_QUEUE_RUNS},
        {"SIGNALING", LT_QUEUE_BETWEEN},
        {"SPECIAL_EXIT", LT_QUEUE_WAITS},
        {"STAGE_OUT", LT_QUEUE_BETWEEN},
        {"STOPPED", LT_QUEUE_WAITS},
        {"SUSPENDED", LT_QUEUE_WAITS},
        {"TIMEOUT", LT_QUEUE_FAILED},
        {"", LT_QUEUE_UNKNOWN},
        {"RUN", LT_QUEUE_UNKNOWN},
        {"RUNNING_NOW", LT_QUEUE_UNKNOWN},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (lt_queue_state_of(rows[i].word) != rows[i].means) {
            fail_msg("%s means %d, not %d", rows[i].word, (int)lt_queue_state_of(rows[i].word),
                     (int)rows[i].means);
        }
    }
}

static void reads_answers(void **state) {
    const char *at = "slurm_load_jobs warning: 12 is late\n"
                     "8|RUNNING|ftjob-1|None\n"
                     "|RUNNING|no number|None\n"
                     "9|PENDING|a name|(launch failed|requeued held)\n"
                     "10|CANCELLED by 0|x|\n"
                     "11|PENDING\n"
                     "7|FAILED|y|NonZeroExitCode";
    lt_queue_job j;
    (void)state;
    assert_true(lt_queue_next(&j, &at));
    assert_int_equal(j.id, 8);
    assert_int_equal(j.state, LT_QUEUE_RUNS);
    assert_string_equal(j.name, "ftjob-1");
    assert_string_equal(j.reason, "");
    assert_true(lt_queue_next(&j, &at));
    assert_int_equal(j.id, 9);
    assert_string_equal(j.name, "a name");
    assert_string_equal(j.reason, "(launch failed|requeued held)");
    assert_true(lt_queue_next(&j, &at));
    assert_int_equal(j.id, 10);
    assert_string_equal(j.word, "CANCELLED by 0");
    assert_true(lt_queue_next(&j, &at)); /* Skips the line of two fields. */
    assert_int_equal(j.id, 7);
    assert_string_equal(j.reason, "NonZeroExitCode");
    assert_false(lt_queue_next(&j, &at));
}

static void reads_the_number_of_a_new_job(void **state) {
    (void)state;
    assert_int_equal(lt_queue_submitted("12\n"), 12);
    assert_int_equal(lt_queue_submitted("12;cluster\n"), 12);
    assert_int_equal(lt_queue_submitted("sbatch: warning: 3 nodes are down\n4711\n"), 4711);
    assert_int_equal(lt_queue_submitted("2 of 3 nodes\n"), 0);
    assert_int_equal(lt_queue_submitted(""), 0);
}

static void messages_name_the_command(void **state) {
    char text[64];
    (void)state;
    lt_queue_message(text, sizeof text,
                     "sbatch: error: invalid partition specified: nope\n\n"
                     "allocation failure: Invalid name\n");
    assert_string_equal(text, "invalid partition specified: nope; allocation failure: Invalid ");
    assert_false(lt_queue_may_pass_later("allocation failure: Invalid partition name specified"));
    assert_true(lt_queue_may_pass_later("Unable to contact slurm controller (connect failure)"));
}

static void refuses(const char *text, const char *says) {
    lt_queue_words w;
    if (lt_queue_words_read(&w, "--sbatch", text) != LT_ERR_ARG ||
        strstr(lt_error_message(), says) == NULL) {
        fail_msg("'%s' is not refused with '%s': %s", text, says, lt_error_message());
    }
}

static void takes_options_of_sbatch(void **state) {
    lt_queue_words w;
    (void)state;
    assert_int_equal(lt_queue_words_read(&w, "--sbatch",
                                         "  --partition=gpu\t--time=2:00:00 -Aphysics -Hk "
                                         "--wait-all-nodes=1 --ntasks-per-node=1 "),
                     LT_OK);
    assert_int_equal(w.n, 6);
    assert_string_equal(w.words[0], "--partition=gpu");
    assert_string_equal(w.words[2], "-Aphysics");
    assert_string_equal(w.time, "2:00:00");
    assert_int_equal(lt_queue_words_read(&w, "--sbatch", "-t90"), LT_OK);
    assert_string_equal(w.time, "90");
    assert_int_equal(lt_queue_words_read(&w, "--sbatch", ""), LT_OK);
    assert_int_equal(w.n, 0);
    assert_string_equal(w.time, "");
    refuses("--partition gpu", "'gpu'");
    refuses("--", "'--'");
    refuses("--array=0-3", "--array");
    refuses("--arr=0-3", "--array");
    refuses("-a0-3", "--array");
    refuses("-HWk", "--wait");
    refuses("--output=/dev/null", "--output");
    refuses("--no-requeue", "--no-requeue");
    refuses("--job-name=x", "--job-name");
}

static void takes_a_limited_number_of_words(void **state) {
    char text[4 * LT_QUEUE_MOST_WORDS + 4], longer[1200];
    lt_queue_words w;
    (void)state;
    for (size_t i = 0; i <= LT_QUEUE_MOST_WORDS; i++) {
        memcpy(text + 3 * i, "-H ", 4);
    }
    refuses(text, "32 words");
    text[3 * LT_QUEUE_MOST_WORDS] = '\0';
    assert_int_equal(lt_queue_words_read(&w, "--sbatch", text), LT_OK);
    assert_int_equal(w.n, LT_QUEUE_MOST_WORDS);
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    refuses(longer, "1023 characters");
}

static void asks_for_one_job(void **state) {
    lt_queue_account a;
    (void)state;
    lt_queue_account_words(&a, 4711);
    assert_string_equal(a.words[0], "sacct");
    assert_string_equal(a.words[5], "--jobs=4711");
    assert_null(a.words[6]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_as_in_the_manual),
        cmocka_unit_test(reads_answers),
        cmocka_unit_test(reads_the_number_of_a_new_job),
        cmocka_unit_test(messages_name_the_command),
        cmocka_unit_test(takes_options_of_sbatch),
        cmocka_unit_test(takes_a_limited_number_of_words),
        cmocka_unit_test(asks_for_one_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
