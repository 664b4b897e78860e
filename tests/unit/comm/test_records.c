/* What ranks leave behind and show: the ring of their last calls as files, why a world ended
 * according to these files, the board that a launcher reads, and the environment that it sets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "comm/board.h"
#include "comm/launched.h"
#include "comm/record.h"
#include "comm/shm.h"
#include "unit/scratch_folder.h"

static const char *path_of(const char *name) {
    static char path[LT_PATH_BYTES];
    assert_int_equal(lt_path_join(path, folder, name), LT_OK);
    return path;
}

/* ---- Records ---- */

static lt_record call_of(uint64_t call) {
    return (lt_record){.call = call,
                       .seq = 2 * call,
                       .group = "dp",
                       .members = 3,
                       .peer = -1,
                       .kind = LT_CALL_ALL_GATHER,
                       .state = LT_CALL_DONE,
                       .dtype = LT_BF16,
                       .bytes = 10 * call,
                       .issued_ns = 1000999 * call,
                       .started_ns = 0,
                       .done_ns = 5000};
}

/* Of n calls the last LT_COMM_RECORDS are kept, in order. */
static void the_last_calls_are_kept(void **state) {
    static const uint64_t counts[] = {
        0, 1, LT_COMM_RECORDS - 1, LT_COMM_RECORDS, LT_COMM_RECORDS + 1, 3 * LT_COMM_RECORDS + 5};
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const uint64_t n = counts[i], kept = n < LT_COMM_RECORDS ? n : LT_COMM_RECORDS;
        lt_records r;
        char *text = NULL, *rest = NULL, *line;
        size_t bytes;
        json_t *head;
        assert_int_equal(lt_records_open(&r), LT_OK);
        for (uint64_t k = 1; k <= n; k++) {
            r.ring[k % LT_COMM_RECORDS] = call_of(k);
            r.n = k;
        }
        assert_true(n == 0 || lt_records_of(&r, n)->call == n);
        assert_true(n == 0 || lt_records_of(&r, n - kept + 1)->call == n - kept + 1);
        assert_null(lt_records_of(&r, n + 1));
        assert_true(n <= kept || lt_records_of(&r, n - kept) == NULL);
        assert_int_equal(lt_records_write(&r, path_of("new/deep"), 7, 4, 9, "it \"failed\""),
                         LT_OK);
        assert_int_equal(lt_file_read(&text, &bytes, path_of("new/deep/rank-4.jsonl"), 1 << 24),
                         LT_OK);
        line = strtok_r(text, "\n", &rest);
        head = json_loads(line, 0, NULL);
        assert_int_equal(json_integer_value(json_object_get(head, "epoch")), 7);
        assert_int_equal(json_integer_value(json_object_get(head, "rank")), 4);
        assert_int_equal(json_integer_value(json_object_get(head, "size")), 9);
        assert_string_equal(json_string_value(json_object_get(head, "reason")), "it \"failed\"");
        json_decref(head);
        for (uint64_t k = n - kept + 1; k <= n; k++) {
            line = strtok_r(NULL, "\n", &rest);
            assert_non_null(line);
            json_t *is = json_loads(line, 0, NULL);
            json_t *want = json_pack("{s:I, s:s, s:i, s:s, s:I, s:i, s:I, s:s, s:s, s:I, s:i, s:i}",
                                     "call", (json_int_t)k, "group", "dp", "members", 3, "kind",
                                     "all_gather", "seq", (json_int_t)(2 * k), "peer", -1, "bytes",
                                     (json_int_t)(10 * k), "dtype", "BF16", "state", "done",
                                     "issued_us", (json_int_t)(1000999 * k / 1000), "started_us", 0,
                                     "done_us", 5);
            if (!json_equal(is, want)) {
                fail_msg("%s", line);
            }
            json_decref(is);
            json_decref(want);
        }
        assert_null(strtok_r(NULL, "\n", &rest));
        free(text);
        lt_records_close(&r);
    }
    assert_int_equal(lt_file_remove_tree(path_of("new")), LT_OK);
}

