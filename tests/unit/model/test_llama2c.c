/* llama2.c's files: version 1, and heads that are not tied, made from stories260K (version 0) by
 * the layout that llama2c.c describes, give the same logits; what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"
#include "lateen/model.h"

#define STORIES "tests/golden/stories260k/stories260K.bin"
#define MADE    "/tmp/lateen-test-llama2c.bin"

enum { DIM = 64, HIDDEN = 172, LAYERS = 5, HEADS = 8, KV = 4, VOCAB = 512, SEQ = 512, N = 12 };
enum { FIELDS = 7, V1_BYTES = 256 };

static void must(lt_err err, const char *what) {
    if (err != LT_OK) {
        fail_msg("%s: %s", what, lt_error_message());
    }
}

/* The tensors of version 0, in its order, with their numbers of floats. */
enum { EMBED, ATTN_NORM, WQ, WK, WV, WO, FFN_NORM, W1, W2, W3, FINAL_NORM, TABLES, TENSORS };
static const size_t counts[TENSORS] = {VOCAB * DIM,
                                       LAYERS *DIM,
                                       LAYERS *DIM *DIM,
                                       LAYERS *DIM *DIM *KV / HEADS,
                                       LAYERS *DIM *DIM *KV / HEADS,
                                       LAYERS *DIM *DIM,
                                       LAYERS *DIM,
                                       LAYERS *DIM *HIDDEN,
                                       LAYERS *DIM *HIDDEN,
                                       LAYERS *DIM *HIDDEN,
                                       DIM,
                                       SEQ *DIM / HEADS};
static const int order_0[] = {EMBED,    ATTN_NORM, WQ, WK, WV,         WO,
                              FFN_NORM, W1,        W2, W3, FINAL_NORM, TABLES};
static const int order_1[] = {ATTN_NORM, FFN_NORM, FINAL_NORM, EMBED, WQ, WK, WV, WO, W1, W2, W3};

typedef struct {
    char *data;
    size_t bytes;
    const float *tensors[TENSORS];
} stories;

static void stories_open(stories *s) {
    static const int32_t fields[FIELDS] = {DIM, HIDDEN, LAYERS, HEADS, KV, VOCAB, SEQ};
    size_t at = sizeof fields;
    must(lt_file_read(&s->data, &s->bytes, STORIES, 1 << 22), STORIES);
    assert_memory_equal(s->data, fields, sizeof fields);
    for (int i = 0; i < TENSORS; i++) {
        s->tensors[i] = (const float *)(const void *)(s->data + at);
        at += counts[i] * sizeof(float);
    }
    assert_int_equal(at, s->bytes);
}

/* Write a file of this version; if it is not tied, its head is twice the embedding. */
static void write_version(const stories *s, int version, bool tied) {
    const int32_t fields[FIELDS] = {
        DIM, HIDDEN, LAYERS, HEADS, KV, version == 0 && !tied ? -VOCAB : VOCAB, SEQ};
    const int32_t magic[2] = {0x616b3432, 1};
    const char is_tied = (char)tied, zeros[V1_BYTES] = {0};
    const int *order = version == 0 ? order_0 : order_1;
    FILE *f = fopen(MADE, "wb");
    assert_non_null(f);
    if (version == 1) {
        assert_int_equal(fwrite(magic, sizeof magic, 1, f), 1);
    }
    assert_int_equal(fwrite(fields, sizeof fields, 1, f), 1);
    if (version == 1) {
        assert_int_equal(fwrite(&is_tied, 1, 1, f), 1);
        assert_int_equal(fwrite(zeros, V1_BYTES - sizeof magic - sizeof fields - 1, 1, f), 1);
    }
    for (int i = 0; i < (version == 0 ? TENSORS : TENSORS - 1); i++) {
        const int t = order[i];
        assert_int_equal(fwrite(s->tensors[t], sizeof(float), counts[t], f), counts[t]);
    }
    for (size_t i = 0; !tied && i < counts[EMBED]; i++) {
        const float twice = 2 * s->tensors[EMBED][i];
        assert_int_equal(fwrite(&twice, sizeof twice, 1, f), 1);
    }
    assert_int_equal(fclose(f), 0);
}

