/* tokenize_journal.c: see tokenize_journal.h.
 *
 * The order at the end: write the manifest, rename the shard's files (.idx last), remove the
 * journal. So .idx with a manifest of this fingerprint means complete, whatever other files are
 * left. */
#include "data/tokenize_journal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"

#define TEXT_BYTES      4096
#define JOURNAL_VERSION 1

static uint64_t hash_text(uint64_t h, const char *text) {
    for (; text != NULL && *text != '\0'; text++) {
        h = lt_rng_mix(h ^ (unsigned char)*text);
    }
    return lt_rng_mix(h + 1);
}

bool lt_tokenize_is_masked(const lt_tokenize_options *o) {
    return o->prompt_field != NULL || o->encode_record != NULL;
}

lt_err lt_tokenize_fingerprint(uint64_t *out, uint64_t *total_bytes, const lt_tokenize_options *o) {
    uint64_t h = lt_rng_mix(JOURNAL_VERSION ^ o->tokenizer_hash);
    bool known = true;

    h = lt_rng_mix(h ^ (uint64_t)o->vocab_size);
    h = lt_rng_mix(h ^ (uint64_t)(o->bos_id + 1));
    h = lt_rng_mix(h ^ (uint64_t)(o->eod_id + 1));
    h = lt_rng_mix(h ^ (uint64_t)o->text.format);
    h = lt_rng_mix(h ^ (uint64_t)o->text.utf8);
    h = hash_text(h, o->text.field);
    h = hash_text(h, o->text.split_on);
    h = o->prompt_field != NULL ? hash_text(h, o->prompt_field) : h;
    h = o->encode_record != NULL ? lt_rng_mix(h ^ o->record_hash) : h;
    *total_bytes = 0;
    for (size_t i = 0; i < o->n_inputs; i++) {
        struct stat st = {0};
        const bool pipe = strcmp(o->inputs[i], "-") == 0;
        if (!pipe && stat(o->inputs[i], &st) != 0) {
            LT_FAIL(errno == ENOENT ? LT_ERR_NOT_FOUND : LT_ERR_IO, "%s: %s", o->inputs[i],
                    strerror(errno));
        }
        h = hash_text(h, o->inputs[i]);
        h = lt_rng_mix(h ^ (uint64_t)st.st_size);
        h = lt_rng_mix(h ^ (uint64_t)st.st_mtim.tv_sec);
        h = lt_rng_mix(h ^ (uint64_t)st.st_mtim.tv_nsec);
        /* Its content is unknown, so its fingerprint never matches. */
        if (pipe || !S_ISREG(st.st_mode)) {
            known = false;
            h = lt_rng_mix(h ^ lt_clock_ns() ^ (uint64_t)getpid() << 32);
        }
        *total_bytes += (uint64_t)st.st_size;
    }
    *total_bytes = known ? *total_bytes : 0;
    *out = h;
    return LT_OK;
}

static lt_err name(char out[LT_PATH_BYTES], const char *prefix, const char *suffix) {
    if (snprintf(out, LT_PATH_BYTES, "%s%s", prefix, suffix) >= LT_PATH_BYTES) {
        LT_FAIL(LT_ERR_LIMIT, "path of %zu characters", strlen(prefix));
    }
    return LT_OK;
}

/* Read position and fingerprint from a journal or a manifest. */
static lt_err load(const char *path, uint64_t *fingerprint, lt_tokenize_position *at) {
    static const char *const keys[] = {"input",      "offset",    "line",  "empty",
                                       "text_bytes", "documents", "tokens"};
    uint64_t *const fields[] = {&at->input,        &at->offset,     &at->line,
                                &at->empty,        &at->text_bytes, &at->mark.n_documents,
                                &at->mark.n_tokens};
    lt_err err = LT_OK;
    json_t *root = NULL;
    const char *hex = NULL;
    int64_t labels = 0; /* Present only for a shard with a mask. */

    LT_TRY_DONE(lt_json_load(&root, path, TEXT_BYTES));
    LT_TRY_DONE(lt_json_str(root, "fingerprint", &hex, false, path));
    *fingerprint = strtoull(hex, NULL, 16);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int64_t x = 0;
        LT_TRY_DONE(lt_json_i64(root, keys[i], &x, true, path));
        *fields[i] = (uint64_t)x;
    }
    LT_TRY_DONE(lt_json_i64(root, "labels", &labels, true, path));
    at->labels = (uint64_t)labels;
done:
    json_decref(root);
    return err;
}