/* ---- Blame ---- */

#define CALL(group, kind, seq, bytes, state)                                                       \
    "{\"call\": 1, \"group\": \"" group "\", \"members\": 4, \"kind\": \"" kind                    \
    "\", \"seq\": " #seq ", \"peer\": 3, \"bytes\": " #bytes ", \"state\": \"" state "\"}\n"
#define HEAD "{\"epoch\": 1, \"rank\": 0, \"size\": 4, \"reason\": \"deadline\"}\n"

static void blames(const char *const files[4], const char *want) {
    char text[4096];
    for (int r = 0; r < 4; r++) {
        char name[32];
        (void)snprintf(name, sizeof name, "blame/rank-%d.jsonl", r);
        assert_int_equal(lt_file_make_dirs(path_of("blame")), LT_OK);
        if (files[r] != NULL) {
            assert_int_equal(lt_file_write_atomic(path_of(name), files[r], strlen(files[r])),
                             LT_OK);
        }
    }
    assert_int_equal(lt_comm_blame(path_of("blame"), text, sizeof text), LT_OK);
    assert_string_equal(text, want);
    assert_int_equal(lt_file_remove_tree(path_of("blame")), LT_OK);
}

static void each_cause_is_named(void **state) {
    (void)state;
    /* Rank 1 is missing, rank 2 never calls in this group, rank 3 left no records. A finished
     * call is no cause. */
    blames((const char *const[]){HEAD CALL("tp", "barrier", 1, 0, "done")
                                     CALL("dp", "all_reduce", 5, 64, "started")
                                         CALL("dp", "all_reduce", 6, 64, "started"),
                                 HEAD CALL("dp", "all_reduce", 4, 64, "done"),
                                 HEAD CALL("tp", "barrier", 1, 0, "done"), NULL},
           "rank 3 left no record\n"
           "rank 0 waits in all_reduce 5 of group dp (4 members, 64 bytes)\n"
           "    rank 1 did not come to it\n"
           "rank 0 ended with: deadline\n");
    /* Another verb, another size. An equal call is no evidence, and neither is a send with the
     * same number. */
    blames((const char *const[]){NULL, HEAD CALL("dp", "all_reduce", 5, 64, "failed"),
                                 HEAD CALL("dp", "send", 5, 1, "done")
                                     CALL("dp", "barrier", 5, 64, "done"),
                                 HEAD CALL("dp", "all_reduce", 5, 65, "queued")},
           "rank 0 left no record\n"
           "rank 1 waits in all_reduce 5 of group dp (4 members, 64 bytes)\n"
           "    rank 2 calls barrier of 64 bytes there\n"
           "    rank 3 calls all_reduce of 65 bytes there\n"
           "rank 1 ended with: deadline\n");
    blames((const char *const[]){HEAD CALL("pp", "recv", 2, 8, "started"),
                                 HEAD CALL("pp", "send", 9, 8, "started"), HEAD, HEAD},
           "rank 0 waits in recv 2 of group pp (4 members, 8 bytes)\n"
           "    for member 3 of that group\n"
           "rank 1 waits in send 9 of group pp (4 members, 8 bytes)\n"
           "    for member 3 of that group\n"
           "rank 0 ended with: deadline\n");
}

