/* A teacher's distributions in files, which this test writes byte by byte as teacher_logprobs.h
 * describes them: what is read from them for a row, and which damaged or foreign files are
 * refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "align/teacher_logprobs.h"
#include "base/error.h"
#include "data/shard_format.h"
#include "data/shard_writer.h"
#include "lateen/model.h"
#include "model/alloc.h"
#include "unit/device.h"
#include "unit/scratch_folder.h"

/* Three conversations, two in the first part. In brackets: learnt.
 *     5 6 [7] [8]      9 [10]      3 [4] 2 [1] */
enum { K = 2, VOCAB = 12, DIALOGUES = 3 };
static const int32_t ids_of[DIALOGUES][4] = {{5, 6, 7, 8}, {9, 10}, {3, 4, 2, 1}};
static const unsigned char learnt_of[DIALOGUES][4] = {{0, 0, 1, 1}, {0, 1}, {0, 1, 0, 1}};
static const size_t length_of[DIALOGUES] = {4, 2, 4};

enum { TOKENS, STARTS, PLACES, FIRST, IDS, TENSORS };

/* The numbers of a part, and the length of each tensor. */
typedef struct {
    int32_t n[TENSORS];
    int32_t data[TENSORS][8];
    float logprobs[8];
    const char *key;
} part;

static const part parts[2] = {
    {{6, 3, 3, 3, 6},
     {{5, 6, 7, 8, 9, 10}, {0, 4, 6}, {2, 3, 1}, {0, 2, 3}, {0, 7, 8, 11, 10, -1}},
     {-1.5F, -0.5F, -0.25F, -2.0F, -0.125F, -9.0F},
     "0123456789abcdef"},
    {{4, 2, 2, 2, 4},
     {{3, 4, 2, 1}, {0, 4}, {1, 3}, {0, 2}, {3, 4, 1, 2}},
     {-0.75F, -1.0F, -3.0F, -4.0F},
     "0123456789abcdef"}};
static const char header[] = "{\"format\": \"lateen-logprobs-1\", \"key\": \"0123456789abcdef\", "
                             "\"conversations\": 3, \"per_part\": 2, \"top_k\": 2, "
                             "\"vocab_size\": 12, \"temperature\": 1.5}";

