/* Files become a shard: the bytes are the same for any number of threads and of interruptions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <zstd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "data/tokenize.h"
#include "data/tokenize_journal.h"
#include "lateen/data.h"

static char folder[] = "/tmp/lateen-tokenize-XXXXXX";
static char inputs[2][LT_PATH_BYTES];
static const char *const input_list[] = {inputs[0], inputs[1]};

/* One token per byte. The bytes "!!" cannot be encoded. */
static lt_err encode_bytes(void *ctx, int worker, const char *text, size_t bytes,
                           lt_id_buffer *out) {
    (void)ctx;
    (void)worker;
    LT_TRY(lt_id_buffer_reserve(out, out->n + bytes));
    for (size_t i = 0; i < bytes; i++) {
        if (i > 0 && text[i] == '!' && text[i - 1] == '!') {
            LT_FAIL(LT_ERR_FORMAT, "byte %zu cannot be encoded", i);
        }
        out->ids[out->n++] = (unsigned char)text[i];
    }
    return LT_OK;
}

static const char *at(const char *file) {
    static char path[4][LT_PATH_BYTES];
    static int turn;
    turn = (turn + 1) % 4;
    assert_int_equal(lt_path_join(path[turn], folder, file), LT_OK);
    return path[turn];
}

static int set_up(void **state) {
    char *text = malloc(16 << 20), *packed;
    size_t used = 0;
    (void)state;
    assert_non_null(text);
    assert_non_null(mkdtemp(folder));
    strcpy(inputs[0], at("a.jsonl"));
    strcpy(inputs[1], at("b.jsonl.zst"));
    for (int i = 0; i < 4000; i++) {
        const size_t len = i % 901 == 900 ? 1500000 : lt_rng_mix((uint64_t)i) % 3000;
        used += (size_t)sprintf(text + used, "{\"id\": %d, \"prompt\": \"q%.*s\", \"text\": \"", i,
                                i % 5, "????");
        memset(text + used, 'a' + i % 26, i % 7 == 0 ? 0 : len);
        used += i % 7 == 0 ? 0 : len;
        used += (size_t)sprintf(text + used, "\"}\n");
    }
    assert_int_equal(lt_file_write_atomic(inputs[0], text, used), LT_OK);
    packed = malloc(ZSTD_compressBound(used));
    assert_int_equal(
        lt_file_write_atomic(inputs[1], packed,
                             ZSTD_compress(packed, ZSTD_compressBound(used), text, used, 1)),
        LT_OK);
    free(text);
    free(packed);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    return lt_file_remove_tree(folder) != LT_OK;
}

static lt_tokenize_options options(const char *prefix, int n_threads) {
    return (lt_tokenize_options){.inputs = input_list,
                                 .n_inputs = 2,
                                 .out_prefix = prefix,
                                 .vocab_size = 257,
                                 .bos_id = -1,
                                 .eod_id = 256,
                                 .tokenizer = "bytes",
                                 .n_threads = n_threads,
                                 .encode = encode_bytes,
                                 .commit_every_s = 1e-9};
}

static void assert_same_files(const char *one, const char *two) {
    static const char *const suffixes[] = {".bin", ".idx", ".json", ".mask"};
    for (size_t i = 0; i < 4; i++) {
        char a[LT_PATH_BYTES + 8], b[LT_PATH_BYTES + 8], *text_a, *text_b;
        size_t bytes_a, bytes_b;
        snprintf(a, sizeof a, "%s%s", one, suffixes[i]);
        snprintf(b, sizeof b, "%s%s", two, suffixes[i]);
        assert_int_equal(lt_file_exists(a), lt_file_exists(b));
        if (!lt_file_exists(a)) {
            continue; /* No mask. */
        }
        assert_int_equal(lt_file_read(&text_a, &bytes_a, a, (size_t)1 << 30), LT_OK);
        assert_int_equal(lt_file_read(&text_b, &bytes_b, b, (size_t)1 << 30), LT_OK);
        assert_int_equal(bytes_a, bytes_b);
        assert_memory_equal(text_a, text_b, bytes_a);
        free(text_a);
        free(text_b);
    }
}