static void wrong_records_are_refused(void **state) {
    static const struct {
        const char *name, *text, *why;
        lt_err err;
    } cases[] = {{"bad/rank-2.jsonl", "{\"size\": 2, \"reason\": \"x\"}\n",
                  "rank 2 of a world of 2", LT_ERR_FORMAT},
                 {"bad/rank-0.jsonl", "{\"size\": 0, \"reason\": \"x\"}\n",
                  "rank 0 of a world of 0", LT_ERR_FORMAT},
                 {"bad/rank-0.jsonl", "{\"size\": 1, \"reason\": \"x\"}\n\n", "rank-0.jsonl:2",
                  LT_ERR_FORMAT},
                 {"bad/rank-x.jsonl", "{\"size\": 1}\n",
                  "there is no record of a rank (rank-N.jsonl)", LT_ERR_NOT_FOUND},
                 {"bad/records-before/rank-0.jsonl", "{}", "those of an earlier start are in ",
                  LT_ERR_NOT_FOUND}};
    char text[256];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(lt_file_make_dirs(path_of("bad")), LT_OK);
        if (strchr(cases[i].name + 4, '/') != NULL) {
            assert_int_equal(lt_file_make_dirs(path_of("bad/records-before")), LT_OK);
        }
        assert_int_equal(
            lt_file_write_atomic(path_of(cases[i].name), cases[i].text, strlen(cases[i].text)),
            LT_OK);
        assert_int_equal(lt_comm_blame(path_of("bad"), text, sizeof text), cases[i].err);
        if (strstr(lt_error_message(), cases[i].why) == NULL) {
            fail_msg("%s: %s", cases[i].name, lt_error_message());
        }
        assert_int_equal(lt_file_remove_tree(path_of("bad")), LT_OK);
    }
}

/* ---- The board ---- */

static lt_board *as_rank(int fd, int rank) {
    char number[16];
    (void)snprintf(number, sizeof number, "%d", fd);
    assert_int_equal(setenv(LT_ENV_BOARD, number, 1), 0);
    (void)snprintf(number, sizeof number, "%d", rank);
    assert_int_equal(setenv(LT_ENV_RANK, number, 1), 0);
    return lt_board_of_rank();
}

static void ranks_show_what_they_do(void **state) {
    lt_board *l = NULL, *b;
    lt_board_sight s;
    int fd = -1;
    (void)state;
    assert_int_equal(lt_board_make(&l, &fd, 3), LT_OK);
    s = lt_board_seen(l, 2);
    assert_true(s.phase == LT_PHASE_NONE && s.step == -1 && s.loaded_step == -1);
    assert_true(s.suspect_step == -1 && s.stop == 0 && !s.left && s.slow == 0 && s.step_ns == 0);
    assert_true(lt_board_last_ns(l, 2) == 0);
    assert_null(as_rank(fd, 3)); /* Only ranks 0 to 2 exist. */
    assert_null(as_rank(fd, -1));
    assert_null(as_rank(-1, 0));
    b = as_rank(fd, 2);
    assert_non_null(b);
    const uint64_t before = lt_clock_ns();
    lt_board_phase(b, LT_PHASE_STARTED);
    lt_board_phase(b, LT_PHASE_CONNECTED);
    lt_board_step(b, 40); /* The step of a loaded state does not count as a first step. */
    assert_int_equal(lt_board_seen(l, 2).phase, LT_PHASE_CONNECTED);
    lt_board_phase(b, LT_PHASE_LOADED);
    assert_int_equal(lt_board_seen(l, 2).loaded_step, 40);
    lt_board_step(b, 41);
    s = lt_board_seen(l, 2);
    assert_int_equal(s.phase, LT_PHASE_STEPPED);
    assert_true(s.step == 41 && s.loaded_step == 40 && s.at_ns[LT_PHASE_NONE] == 0);
    for (int i = LT_PHASE_STARTED; i < LT_PHASES; i++) {
        assert_true(s.at_ns[i] >= before && s.at_ns[i] >= s.at_ns[i - 1]);
    }
    assert_true(s.step_ns >= s.at_ns[LT_PHASE_LOADED] && s.step_ns <= s.at_ns[LT_PHASE_STEPPED]);
    assert_true(lt_board_last_ns(l, 2) == s.at_ns[LT_PHASE_STEPPED]);
    lt_board_step(b, 42);
    assert_true(lt_board_last_ns(l, 2) == lt_board_seen(l, 2).step_ns);
    lt_board_stop(b, 15);
    lt_board_suspect(b, 39);
    lt_board_slow(b, 0.25);
    s = lt_board_seen(l, 2);
    assert_true(s.stop == 15 && s.suspect_step == 39 && s.slow == 0.25 && !s.left);
    s = lt_board_seen(l, 1); /* The places of other ranks are not changed. */
    assert_true(s.phase == LT_PHASE_NONE && s.step == -1 && s.stop == 0 && s.slow == 0);
    /* A rank leaves only if its launcher keeps ranks. */
    assert_false(lt_board_keeps(b));
    assert_false(lt_board_leave(b));
    assert_false(lt_board_seen(l, 2).left);
    lt_board_keep_ranks(l);
    assert_true(lt_board_keeps(b) && lt_board_leave(b));
    assert_true(lt_board_seen(l, 2).left);
    lt_board_begin(l, 9);
    assert_int_equal(lt_board_epoch(b), 9);
    lt_board_sizes(b, 4, 2, 12);
    const lt_board_room room = lt_board_sizes_of(l);
    assert_true(room.dp == 4 && room.least == 2 && room.rows == 12);
    lt_board_close(b);
    lt_board_close(l);
    (void)close(fd);
}