static const char *at(const char *name) {
    static char path[LT_PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_header(const char *text) {
    assert_int_equal(lt_file_write_atomic(at(LT_TEACHER_LOGPROBS_FILE), text, strlen(text)), LT_OK);
}

/* Write eight bytes of length, a JSON header, and the bytes of the tensors in its order. */
static void write_part(int i, const part *p) {
    static const char *const names[TENSORS] = {"tokens", "starts", "places", "first", "ids"};
    char text[2048], name[32];
    unsigned char file[4096];
    uint64_t bytes;
    size_t used, offset = 0;
    used = (size_t)snprintf(text, sizeof text, "{\"__metadata__\": {\"key\": \"%s\"}", p->key);
    for (int t = 0; t <= TENSORS; t++) {
        const int own = t < TENSORS ? t : IDS;
        const size_t size = (size_t)p->n[own] * 4;
        char shape[32];
        (void)snprintf(shape, sizeof shape, own == IDS ? "[%d, 2]" : "[%d]",
                       own == IDS ? p->n[own] / K : p->n[own]);
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 ", \"%s\": {\"dtype\": \"%s\", \"shape\": %s, "
                                 "\"data_offsets\": [%zu, %zu]}",
                                 t < TENSORS ? names[t] : "logprobs", t < TENSORS ? "I32" : "F32",
                                 shape, offset, offset + size);
        offset += size;
    }
    used += (size_t)snprintf(text + used, sizeof text - used, "}");
    bytes = used;
    memcpy(file, &bytes, sizeof bytes);
    memcpy(file + sizeof bytes, text, used);
    used += sizeof bytes;
    for (int t = 0; t <= TENSORS; t++) {
        const size_t size = (size_t)p->n[t < TENSORS ? t : IDS] * 4;
        memcpy(file + used, t < TENSORS ? (const void *)p->data[t] : p->logprobs, size);
        used += size;
    }
    (void)snprintf(name, sizeof name, "part-%05d.safetensors", i);
    assert_int_equal(lt_file_write_atomic(at(name), file, used), LT_OK);
}

static void write_all(void) {
    write_header(header);
    write_part(0, &parts[0]);
    write_part(1, &parts[1]);
}

/* A row of seq positions holds the distribution after each position, and nothing where the next
 * token is not learnt. */
static void expect_row(const lt_teacher_logprobs *w, int64_t i, int64_t seq, const int32_t *want,
                       const float *logp) {
    int32_t got[5 * K];
    float values[5 * K];
    for (int t = 0; t < 5 * K; t++) {
        got[t] = -7;
        values[t] = 7.0F;
    }
    lt_teacher_logprobs_row(w, i, seq, got, values);
    for (int t = 0; t < 5 * K; t++) {
        assert_int_equal(got[t], want[t]);
        assert_true(values[t] == logp[t]);
    }
}

static void rows_of_files(void **state) {
    lt_teacher_logprobs w;
    (void)state;
    write_all();
    assert_int_equal(lt_teacher_logprobs_open(&w, folder), LT_OK);
    assert_true(w.n == 3 && w.n_parts == 2 && w.k == K && w.vocab_size == VOCAB);
    assert_true(w.temperature == 1.5);
    expect_row(&w, 0, 3, (int32_t[]){-7, -7, 0, 7, 8, 11, -7, -7, -7, -7},
               (float[]){7, 7, -1.5F, -0.5F, -0.25F, -2, 7, 7, 7, 7});
    /* A shorter row has the beginning. */
    expect_row(&w, 0, 2, (int32_t[]){-7, -7, 0, 7, -7, -7, -7, -7, -7, -7},
               (float[]){7, 7, -1.5F, -0.5F, 7, 7, 7, 7, 7, 7});
    expect_row(&w, 1, 1, (int32_t[]){10, -1, -7, -7, -7, -7, -7, -7, -7, -7},
               (float[]){-0.125F, -9, 7, 7, 7, 7, 7, 7, 7, 7});
    expect_row(&w, 2, 3, (int32_t[]){3, 4, -7, -7, 1, 2, -7, -7, -7, -7},
               (float[]){-0.75F, -1, 7, 7, -3, -4, 7, 7, 7, 7});
    lt_teacher_logprobs_close(&w);
}

static void expect_refused(const char *what) {
    lt_teacher_logprobs w;
    const lt_err err = lt_teacher_logprobs_open(&w, folder);
    if (err != LT_ERR_FORMAT || strstr(lt_error_message(), what) == NULL) {
        fail_msg("error %d, not FORMAT with '%s': %s", (int)err, what, lt_error_message());
    }
    lt_teacher_logprobs_close(&w);
}

/* Numbers in logprobs.json outside their ranges, and at the ends of these. */
static void headers(void **state) {
    static const struct {
        const char *n, *per_part, *k, *vocab, *temperature;
        bool good;
    } rows[] = {
        {"3", "2", "2", "12", "0.001", true}, {"0", "2", "2", "12", "1.5", false},
        {"3", "0", "2", "12", "1.5", false},  {"3", "2", "0", "12", "1.5", false},
        {"3", "2", "13", "12", "1.5", false}, {"3", "2", "513", "1000", "1.5", false},
        {"3", "2", "2", "12", "0", false},    {"3", "2", "2", "12", "-1", false},
    };
    char text[512];
    lt_teacher_logprobs w;
    (void)state;
    write_all();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        (void)snprintf(text, sizeof text,
                       "{\"format\": \"lateen-logprobs-1\", \"key\": \"0123456789abcdef\", "
                       "\"conversations\": %s, \"per_part\": %s, \"top_k\": %s, "
                       "\"vocab_size\": %s, \"temperature\": %s}",
                       rows[i].n, rows[i].per_part, rows[i].k, rows[i].vocab, rows[i].temperature);
        write_header(text);
        if (rows[i].good) {
            assert_int_equal(lt_teacher_logprobs_open(&w, folder), LT_OK);
            lt_teacher_logprobs_close(&w);
        } else {
            expect_refused("out of range");
        }
    }
    write_part(0, &parts[1]); /* One conversation is enough. */
    write_header("{\"format\": \"lateen-logprobs-1\", \"key\": \"0123456789abcdef\", "
                 "\"conversations\": 1, \"per_part\": 1, \"top_k\": 2, \"vocab_size\": 12, "
                 "\"temperature\": 1}");
    assert_int_equal(lt_teacher_logprobs_open(&w, folder), LT_OK);
    assert_true(w.n == 1 && w.n_parts == 1);
    lt_teacher_logprobs_close(&w);
    write_header("{\"format\": \"lateen-logprobs-2\", \"key\": \"\"}");
    expect_refused("format 'lateen-logprobs-2', this version reads lateen-logprobs-1");
    /* Each member is needed, as a number; the message names it. */
    for (size_t i = 0; i < 5; i++) {
        static const char *const members[] = {"conversations", "per_part", "top_k", "vocab_size",
                                              "temperature"};
        for (int how = 0; how < 2; how++) {
            size_t used = (size_t)snprintf(text, sizeof text,
                                           "{\"format\": \"lateen-logprobs-1\", \"key\": "
                                           "\"0123456789abcdef\"");
            for (size_t k = 0; k < 5; k++) {
                if (k != i || how == 1) {
                    used += (size_t)snprintf(text + used, sizeof text - used, ", \"%s\": %s",
                                             members[k], k == i ? "\"2\"" : "2");
                }
            }
            (void)snprintf(text + used, sizeof text - used, "}");
            write_header(text);
            assert_int_not_equal(lt_teacher_logprobs_open(&w, folder), LT_OK);
            assert_non_null(strstr(lt_error_message(), members[i]));
            assert_non_null(strstr(lt_error_message(), LT_TEACHER_LOGPROBS_FILE ": "));
            lt_teacher_logprobs_close(&w);
        }
    }
    write_header("[1]");
    assert_int_not_equal(lt_teacher_logprobs_open(&w, folder), LT_OK);
    lt_teacher_logprobs_close(&w);
    assert_int_equal(remove(at(LT_TEACHER_LOGPROBS_FILE)), 0);
    assert_int_equal(lt_teacher_logprobs_open(&w, folder), LT_ERR_NOT_FOUND);
    lt_teacher_logprobs_close(&w);
}

