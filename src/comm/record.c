/* record.c: see record.h. */
#include "comm/record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

const char *lt_call_kind_name(lt_call_kind kind) {
    static const char *const names[] = {
#define KIND_NAME(kind, name) name,
        LT_CALL_MAP(KIND_NAME)
#undef KIND_NAME
    };
    return names[kind];
}

const char *lt_call_state_name(lt_call_state state) {
    static const char *const names[] = {
#define STATE_NAME(state, name) name,
        LT_CALL_STATE_MAP(STATE_NAME)
#undef STATE_NAME
    };
    return names[state];
}

lt_err lt_records_open(lt_records *r) {
    *r = (lt_records){.ring = calloc(LT_COMM_RECORDS, sizeof *r->ring)};
    if (r->ring == NULL) {
        LT_FAIL(LT_ERR_OOM, "records of %d calls", LT_COMM_RECORDS);
    }
    return LT_OK;
}

void lt_records_close(lt_records *r) {
    free(r->ring);
    r->ring = NULL;
}

lt_record *lt_records_of(lt_records *r, uint64_t call) {
    lt_record *at = &r->ring[call % LT_COMM_RECORDS];
    return at->call == call ? at : NULL;
}

static json_int_t us(uint64_t ns) {
    return (json_int_t)(ns / 1000);
}

static json_t *as_json(const lt_record *r) {
    return json_pack("{s:I, s:s, s:i, s:s, s:I, s:i, s:I, s:s, s:s, s:I, s:I, s:I}", "call",
                     (json_int_t)r->call, "group", r->group, "members", r->members, "kind",
                     lt_call_kind_name(r->kind), "seq", (json_int_t)r->seq, "peer", r->peer,
                     "bytes", (json_int_t)r->bytes, "dtype", lt_dtype_name(r->dtype), "state",
                     lt_call_state_name(r->state), "issued_us", us(r->issued_ns), "started_us",
                     us(r->started_ns), "done_us", us(r->done_ns));
}

/* Write one JSON value as a line; takes ownership of the value. */
static lt_err put_line(FILE *f, json_t *value, const char *path) {
    const bool good = value != NULL && json_dumpf(value, f, JSON_COMPACT) == 0 &&
                      fputc('\n', f) != EOF;
    json_decref(value);
    if (!good) {
        LT_FAIL(LT_ERR_IO, "write %s", path);
    }
    return LT_OK;
}

lt_err lt_records_write(const lt_records *r, const char *dir, uint64_t epoch, int rank, int size,
                        const char *reason) {
    lt_err err = LT_OK;
    char name[32], path[LT_PATH_BYTES];
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = NULL;

    (void)snprintf(name, sizeof name, "rank-%d.jsonl", rank);
    LT_TRY_DONE(lt_path_join(path, dir, name));
    LT_TRY_DONE(lt_file_make_dirs(dir));
    f = open_memstream(&text, &bytes);
    if (f == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "records of rank %d", rank);
    }
    LT_TRY_DONE(put_line(f,
                         json_pack("{s:I, s:i, s:i, s:s}", "epoch", (json_int_t)epoch, "rank", rank,
                                   "size", size, "reason", reason),
                         path));
    for (uint64_t k = r->n > LT_COMM_RECORDS ? r->n - LT_COMM_RECORDS + 1 : 1; k <= r->n; k++) {
        LT_TRY_DONE(put_line(f, as_json(&r->ring[k % LT_COMM_RECORDS]), path));
    }
    if (fclose(f) != 0) {
        f = NULL;
        LT_FAIL_DONE(LT_ERR_IO, "write %s", path);
    }
    f = NULL;
    LT_TRY_DONE(lt_file_write_atomic(path, text, bytes));
done:
    if (f != NULL) {
        (void)fclose(f);
    }
    free(text);
    return err;
}

/* Whether `name` is that of a rank's record, followed by `end`. */
static bool is_of_rank(const char *name, const char *end) {
    int rank, length = 0;
    return sscanf(name, "rank-%d.jsonl%n", &rank, &length) == 1 && length > 0 &&
           strcmp(name + length, end) == 0;
}

lt_err lt_records_put_aside(const char *dir) {
    lt_err err = LT_OK;
    char aside[LT_PATH_BYTES], from[LT_PATH_BYTES], to[LT_PATH_BYTES];
    char **names = NULL;
    size_t n = 0;
    bool fresh = false;
    if (!lt_file_exists(dir)) {
        return LT_OK;
    }
    LT_TRY(lt_path_join(aside, dir, LT_RECORDS_BEFORE));
    LT_TRY(lt_file_list(&names, &n, dir));
    for (size_t i = 0; i < n; i++) {
        LT_TRY_DONE(lt_path_join(from, dir, names[i]));
        if (is_of_rank(names[i], ".tmp")) { /* Its rank was killed while it wrote. */
            (void)unlink(from);
        }
        if (strcmp(names[i], LT_RECORDS_DEVICE) != 0 && !is_of_rank(names[i], "")) {
            continue;
        }
        if (!fresh) {
            LT_TRY_DONE(lt_file_remove_tree(aside));
            LT_TRY_DONE(lt_file_make_dirs(aside));
            fresh = true;
        }
        LT_TRY_DONE(lt_path_join(to, aside, names[i]));
        if (rename(from, to) != 0) {
            LT_FAIL_DONE(LT_ERR_IO, "move %s to %s: %s", from, to, strerror(errno));
        }
    }
done:
    lt_file_list_free(names, n);
    return err;
}