static void threads_do_not_matter(void **state) {
    lt_tokenize_options o = options(at("one"), 1);
    lt_tokenize_stats stats, again;
    lt_shard *s = NULL;
    uint64_t first, n;
    (void)state;
    assert_int_equal(lt_tokenize_files(&o, &stats), LT_OK);
    assert_int_equal(stats.empty, 2 * 572);
    assert_int_equal(stats.documents, 2 * (4000 - 572));
    assert_int_equal(stats.tokens, stats.text_bytes + stats.documents);
    assert_int_equal(stats.file_bytes, stats.file_bytes_total);
    assert_int_equal(lt_shard_open(&s, at("one"), -1), LT_OK);
    assert_int_equal(lt_shard_get_info(s).n_documents, stats.documents);
    /* Record 900; 129 records before it are empty. */
    lt_shard_document(s, 899 - 129 + 1, &first, &n);
    assert_int_equal(n, 1500001);
    lt_shard_close(s);
    o = options(at("five"), 5);
    assert_int_equal(lt_tokenize_files(&o, &again), LT_OK);
    assert_same_files(at("one"), at("five"));
    assert_int_equal(lt_tokenize_files(&o, &again), LT_OK);
    assert_true(again.was_complete);
    assert_int_equal(again.tokens, stats.tokens);
    o.eod_id = -1;
    assert_int_equal(lt_tokenize_files(&o, &again), LT_ERR_STATE);
    o.overwrite = true;
    assert_int_equal(lt_tokenize_files(&o, &again), LT_OK);
    assert_int_equal(again.tokens, again.text_bytes);
    assert_false(lt_file_exists(at("five.journal")));
}

/* Exactly which tokens are labels, and the same mask however often the run is interrupted. */
static void prompts_are_masked(void **state) {
    static const char text[] = "{\"q\": \"ab\", \"a\": \"cde\"}\n{\"a\": \"\", \"q\": \"f\"}\n"
                               "{\"q\": \"\", \"a\": \"\"}\n{\"a\": \"gh\", \"q\": \"\"}\n";
    static const unsigned char wanted[] = {0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 0, 1, 1, 1};
    char prefix[LT_PATH_BYTES] = "", jsonl[LT_PATH_BYTES], txt[LT_PATH_BYTES];
    const char *const file = jsonl, *const plain = txt;
    lt_tokenize_options o = options(prefix, 2);
    lt_tokenize_stats stats;
    lt_shard *s = NULL;
    char *mask = NULL;
    size_t bytes;
    (void)state;
    strcpy(prefix, at("pairs"));
    strcpy(jsonl, at("pairs.jsonl"));
    strcpy(txt, at("pairs.txt"));
    assert_int_equal(lt_file_write_atomic(file, text, strlen(text)), LT_OK);
    o.inputs = &file;
    o.n_inputs = 1;
    o.bos_id = 0;
    o.text.field = "a";
    o.prompt_field = "q";
    assert_int_equal(lt_tokenize_files(&o, &stats), LT_OK);
    assert_int_equal(stats.documents, 3);
    assert_int_equal(stats.empty, 1);
    assert_int_equal(stats.tokens, sizeof wanted);
    assert_int_equal(stats.labels, 8);
    assert_int_equal(lt_file_read(&mask, &bytes, at("pairs.mask"), 100), LT_OK);
    assert_int_equal(bytes, sizeof wanted);
    assert_memory_equal(mask, wanted, sizeof wanted);
    free(mask);
    assert_int_equal(lt_shard_open(&s, at("pairs"), -1), LT_OK);
    assert_true(lt_shard_get_info(s).masked);
    lt_shard_close(s);
    assert_int_equal(lt_tokenize_files(&o, &stats), LT_OK);
    assert_true(stats.was_complete && stats.labels == 8);
    /* Without prompts it is another shard, and no mask of the old one is left. */
    o.prompt_field = NULL;
    assert_int_equal(lt_tokenize_files(&o, &stats), LT_ERR_STATE);
    o.overwrite = true;
    assert_int_equal(lt_tokenize_files(&o, &stats), LT_OK);
    assert_false(lt_file_exists(at("pairs.mask")));
    o.prompt_field = "nowhere";
    assert_int_equal(lt_tokenize_files(&o, &stats), LT_ERR_NOT_FOUND);
    assert_non_null(strstr(lt_error_message(), "pairs.jsonl:1: no member 'nowhere'"));
    assert_int_equal(lt_file_write_atomic(plain, text, strlen(text)), LT_OK);
    o.inputs = &plain;
    assert_int_equal(lt_tokenize_files(&o, &stats), LT_ERR_ARG);
}