/* One number of a part is wrong, or a tensor is longer or shorter than the others imply. */
static void damaged_parts(void **state) {
    static const struct {
        int tensor, i, value;
        const char *what; /* NULL: the file is valid. */
    } rows[] = {
        {STARTS, 0, 1, "'starts' does not rise from 0 to 6"},
        {STARTS, 1, -1, "'starts' does not rise from 0 to 6"},
        {STARTS, 1, 7, "'starts' does not rise from 0 to 6"},
        {STARTS, 2, 5, "'starts' does not rise from 0 to 6"},
        {FIRST, 0, 1, "'first' does not rise from 0 to 3"},
        {FIRST, 2, 4, "'first' does not rise from 0 to 3"},
        {FIRST, 1, 0, NULL}, /* A conversation in which nothing is learnt. */
        {IDS, 0, -1, "'ids' of place 0"},
        {IDS, 0, 7, "'ids' of place 0"},
        {IDS, 0, 6, NULL},
        {IDS, 3, 12, "'ids' of place 1"},
        {IDS, 3, 8, "'ids' of place 1"},
        {IDS, 3, 9, NULL},
        {IDS, 5, -2, "'ids' of place 2"},
        {IDS, 5, 11, NULL},
    };
    lt_teacher_logprobs w;
    part p;
    (void)state;
    write_all();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        p = parts[0];
        p.data[rows[i].tensor][rows[i].i] = rows[i].value;
        write_part(0, &p);
        if (rows[i].what == NULL) {
            assert_int_equal(lt_teacher_logprobs_open(&w, folder), LT_OK);
            lt_teacher_logprobs_close(&w);
        } else {
            expect_refused(rows[i].what);
        }
    }
    p = parts[0]; /* The only id of the first place is outside the vocabulary. */
    p.data[IDS][0] = VOCAB;
    p.data[IDS][1] = -1;
    write_part(0, &p);
    expect_refused("'ids' of place 0");
    for (int t = STARTS; t < TENSORS; t++) {
        static const char *const named[] = {"", "'starts'", "'ids'", "'first'", "'ids'"};
        p = parts[0];
        p.n[t] -= t == IDS ? K : 1;
        write_part(0, &p);
        expect_refused(named[t]);
    }
    write_part(0, &parts[1]); /* One conversation instead of two. */
    expect_refused("'starts' is missing, or has another type or shape");
    write_part(0, &parts[0]);
    assert_int_equal(remove(at("part-00001.safetensors")), 0);
    assert_int_not_equal(lt_teacher_logprobs_open(&w, folder), LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), "part-00001.safetensors: No such file"));
    lt_teacher_logprobs_close(&w);
    p = parts[1];
    p.key = "0123456789abcdee";
    write_part(1, &p);
    expect_refused("part-00001.safetensors does not belong to");
}

