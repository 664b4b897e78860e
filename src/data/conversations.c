/* conversations.c: see conversations.h. */
#include "data/conversations.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/error.h"
#include "base/log.h"
#include "data/encode_workers.h"
#include "data/shard_format.h"

#define NAME_BYTES 64 /* Most bytes of a file's name that its shard's name keeps. */

typedef struct {
    const lt_conversations_options *o;
    lt_encode_workers workers;
    atomic_ullong told, left_out, cut;
} encoder;

/* ---- One line ---- */

/* Warn about a line: what is wrong with it, and what was done. */
static void tell(encoder *e, const lt_record_line *line, const char *what, const char *done) {
    const unsigned long long n = atomic_fetch_add(&e->told, 1);
    if (n < LT_CONVERSATIONS_TOLD) {
        lt_log_warn("%s:%" PRIu64 ": %s; %s", line->file, line->number, what, done);
    } else if (n == LT_CONVERSATIONS_TOLD) {
        lt_log_warn("%s: more such lines are counted, not named", line->file);
    }
}

static lt_err skip(encoder *e, const lt_record_line *line, const char *what) {
    tell(e, line, what, "the conversation is left out");
    atomic_fetch_add(&e->left_out, 1);
    return LT_OK;
}

/* Whether an error is one of the line itself, not of the machine. */
static bool of_line(lt_err err) {
    return err == LT_ERR_FORMAT || err == LT_ERR_NOT_FOUND || err == LT_ERR_ARG ||
           err == LT_ERR_LIMIT || err == LT_ERR_UNSUPPORTED;
}

static size_t labels_of(const unsigned char *marks, size_t n) {
    size_t labels = 0;
    for (size_t i = 1; i < n; i++) { /* Nothing predicts the first token. */
        labels += marks[i] == LT_MASK_LABEL;
    }
    return labels;
}

/* *keep: the number of tokens of the conversation that are used; 0: none, and a message said
 * why. */
static lt_err judge(encoder *e, const lt_record_line *line, const unsigned char *marks, size_t n,
                    size_t *keep) {
    const lt_conversations_options *o = e->o;
    const size_t longest = (size_t)o->longest;
    char what[160];
    bool bad = true;

    *keep = 0;
    if (labels_of(marks, n) == 0) {
        snprintf(what, sizeof what, "no turn of the assistant to learn");
    } else if (n > longest && o->too_long != LT_TOO_LONG_CUT) {
        snprintf(what, sizeof what, "%zu tokens, of which rows hold %zu", n, longest);
        bad = false;
    } else if (n > longest && labels_of(marks, longest) == 0) {
        snprintf(what, sizeof what, "%zu tokens, and no turn of the assistant in the first %zu", n,
                 longest);
    } else if (n > longest) {
        snprintf(what, sizeof what, "%zu tokens", n);
        tell(e, line, what, "the end is cut off");
        atomic_fetch_add(&e->cut, 1);
        *keep = longest;
        return LT_OK;
    } else {
        *keep = n;
        return LT_OK;
    }
    if (bad ? o->bad_rows == LT_BAD_ROWS_FAIL : o->too_long == LT_TOO_LONG_FAIL) {
        LT_FAIL(LT_ERR_FORMAT, "%s", what);
    }
    return skip(e, line, what);
}

/* An lt_encode_record_fn. The marks of lt_chat_rows are LT_MASK_*. */
static lt_err encode(void *ctx, int worker, const lt_record_line *line, lt_id_buffer *out,
                     lt_text_buffer *mask, size_t *text_bytes) {
    encoder *e = ctx;
    lt_ids *ids = &e->workers.ids[worker];
    unsigned char *marks = NULL;
    lt_err err = LT_OK;
    size_t keep = 0;

    ids->n = 0;
    *text_bytes = 0;
    if (line->bytes == strspn(line->text, " \t\r")) {
        return LT_OK;
    }
    err = lt_chat_rows_encode(&e->o->source->rows, e->workers.scratch[worker], line->text,
                              line->bytes, ids, &marks, text_bytes);
    if (err != LT_OK && of_line(err) && e->o->bad_rows == LT_BAD_ROWS_SKIP) {
        LT_TRY_DONE(skip(e, line, lt_error_message()));
        err = LT_OK;
        *text_bytes = 0;
        goto done;
    }
    LT_TRY_DONE(err);
    LT_TRY_DONE(judge(e, line, marks, ids->n, &keep));
    LT_TRY_DONE(lt_encode_put(out, mask, ids->data, marks, keep));
done:
    free(marks);
    return err;
}