static volatile sig_atomic_t stop_now;

static void stop_at_once(void *ctx, const lt_tokenize_stats *stats) {
    (void)ctx;
    (void)stats;
    stop_now = 1;
}

/* Stopped after every single job, and resumed each time. */
static void a_stopped_run_resumes(void **state) {
    lt_tokenize_options o = options(at("stopped"), 2);
    lt_tokenize_stats stats;
    lt_err err;
    int runs = 0;
    (void)state;
    o.prompt_field = "prompt";
    o.out_prefix = at("asked");
    assert_int_equal(lt_tokenize_files(&o, &stats), LT_OK);
    o.out_prefix = at("stopped");
    o.progress = stop_at_once;
    o.stop = &stop_now;
    do {
        stop_now = 0;
        err = lt_tokenize_files(&o, &stats);
        runs++;
    } while (err == LT_ERR_INTERRUPTED && runs < 1000);
    assert_int_equal(err, LT_OK);
    assert_true(runs > 5);
    assert_same_files(at("asked"), at("stopped"));
    assert_true(stats.labels > 0 && stats.labels < stats.tokens);
    o.overwrite = true; /* Another command does not touch an unfinished one. */
    stop_now = 0;
    assert_int_equal(lt_tokenize_files(&o, &stats), LT_ERR_INTERRUPTED);
    o.overwrite = false;
    o.n_inputs = 1;
    assert_int_equal(lt_tokenize_files(&o, &stats), LT_ERR_STATE);
}

/* A child that tokenises; killed after this many seconds, unless it is done before (0: never).
 * True: it was done. */