/* Open the conversations to learn. One of them may have another second token (3: the first one
 * has another first token), or one more token that is learnt. */
static void dialogues_open(lt_dialogues *d, int changed, int extra, int n) {
    lt_shard_writer *w = NULL;
    assert_int_equal(lt_shard_writer_open(&w, at("talk"), VOCAB, NULL), LT_OK);
    assert_int_equal(lt_shard_writer_add_mask(w), LT_OK);
    for (int i = 0; i < n; i++) {
        int32_t ids[5];
        unsigned char mask[5];
        size_t length = length_of[i];
        for (size_t t = 0; t < 5; t++) {
            const bool learnt = t < length ? learnt_of[i][t] : true;
            ids[t] = t < length ? ids_of[i][t] : 1;
            mask[t] = learnt ? LT_MASK_LABEL : LT_MASK_SILENT;
        }
        ids[1] += i == changed;
        ids[0] += i == 0 && changed == DIALOGUES;
        mask[2] = i == extra ? LT_MASK_LABEL : mask[2];
        length += i == extra && length == 2; /* One of two gets one more token. */
        assert_int_equal(lt_shard_writer_append_masked(w, ids, mask, length), LT_OK);
    }
    assert_int_equal(lt_shard_writer_finish(w), LT_OK);
    lt_shard_writer_close(w);
    *d = (lt_dialogues){.n = 0};
    assert_int_equal(lt_dialogues_add(d, at("talk")), LT_OK);
}

static void conversations_match(void **state) {
    static const struct {
        int changed, extra, n;
        int64_t longest;
        const char *what; /* NULL: they match. */
    } rows[] = {
        {-1, -1, 3, 4, NULL},
        {-1, -1, 3, 9, NULL},
        {-1, -1, 3, 2, NULL}, /* Runs may cut them shorter. */
        {-1, -1, 2, 4, "has 3 conversations, the data 2"},
        {0, -1, 3, 4, "conversation 0 differs"},
        {1, -1, 3, 4, "token 1 is 11, and 10 there"},
        {2, -1, 3, 4, "conversation 2 differs"},
        {3, -1, 3, 4, "token 0 is 6, and 5 there"}, /* The very first token. */
        {-1, 1, 3, 4, "token 2 is 1, and -1 there"},
        {-1, 2, 3, 4, "token 2 is learnt, and has no probabilities there"},
    };
    lt_teacher_logprobs w;
    (void)state;
    write_all();
    assert_int_equal(lt_teacher_logprobs_open(&w, folder), LT_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_dialogues d;
        lt_err err;
        dialogues_open(&d, rows[i].changed, rows[i].extra, rows[i].n);
        err = lt_teacher_logprobs_match(&w, &d, rows[i].longest, VOCAB);
        if (err != (rows[i].what == NULL ? LT_OK : LT_ERR_FORMAT) ||
            (rows[i].what != NULL && strstr(lt_error_message(), rows[i].what) == NULL)) {
            fail_msg("row %zu: error %d: %s", i, (int)err, lt_error_message());
        }
        lt_dialogues_close(&d);
    }
    lt_teacher_logprobs_close(&w);
}

/* ---- Writing ---- */

enum { SEQ = 6, MOST = 4, N_TALKS = 3 };
static const int32_t talks[N_TALKS][8] = {
    {0, 17, 250, 3, 99}, {5, 6}, {8, 300, 7, 41, 2, 19, 77, 120}};
static const unsigned char talks_learnt[N_TALKS][8] = {
    {0, 1, 0, 1, 1}, {1, 1}, {0, 0, 1, 0, 0, 1, 1, 1}};
static const size_t talks_length[N_TALKS] = {5, 2, 8}; /* The last is longer than SEQ. */

/* log softmax(logits / temperature) of the `MOST` likeliest ids, in ascending order of id. */
static void likeliest(const float *logits, int64_t n, double temperature, int32_t *ids,
                      double *logp) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += exp((double)logits[i] / temperature);
    }
    for (int64_t i = 0, found = 0; i < n && found < MOST; i++) {
        int above = 0;
        for (int64_t k = 0; k < n; k++) {
            above += logits[k] > logits[i];
        }
        if (above < MOST) {
            ids[found] = (int32_t)i;
            logp[found++] = (double)logits[i] / temperature - log(sum);
        }
    }
}