static void logits_of(const char *path, float *out, bool tied) {
    static const int32_t ids[N] = {1, 403, 407, 261, 378, 20, 31, 42, 500, 2, 77, 5};
    lt_model *m = NULL;
    lt_session *s = NULL;
    must(lt_model_open(&m, path, NULL), path);
    const lt_model_spec *spec = lt_model_get_spec(m);
    assert_true(spec->bos_id == 1 && spec->eos.n == 1 && spec->eos.ids[0] == 2);
    assert_true(spec->norm_eps == 1e-5F && spec->tied == tied && spec->max_seq == SEQ);
    assert_true(spec->head_dim == DIM / HEADS && spec->n_kv_heads == KV);
    must(lt_session_open(&s, m, 1, N), "session");
    must(lt_session_eval_all(s, 0, ids, N, out), "logits");
    lt_session_close(s);
    lt_model_close(m);
}

static void versions_and_heads(void **state) {
    static float want[N * VOCAB], got[N * VOCAB];
    stories s;
    (void)state;
    stories_open(&s);
    logits_of(STORIES, want, true);
    for (int version = 0; version < 2; version++) {
        for (int tied = 0; tied < 2; tied++) {
            write_version(&s, version, tied != 0);
            logits_of(MADE, got, tied != 0);
            for (int i = 0; i < N * VOCAB; i++) { /* Twice the head gives twice the logits. */
                const float logit = tied != 0 ? want[i] : 2 * want[i];
                if (got[i] - logit > 1e-4F || logit - got[i] > 1e-4F) {
                    fail_msg("version %d, logit %d: %g, not %g", version, i, (double)got[i],
                             (double)logit);
                }
            }
        }
    }
    (void)unlink(MADE);
    free(s.data);
}

static void expect_refused(const char *what) {
    lt_model *m = NULL;
    if (lt_model_open(&m, MADE, NULL) == LT_OK || strstr(lt_error_message(), what) == NULL) {
        fail_msg("'%s' is not in: %s", what, lt_error_message());
    }
    (void)unlink(MADE);
}

static void damaged_files(void **state) {
    static const struct {
        int field, value;
        const char *what;
    } rows[] = {{0, 0, "header field dim would be 0"},
                {1, -1, "header field hidden_dim would be -1"},
                {2, (1 << 24) + 1, "header field n_layers would be 16777217"},
                {3, 0, "header field n_heads would be 0"},
                {4, -4, "header field n_kv_heads would be -4"},
                {5, -(1 << 24) - 1, "header field vocab_size would be -16777217"},
                {5, 0, "header field vocab_size would be 0"},
                {6, 0, "header field seq_len would be 0"},
                {0, DIM + 1, ""}};
    stories s;
    (void)state;
    stories_open(&s);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int32_t was, value = rows[i].value;
        memcpy(&was, s.data + (size_t)rows[i].field * sizeof was, sizeof was);
        memcpy(s.data + (size_t)rows[i].field * sizeof was, &value, sizeof value);
        must(lt_file_write_atomic(MADE, s.data, s.bytes), MADE);
        memcpy(s.data + (size_t)rows[i].field * sizeof was, &was, sizeof was);
        expect_refused(rows[i].what);
    }
    must(lt_file_write_atomic(MADE, s.data, V1_BYTES - 1), MADE);
    expect_refused("255 bytes are too few for a model");
    must(lt_file_write_atomic(MADE, s.data, V1_BYTES), MADE);
    expect_refused("cut short: token_embd.weight needs 131072 bytes, 228 are left");
    must(lt_file_write_atomic(MADE, s.data, s.bytes - 4), MADE);
    expect_refused("cut short: freq_cis.unused needs 16384 bytes, 16380 are left");
    for (int version = 0; version < 2; version++) { /* Without the last four bytes. */
        char *data = NULL;
        size_t bytes;
        write_version(&s, version, false);
        must(lt_file_read(&data, &bytes, MADE, 1 << 22), MADE);
        must(lt_file_write_atomic(MADE, data, bytes - 4), MADE);
        expect_refused("cut short: output.weight needs 131072 bytes, 131068 are left");
        if (version == 1) {
            data[4] = 2;
            must(lt_file_write_atomic(MADE, data, bytes), MADE);
            expect_refused("llama2.c format version 2; versions 0 and 1 are read");
        }
        free(data);
    }
    free(s.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(versions_and_heads),
        cmocka_unit_test(damaged_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