lt_err lt_tokenize_find_output(lt_output_state *state, lt_tokenize_position *at, const char *prefix,
                               uint64_t fingerprint) {
    char idx[LT_PATH_BYTES], manifest[LT_PATH_BYTES], journal[LT_PATH_BYTES];
    uint64_t found;

    *at = (lt_tokenize_position){.line = 1};
    *state = LT_OUTPUT_NONE;
    LT_TRY(name(idx, prefix, ".idx"));
    LT_TRY(name(manifest, prefix, ".json"));
    LT_TRY(name(journal, prefix, ".journal"));
    if (lt_file_exists(idx)) {
        if (lt_file_exists(manifest)) {
            LT_TRY(load(manifest, &found, at));
            if (found == fingerprint) {
                *state = LT_OUTPUT_COMPLETE;
                return LT_OK;
            }
        }
        LT_FAIL(
            LT_ERR_STATE,
            "%s: a shard made from other inputs or options exists already; --overwrite replaces it",
            idx);
    }
    if (!lt_file_exists(journal)) {
        return LT_OK;
    }
    LT_TRY(load(journal, &found, at));
    if (found != fingerprint && at->mark.n_documents + at->empty == 0) {
        *at = (lt_tokenize_position){.line = 1}; /* Nothing was written, so nothing is lost. */
        return LT_OK;
    }
    if (found != fingerprint) {
        LT_FAIL(LT_ERR_STATE,
                "%s: an unfinished shard made from other inputs or options exists; run its command "
                "again to continue it, or use --overwrite to start over",
                journal);
    }
    *state = LT_OUTPUT_UNFINISHED;
    return LT_OK;
}

lt_err lt_tokenize_spare(const lt_tokenize_options *o) {
    static const char *const suffixes[] = {".bin",      ".json",      ".mask",       ".idx",
                                           ".bin.part", ".mask.part", ".sizes.part", ".journal"};
    /* The first of the names: these files alone, without an index or a journal, are not a
     * shard. */
    enum { WHOLE = 3 };
    char path[LT_PATH_BYTES], idx[LT_PATH_BYTES], journal[LT_PATH_BYTES];
    LT_TRY(name(idx, o->out_prefix, ".idx"));
    LT_TRY(name(journal, o->out_prefix, ".journal"));
    const bool ours = o->overwrite || lt_file_exists(idx) || lt_file_exists(journal);
    for (size_t s = 0; s < sizeof suffixes / sizeof *suffixes; s++) {
        LT_TRY(name(path, o->out_prefix, suffixes[s]));
        for (size_t i = 0; i < o->n_inputs; i++) {
            LT_TRY(lt_file_spare(path, o->inputs[i]));
        }
        LT_TRY(o->tokenizer != NULL ? lt_file_spare(path, o->tokenizer) : LT_OK);
        LT_TRY(lt_file_may_replace(path));
        if (s < WHOLE && !ours && lt_file_exists(path)) {
            LT_FAIL(LT_ERR_STATE,
                    "%s exists already and belongs to no shard; --overwrite replaces it", path);
        }
    }
    return LT_OK;
}

lt_err lt_tokenize_save_journal(const char *prefix, uint64_t fingerprint,
                                const lt_tokenize_position *at) {
    char path[LT_PATH_BYTES], text[TEXT_BYTES];
    LT_TRY(name(path, prefix, ".journal"));
    const int n = snprintf(text, sizeof text,
                           "{\"fingerprint\": \"%016" PRIx64 "\", \"input\": %" PRIu64
                           ", \"offset\": %" PRIu64 ", \"line\": %" PRIu64 ", \"empty\": %" PRIu64
                           ", \"text_bytes\": %" PRIu64 ", \"documents\": %" PRIu64
                           ", \"tokens\": %" PRIu64 ", \"labels\": %" PRIu64 "}\n",
                           fingerprint, at->input, at->offset, at->line, at->empty, at->text_bytes,
                           at->mark.n_documents, at->mark.n_tokens, at->labels);
    return lt_file_write_atomic(path, text, (size_t)n);
}