/* ---- The file ---- */

/* Hash of the content and of everything else that ids and masks depend on. */
static lt_err hash_of(uint64_t *out, uint64_t *tokenizer, const lt_conversations_options *o) {
    lt_file_map map;
    LT_TRY(lt_tokenize_hash(tokenizer, o->source->rows.tokenizer, o->tokenizer_path));
    LT_TRY(lt_file_map_open(&map, o->path));
    const uint64_t parts[] = {XXH3_64bits(map.data, map.size_bytes),
                              *tokenizer,
                              o->source->hash,
                              (uint64_t)o->longest,
                              (uint64_t)o->bad_rows,
                              (uint64_t)o->too_long};
    lt_file_map_close(&map);
    *out = XXH3_64bits(parts, sizeof parts);
    return LT_OK;
}

/* FOLDER/NAME-<hash>, with the file's name up to its first dot. */
static lt_err name_shard(char prefix[LT_PATH_BYTES], const lt_conversations_options *o,
                         uint64_t hash) {
    const char *slash = strrchr(o->path, '/'), *name = slash != NULL ? slash + 1 : o->path;
    const int n = (int)strcspn(name, ".");
    char file[NAME_BYTES + 32];
    snprintf(file, sizeof file, "%.*s-%016" PRIx64, n < NAME_BYTES ? n : NAME_BYTES, name, hash);
    return lt_path_join(prefix, o->folder, file);
}

lt_err lt_conversations_shard(char prefix[LT_PATH_BYTES], lt_conversations_stats *stats,
                              const lt_conversations_options *o) {
    const lt_tokenizer *t = o->source->rows.tokenizer;
    lt_err err = LT_OK;
    encoder e = {.o = o};
    lt_tokenize_stats made;
    lt_tokenize_options how = {.inputs = &o->path,
                               .n_inputs = 1,
                               .text = {.format = LT_TEXT_JSONL, .utf8 = LT_UTF8_REPLACE},
                               .out_prefix = prefix,
                               .vocab_size = lt_tokenizer_describe(t).n_ids,
                               .bos_id = -1,
                               .eod_id = -1,
                               .tokenizer = o->tokenizer_path,
                               .n_threads = o->n_threads,
                               .encode_record = encode,
                               .encode_ctx = &e};

    LT_ASSERT(o->n_threads > 0 && o->longest > 0);
    LT_TRY_DONE(hash_of(&how.record_hash, &how.tokenizer_hash, o));
    LT_TRY_DONE(name_shard(prefix, o, how.record_hash));
    LT_TRY_DONE(lt_file_make_dirs(o->folder));
    LT_TRY_DONE(lt_encode_workers_open(&e.workers, t, o->n_threads));
    err = lt_tokenize_files(&how, &made);
    /* The shard was made from the same content with another path or time. */
    if (err == LT_ERR_STATE) {
        how.overwrite = true;
        err = lt_tokenize_files(&how, &made);
    }
    LT_TRY_DONE(err);
    *stats = (lt_conversations_stats){.documents = made.documents,
                                      .tokens = made.tokens,
                                      .labels = made.labels,
                                      .left_out = made.was_complete ? made.empty
                                                                    : atomic_load(&e.left_out),
                                      .cut = atomic_load(&e.cut),
                                      .existed = made.was_complete};
    if (made.documents == 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: no conversation to learn from: %" PRIu64 " were left out",
                     o->path, stats->left_out);
    }
done:
    lt_encode_workers_close(&e.workers);
    return err;
}