/* What a model thinks of each learnt token, in files of two conversations, is what its logits say;
 * the first token has none. Written again, all of it is kept. */
static void a_model_writes_its_distributions(void **state) {
    lt_teacher_logprobs_stats stats;
    lt_teacher_logprobs w;
    lt_dialogues d = {.n = 0};
    lt_shard_writer *shard = NULL;
    lt_session *session = NULL;
    lt_model *m = NULL;
    lt_pass *pass = NULL;
    char out[LT_PATH_BYTES];
    (void)state;
    (void)snprintf(out, sizeof out, "%s/written", folder);
    assert_int_equal(
        lt_model_open(&m, "tests/golden/sft",
                      &(lt_model_options){.dtype = LT_F32, .device = device_of(lt_backend_cpu())}),
        LT_OK);
    const int64_t vocab = m->spec.vocab_size;
    assert_int_equal(lt_shard_writer_open(&shard, at("talks"), vocab, NULL), LT_OK);
    assert_int_equal(lt_shard_writer_add_mask(shard), LT_OK);
    for (int i = 0; i < N_TALKS; i++) {
        assert_int_equal(
            lt_shard_writer_append_masked(shard, talks[i], talks_learnt[i], talks_length[i]),
            LT_OK);
    }
    assert_int_equal(lt_shard_writer_finish(shard), LT_OK);
    lt_shard_writer_close(shard);
    assert_int_equal(lt_dialogues_add(&d, at("talks")), LT_OK);
    assert_int_equal(lt_pass_open(&pass, m, &(lt_pass_options){.batch = 2, .seq = SEQ}), LT_OK);
    const lt_teacher_logprobs_options o = {.folder = out,
                                           .model = "sft",
                                           .dialogues = &d,
                                           .pass = pass,
                                           .teacher = m,
                                           .k = MOST,
                                           .per_part = 2,
                                           .rows = 2,
                                           .seq = SEQ,
                                           .temperature = 2.0};
    for (int again = 0; again < 2; again++) {
        if (lt_teacher_logprobs_write(&o, &stats) != LT_OK) {
            fail_msg("%s", lt_error_message());
        }
        assert_int_equal(stats.conversations, N_TALKS);
        assert_int_equal(stats.places, 3 + 1 + 2); /* The last two of the third are cut off. */
        assert_int_equal(stats.kept, again ? N_TALKS : 0);
    }
    assert_int_equal(lt_teacher_logprobs_open(&w, out), LT_OK);
    assert_true(w.n == N_TALKS && w.n_parts == 2 && w.k == MOST && w.temperature == 2.0);
    if (lt_teacher_logprobs_match(&w, &d, SEQ, vocab) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    assert_int_equal(lt_session_open(&session, m, 1, 8), LT_OK);
    float *logits = malloc((size_t)(8 * vocab) * sizeof *logits);
    assert_non_null(logits);
    for (int i = 0; i < N_TALKS; i++) {
        const int n = talks_length[i] < SEQ ? (int)talks_length[i] : SEQ;
        int32_t ids[SEQ * MOST], want[MOST];
        float logp[SEQ * MOST];
        double want_logp[MOST];
        memset(ids, -1, sizeof ids);
        lt_teacher_logprobs_row(&w, i, SEQ, ids, logp);
        lt_session_truncate(session, 0, 0);
        assert_int_equal(lt_session_eval_all(session, 0, talks[i], n, logits), LT_OK);
        for (int t = 0; t < SEQ; t++) {
            const bool learnt = t + 1 < n && talks_learnt[i][t + 1] == LT_MASK_LABEL;
            likeliest(logits + t * vocab, t < n ? vocab : 0, 2.0, want, want_logp);
            for (int k = 0; k < MOST; k++) {
                assert_int_equal(ids[t * MOST + k], learnt ? want[k] : -1);
                assert_true(!learnt || fabs((double)logp[t * MOST + k] - want_logp[k]) < 1e-4);
            }
        }
    }
    free(logits);
    lt_session_close(session);
    lt_teacher_logprobs_close(&w);
    lt_pass_close(pass);
    lt_dialogues_close(&d);
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_files),
        cmocka_unit_test(headers),
        cmocka_unit_test(damaged_parts),
        cmocka_unit_test(conversations_match),
        cmocka_unit_test(a_model_writes_its_distributions),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