/* The first folder that is named stays; so does the time of rank 0's last sign of life. */
static void what_stays_when_ranks_start_again(void **state) {
    lt_board *l = NULL, *b;
    lt_board_sight s = {.phase = LT_PHASE_LOADED, .step = 3, .loaded_step = 3, .suspect_step = 2};
    char real[LT_PATH_BYTES];
    uint64_t last_ns;
    int fd = -1;
    (void)state;
    assert_int_equal(lt_board_make(&l, &fd, 2), LT_OK);
    b = as_rank(fd, 0);
    assert_non_null(b);
    assert_string_equal(lt_board_folder_of(l), "");
    assert_true(lt_board_before_ns(b) == 0 && lt_board_before_ns(NULL) == 0);
    lt_board_folder(b, folder);
    lt_board_folder(b, "/other");
    assert_non_null(realpath(folder, real));
    assert_string_equal(lt_board_folder_of(l), real);
    lt_board_step(b, 7);
    last_ns = lt_board_last_ns(l, 0);
    assert_true(last_ns > 0);
    lt_board_clear(l);
    assert_true(lt_board_seen(l, 0).step == -1 && lt_board_seen(l, 0).step_ns == 0);
    assert_true(lt_board_before_ns(b) == last_ns);
    lt_board_clear(l); /* An attempt without a sign of life does not change it. */
    assert_true(lt_board_before_ns(b) == last_ns);
    assert_string_equal(lt_board_folder_of(l), real);
    s.at_ns[LT_PHASE_LOADED] = 5;
    s.left = true;
    lt_board_show(l, 1, &s, "");
    const lt_board_sight seen = lt_board_seen(l, 1);
    assert_true(seen.phase == LT_PHASE_LOADED && seen.step == 3 && seen.loaded_step == 3);
    assert_true(seen.suspect_step == 2 && seen.left && seen.at_ns[LT_PHASE_LOADED] == 5);
    assert_true(lt_board_last_ns(l, 1) == 5);
    lt_board_close(b);
    lt_board_close(l);
    (void)close(fd);
    /* Without a board, nothing happens. */
    lt_board_phase(NULL, LT_PHASE_LOADED);
    lt_board_step(NULL, 1);
    lt_board_stop(NULL, 1);
    lt_board_suspect(NULL, 1);
    lt_board_slow(NULL, 1);
    lt_board_folder(NULL, "x");
    lt_board_sizes(NULL, 1, 1, 1);
    assert_false(lt_board_keeps(NULL));
    assert_false(lt_board_leave(NULL));
}

/* ---- The environment of a rank ---- */

static void set(const char *name, const char *value) {
    assert_int_equal(value != NULL ? setenv(name, value, 1) : unsetenv(name), 0);
}