lt_err lt_tokenize_save_manifest(const lt_tokenize_options *o, uint64_t fingerprint,
                                 const lt_tokenize_position *at) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES], hex[17], hash[17], record[17];
    char *text = NULL;
    json_t *root = NULL;

    LT_TRY_DONE(name(path, o->out_prefix, ".json"));
    snprintf(hex, sizeof hex, "%016" PRIx64, fingerprint);
    snprintf(hash, sizeof hash, "%016" PRIx64, o->tokenizer_hash);
    root = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "fingerprint", hex,
                     "tokenizer", o->tokenizer != NULL ? o->tokenizer : "", "tokenizer_xxh64", hash,
                     "vocab_size", (json_int_t)o->vocab_size, "bos_id", (json_int_t)o->bos_id,
                     "eod_id", (json_int_t)o->eod_id, "documents", (json_int_t)at->mark.n_documents,
                     "empty", (json_int_t)at->empty, "tokens", (json_int_t)at->mark.n_tokens,
                     "text_bytes", (json_int_t)at->text_bytes);
    if (root != NULL && lt_tokenize_is_masked(o)) {
        json_object_set_new(root, "labels", json_integer((json_int_t)at->labels));
        if (o->prompt_field != NULL) {
            json_object_set_new(root, "prompt_field", json_string(o->prompt_field));
        }
        if (o->encode_record != NULL) {
            snprintf(record, sizeof record, "%016" PRIx64, o->record_hash);
            json_object_set_new(root, "chat_xxh64", json_string(record));
        }
    }
    text = root != NULL ? json_dumps(root, JSON_INDENT(1)) : NULL;
    if (text == NULL) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: the tokenizer's name is not UTF-8", path);
    }
    LT_TRY_DONE(lt_file_write_atomic(path, text, strlen(text)));
done:
    free(text);
    json_decref(root);
    return err;
}

static lt_err remove_one(const char *prefix, const char *suffix) {
    char path[LT_PATH_BYTES];
    LT_TRY(name(path, prefix, suffix));
    if (unlink(path) != 0 && errno != ENOENT) {
        LT_FAIL(LT_ERR_IO, "remove %s: %s", path, strerror(errno));
    }
    return LT_OK;
}

lt_err lt_tokenize_remove_journal(const char *prefix) {
    return remove_one(prefix, ".journal");
}

lt_err lt_tokenize_remove_output(const char *prefix) {
    /* The index is removed first, because without it the rest does not count as a shard. */
    LT_TRY(remove_one(prefix, ".idx"));
    LT_TRY(remove_one(prefix, ".bin"));
    LT_TRY(remove_one(prefix, ".mask"));
    LT_TRY(remove_one(prefix, ".json"));
    LT_TRY(lt_shard_writer_discard(prefix));
    return remove_one(prefix, ".journal");
}

lt_err lt_tokenize_hash(uint64_t *out, const lt_tokenizer *t, const char *path) {
    lt_file_map map = {0};
    if (!lt_file_is_dir(path)) {
        LT_TRY(lt_file_map_open(&map, path));
        *out = XXH64(map.data, map.size_bytes, 0);
        lt_file_map_close(&map);
        return LT_OK;
    }
    *out = 0;
    for (uint32_t id = 0; id < lt_tokenizer_describe(t).n_ids; id++) {
        size_t bytes = 0;
        const char *piece = lt_tokenizer_piece(t, id, &bytes);
        *out = XXH64(piece != NULL ? piece : "", piece != NULL ? bytes : 0, *out + id);
    }
    return LT_OK;
}

/* A folder and a file of the same tokenizer have different hashes, so in this case sizes are
 * compared. */
lt_err lt_tokenize_other_tokenizer(char **made_with, const char *prefix, const lt_tokenizer *t,
                                   const char *path) {
    lt_err err = LT_OK;
    char manifest[LT_PATH_BYTES], hash[17];
    const char *theirs = "", *hex = NULL;
    int64_t vocab = -1;
    uint64_t ours = 0;
    bool other;
    json_t *root = NULL;

    *made_with = NULL;
    LT_TRY(name(manifest, prefix, ".json"));
    if (!lt_file_exists(manifest)) {
        return LT_OK;
    }
    LT_TRY(lt_json_load(&root, manifest, (size_t)1 << 20));
    LT_TRY_DONE(lt_json_str(root, "tokenizer", &theirs, true, manifest));
    LT_TRY_DONE(lt_json_str(root, "tokenizer_xxh64", &hex, true, manifest));
    LT_TRY_DONE(lt_json_i64(root, "vocab_size", &vocab, true, manifest));
    LT_TRY_DONE(lt_tokenize_hash(&ours, t, path));
    snprintf(hash, sizeof hash, "%016" PRIx64, ours);
    other = hex != NULL && strcmp(hex, hash) != 0;
    if (other && (lt_file_is_dir(path) || lt_file_is_dir(theirs))) {
        other = vocab >= 0 && vocab != (int64_t)lt_tokenizer_describe(t).n_ids;
    }
    *made_with = other ? strdup(theirs) : NULL;
done:
    json_decref(root);
    return err;
}
