/* blame.c: why a world ended, from the records of its ranks (record.h).
 *
 * For each call that some member had started and not finished, known by its group and number:
 * members with fewer calls in that group have not reached it; members whose call of that number has
 * another verb or size differ. A rank without a file was killed, or never failed. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "comm/record.h"

#define FILE_BYTES_MAX ((size_t)8 << 20)
/* At most this many calls are explained; the first ones show why the others wait. */
#define LINES_MAX 16

typedef struct {
    bool there;
    char reason[LT_COMM_WHY];
    json_t **calls;
    size_t n_calls;
} rank_file;

typedef struct {
    char *at;
    size_t left;
} text_out;

LT_PRINTF(2, 3) static void say(text_out *t, const char *fmt, ...) {
    va_list args;
    int n;
    va_start(args, fmt);
    n = vsnprintf(t->at, t->left, fmt, args);
    va_end(args);
    n = n < 0 ? 0 : (size_t)n < t->left ? n : (int)t->left - 1;
    t->at += n;
    t->left -= (size_t)n;
}

static const char *text_of(const json_t *call, const char *key) {
    const char *s = json_string_value(json_object_get(call, key));
    return s != NULL ? s : "?";
}

static long long number_of(const json_t *call, const char *key) {
    return (long long)json_integer_value(json_object_get(call, key));
}

static bool is_pair(const json_t *call) {
    return strcmp(text_of(call, "kind"), "send") == 0 || strcmp(text_of(call, "kind"), "recv") == 0;
}

static void file_free(rank_file *f) {
    for (size_t i = 0; i < f->n_calls; i++) {
        json_decref(f->calls[i]);
    }
    free(f->calls);
}

/* Read a rank's file: its head line, then its calls. *size: the number of ranks of the world. */
static lt_err file_read(rank_file *f, const char *path, int *size) {
    lt_err err = LT_OK;
    char *text = NULL;
    size_t bytes, line = 0;

    LT_TRY_DONE(lt_file_read(&text, &bytes, path, FILE_BYTES_MAX));
    f->calls = calloc(LT_COMM_RECORDS, sizeof *f->calls);
    if (f->calls == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s", path);
    }
    for (char *p = text, *end; *p != '\0'; p = *end != '\0' ? end + 1 : end) {
        json_t *value = NULL;
        end = p + strcspn(p, "\n");
        line++;
        err = lt_json_parse(&value, p, (size_t)(end - p), path);
        if (err != LT_OK || !json_is_object(value) || f->n_calls == LT_COMM_RECORDS) {
            json_decref(value);
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s:%zu: not a record of a call", path, line);
        }
        if (line == 1) {
            *size = (int)number_of(value, "size");
            (void)snprintf(f->reason, sizeof f->reason, "%s", text_of(value, "reason"));
            json_decref(value);
        } else {
            f->calls[f->n_calls++] = value;
        }
    }
    f->there = true;
done:
    free(text);
    return err;
}

/* The record of the same collective in another rank's file; NULL if there is none. */
static const json_t *same_call(const rank_file *f, const json_t *call) {
    for (size_t i = 0; i < f->n_calls; i++) {
        if (!is_pair(f->calls[i]) && number_of(f->calls[i], "seq") == number_of(call, "seq") &&
            strcmp(text_of(f->calls[i], "group"), text_of(call, "group")) == 0) {
            return f->calls[i];
        }
    }
    return NULL;
}

static bool waits(const json_t *call) {
    const char *state = text_of(call, "state");
    return strcmp(state, "started") == 0 || strcmp(state, "failed") == 0;
}

/* Has the rank ever called in this group? Several groups may share a name, so a rank that has never
 * called in one may not be a member. */
static bool knows(const rank_file *f, const char *group) {
    for (size_t i = 0; i < f->n_calls; i++) {
        if (strcmp(text_of(f->calls[i], "group"), group) == 0) {
            return true;
        }
    }
    return false;
}

/* Explain one call in which `rank` waits: which ranks are missing, and which call something
 * else. */
static void explain(text_out *t, const rank_file *files, int size, int rank, const json_t *call) {
    say(t, "rank %d waits in %s %lld of group %s (%lld members, %lld bytes)\n", rank,
        text_of(call, "kind"), number_of(call, "seq"), text_of(call, "group"),
        number_of(call, "members"), number_of(call, "bytes"));
    if (is_pair(call)) {
        say(t, "    for member %lld of that group\n", number_of(call, "peer"));
        return;
    }
    for (int r = 0; r < size; r++) {
        const json_t *other = files[r].there ? same_call(&files[r], call) : NULL;
        if (!files[r].there || r == rank) {
            continue;
        }
        if (other == NULL && knows(&files[r], text_of(call, "group"))) {
            say(t, "    rank %d did not come to it\n", r);
        } else if (other != NULL && (strcmp(text_of(other, "kind"), text_of(call, "kind")) != 0 ||
                                     number_of(other, "bytes") != number_of(call, "bytes"))) {
            say(t, "    rank %d calls %s of %lld bytes there\n", r, text_of(other, "kind"),
                number_of(other, "bytes"));
        }
    }
}

lt_err lt_comm_blame(const char *dir, char *out, size_t out_bytes) {
    lt_err err = LT_OK;
    rank_file *files = NULL;
    text_out t = {out, out_bytes};
    int size = 0, n_there = 0, lines = 0;

    LT_ASSERT(out_bytes > 0);
    out[0] = '\0';
    files = calloc(LT_COMM_MAX_RANKS, sizeof *files);
    if (files == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "records of %s", dir);
    }
    for (int r = 0; r < (n_there > 0 ? size : LT_COMM_MAX_RANKS); r++) {
        char name[32], path[LT_PATH_BYTES];
        (void)snprintf(name, sizeof name, "rank-%d.jsonl", r);
        LT_TRY_DONE(lt_path_join(path, dir, name));
        if (!lt_file_exists(path)) {
            continue;
        }
        LT_TRY_DONE(file_read(&files[r], path, &size));
        if (size < 1 || size > LT_COMM_MAX_RANKS || r >= size) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s: rank %d of a world of %d", path, r, size);
        }
        n_there++;
    }
    if (n_there == 0) {
        char before[LT_PATH_BYTES];
        const bool earlier = lt_path_join(before, dir, LT_RECORDS_BEFORE) == LT_OK &&
                             lt_file_exists(before);
        LT_FAIL_DONE(LT_ERR_NOT_FOUND, "%s: there is no record of a rank (rank-N.jsonl)%s%s", dir,
                     earlier ? "; those of an earlier start are in " : "", earlier ? before : "");
    }
    for (int r = 0; r < size; r++) {
        if (!files[r].there) {
            say(&t, "rank %d left no record\n", r);
        }
    }
    for (int r = 0; r < size; r++) {
        for (size_t i = 0; i < files[r].n_calls && lines < LINES_MAX; i++) {
            if (waits(files[r].calls[i])) {
                explain(&t, files, size, r, files[r].calls[i]);
                lines++;
                break; /* The rank waits for this call first; its later calls wait behind it. */
            }
        }
    }
    for (int r = 0; r < size; r++) {
        if (files[r].there) {
            say(&t, "rank %d ended with: %s\n", r, files[r].reason);
            break;
        }
    }
done:
    for (int r = 0; files != NULL && r < LT_COMM_MAX_RANKS; r++) {
        file_free(&files[r]);
    }
    free(files);
    return err;
}