static void the_environment_is_read(void **state) {
    lt_launched l;
    (void)state;
    set(LT_ENV_SEGMENT, NULL);
    assert_false(lt_comm_under_launch() || lt_launched_apart());
    set(LT_ENV_RANKS, "250");
    set(LT_ENV_RANK, "249");
    set(LT_ENV_SEGMENT, "12");
    set(LT_ENV_EPOCH, "18446744073709551615");
    set(LT_ENV_STORE, "127.0.0.1:5");
    set(LT_ENV_TOKEN, "t");
    assert_true(lt_comm_under_launch() && !lt_launched_apart());
    assert_int_equal(lt_launched_read(&l), LT_OK);
    assert_true(l.n == 250 && l.rank == 249 && l.segment == 12 && l.epoch == UINT64_MAX);
    assert_string_equal(l.address, "127.0.0.1:5");
    assert_true(lt_launched_open_s(&l) == 62.5); /* 60 s, and one more for each hundred ranks. */
    set(LT_ENV_SEGMENT, LT_SEGMENT_TCP);
    assert_true(lt_launched_apart());
    assert_int_equal(lt_launched_read(&l), LT_OK);
    assert_int_equal(l.segment, -1);
    set(LT_ENV_TOKEN, NULL);
    assert_int_equal(lt_launched_read(&l), LT_ERR_ARG);
    set(LT_ENV_TOKEN, "t");
    set(LT_ENV_RANK, "250");
    assert_int_equal(lt_launched_read(&l), LT_ERR_ARG);
    /* A limit for silent ranks applies only if there is a heartbeat. */
    set(LT_ENV_SILENT, "4.5");
    set(LT_ENV_BEAT, NULL);
    assert_true(lt_launched_silent_s() == 0);
    set(LT_ENV_BEAT, "0");
    assert_true(lt_launched_silent_s() == 0);
    set(LT_ENV_BEAT, "0.5");
    assert_true(lt_launched_silent_s() == 4.5);
    set(LT_ENV_SILENT, "-1");
    assert_true(lt_launched_silent_s() == 0);
}

/* Which of how many ranks this process is, by launch, Open MPI and Slurm in turn. */
static void a_rank_knows_its_number(void **state) {
    int rank = -1, n = -1;
    (void)state;
    static const char *const all[] = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                      "SLURM_PROCID", "SLURM_NTASKS", "PMIX_RANK"};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        set(all[k], NULL);
    }
    set(LT_ENV_SEGMENT, NULL);
    set(LT_ENV_RANKS, "9");
    set(LT_ENV_RANK, "8");
    set("SLURM_PROCID", "3");
    assert_int_equal(lt_comm_started_as(&rank, &n), LT_OK);
    assert_true(rank == 0 && n == 1); /* A batch script: nothing started ranks. */
    set("PMIX_RANK", "3");
    assert_int_equal(lt_comm_started_as(&rank, &n), LT_ERR_UNSUPPORTED);
    set("SLURM_NTASKS", "7");
    assert_int_equal(lt_comm_started_as(&rank, &n), LT_OK);
    assert_true(rank == 3 && n == 7);
    set("OMPI_COMM_WORLD_RANK", "1");
    set("OMPI_COMM_WORLD_SIZE", "5");
    assert_int_equal(lt_comm_started_as(&rank, &n), LT_OK);
    assert_true(rank == 1 && n == 5);
    set(LT_ENV_SEGMENT, "12");
    assert_int_equal(lt_comm_started_as(&rank, &n), LT_OK);
    assert_true(rank == 8 && n == 9);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_last_calls_are_kept),
                                       cmocka_unit_test(each_cause_is_named),
                                       cmocka_unit_test(wrong_records_are_refused),
                                       cmocka_unit_test(ranks_show_what_they_do),
                                       cmocka_unit_test(what_stays_when_ranks_start_again),
                                       cmocka_unit_test(the_environment_is_read),
                                       cmocka_unit_test(a_rank_knows_its_number)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