static bool run_child(const lt_tokenize_options *o, double kill_after_s) {
    int status = -1;
    const pid_t child = fork();
    if (child == 0) {
        lt_tokenize_stats stats;
        _exit(lt_tokenize_files(o, &stats) == LT_OK ? 0 : 1);
    }
    assert_true(child > 0);
    if (kill_after_s > 0) {
        usleep((useconds_t)(kill_after_s * 1e6));
        kill(child, SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    return WIFEXITED(status);
}

/* Killed by SIGKILL at random moments of the time that a whole run takes on this machine (under
 * valgrind it is a hundred times longer), a little later each time, so that the run ends; then
 * again, until enough runs were killed. */
static void a_killed_run_resumes(void **state) {
    char prefix[LT_PATH_BYTES] = "";
    lt_tokenize_options o = options(prefix, 2);
    int kills = 0, rounds = 0;
    double whole_s;
    (void)state;
    o.prompt_field = "prompt";
#ifdef __SANITIZE_THREAD__
    skip(); /* Each start takes longer than the run. */
#endif
    strcpy(prefix, at("whole"));
    whole_s = lt_clock_s();
    assert_true(run_child(&o, 0));
    whole_s = lt_clock_s() - whole_s;
    assert_same_files(at("asked"), at("whole"));
    strcpy(prefix, at("killed"));
    for (; kills < 20 && rounds < 20; rounds++) {
        bool done = false;
        for (int tries = 0; !done; tries++, kills += !done) {
            const double random = (double)(lt_rng_mix((uint64_t)(64 * rounds + tries)) >> 11) *
                                  0x1p-53;
            done = run_child(&o, tries < 60 ? (0.001 + random * 0.02 * (10 + tries)) * whole_s : 0);
        }
        assert_same_files(at("asked"), prefix);
        assert_false(lt_file_exists(at("killed.journal")));
        assert_int_equal(lt_tokenize_remove_output(prefix), LT_OK);
    }
    assert_true(kills >= 20);
}

/* A disk that fills up: the child may not write files beyond 1 MB. Nothing is lost: once there is
 * room, the same call succeeds. */
static void full_disk_loses_nothing(void **state) {
    lt_tokenize_options o = options(at("full"), 2);
    lt_tokenize_stats stats;
    int status;
    (void)state;
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit limit = {1 << 20, 1 << 20};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        _exit(lt_tokenize_files(&o, &stats) == LT_ERR_IO &&
                      strstr(lt_error_message(), "full.bin.part: File too large") != NULL
                  ? 0
                  : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_false(lt_file_exists(at("full.idx")));
    assert_int_equal(lt_tokenize_files(&o, &stats), LT_OK);
    assert_same_files(at("one"), at("full"));
}

/* A run that was killed before its first document does not stop another command; one with
 * documents does. */
static void an_empty_journal_stops_no_command(void **state) {
    char prefix[LT_PATH_BYTES] = "";
    lt_tokenize_options o = options(prefix, 1);
    lt_tokenize_position position = {.line = 1};
    lt_tokenize_stats stats;
    (void)state;
    strcpy(prefix, at("empty"));
    assert_int_equal(lt_tokenize_save_journal(prefix, 123, &position), LT_OK);
    assert_int_equal(lt_file_write_atomic(at("empty.mask.part"), "x", 1), LT_OK);
    assert_int_equal(lt_tokenize_files(&o, &stats), LT_OK);
    assert_same_files(at("one"), at("empty"));
    assert_false(lt_file_exists(at("empty.mask.part")));
    strcpy(prefix, at("begun"));
    position.mark.n_documents = 1;
    assert_int_equal(lt_tokenize_save_journal(prefix, 123, &position), LT_OK);
    assert_int_equal(lt_tokenize_files(&o, &stats), LT_ERR_STATE);
    assert_true(lt_file_exists(at("begun.journal")));
}

static void bad_documents_are_named(void **state) {
    const char *text =
        "{\"text\": \"ok\"}\n{\"text\": \"no!!\"}\n{\"text\": \"ok\"}\n{\"text\": 5}\n";
    const char *const bad = at("bad.jsonl"), *const missing = at("missing.jsonl");
    lt_tokenize_options o = options(at("bad"), 2);
    lt_tokenize_stats stats;
    (void)state;
    assert_int_equal(lt_file_write_atomic(bad, text, strlen(text)), LT_OK);
    o.inputs = &bad;
    o.n_inputs = 1;
    assert_int_equal(lt_tokenize_files(&o, &stats), LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), "bad.jsonl:2: byte 3 cannot be encoded"));
    /* Nothing was written, so nothing is left. */
    assert_false(lt_file_exists(at("bad.journal")));
    assert_false(lt_file_exists(at("bad.bin.part")));
    o.inputs = &missing;
    assert_int_equal(lt_tokenize_files(&o, &stats), LT_ERR_NOT_FOUND);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(prompts_are_masked),
        cmocka_unit_test(a_stopped_run_resumes),
        cmocka_unit_test(a_killed_run_resumes),
        cmocka_unit_test(full_disk_loses_nothing),
        cmocka_unit_test(bad_documents_are_named),
        cmocka_unit_test(an_empty_journal_stops_no_command),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
