/* tensorboard.c: see tensorboard.h. A record is made in a buffer of fixed size, so that reporting a
 * step allocates nothing. */
#include "train/report/tensorboard.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "platform/copy/digest.h"

#define RECORD_BYTES 8192
#define TAG_BYTES    160

struct lt_tensorboard {
    FILE *file;
    char path[LT_PATH_BYTES];
};

/* ---- Protocol buffers ---- */

/* A message that grows in place. A key consists of the field's number and kind: field << 3 |
 * kind. */
typedef struct {
    unsigned char data[RECORD_BYTES];
    size_t n;
} message;

enum { KIND_VARINT = 0, KIND_FIXED64 = 1, KIND_BYTES = 2, KIND_FIXED32 = 5 };

static void put_raw(message *m, const void *bytes, size_t n) {
    LT_ASSERT(m->n + n <= sizeof m->data);
    memcpy(m->data + m->n, bytes, n);
    m->n += n;
}

static void put_varint(message *m, uint64_t x) {
    do {
        const unsigned char byte = (unsigned char)((x & 127) | (x > 127 ? 128 : 0));
        put_raw(m, &byte, 1);
        x >>= 7;
    } while (x > 0);
}

static void put_key(message *m, unsigned field, unsigned kind) {
    put_varint(m, field << 3 | kind);
}

/* Little-endian, as all supported machines are (asserted in data/shard_format.h). */
static void put_double(message *m, unsigned field, double x) {
    put_key(m, field, KIND_FIXED64);
    put_raw(m, &x, sizeof x);
}

static void put_float(message *m, unsigned field, float x) {
    put_key(m, field, KIND_FIXED32);
    put_raw(m, &x, sizeof x);
}

static void put_number(message *m, unsigned field, uint64_t x) {
    put_key(m, field, KIND_VARINT);
    put_varint(m, x);
}

static void put_bytes(message *m, unsigned field, const void *bytes, size_t n) {
    put_key(m, field, KIND_BYTES);
    put_varint(m, n);
    put_raw(m, bytes, n);
}

/* ---- Records ---- */

static uint32_t masked(const void *data, size_t n) {
    const uint32_t c = lt_crc32c(data, n);
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

static lt_err write_record(lt_tensorboard *b, const message *m) {
    const uint64_t length = m->n;
    const uint32_t of_length = masked(&length, sizeof length), of_data = masked(m->data, m->n);
    if (fwrite(&length, sizeof length, 1, b->file) != 1 ||
        fwrite(&of_length, sizeof of_length, 1, b->file) != 1 ||
        fwrite(m->data, 1, m->n, b->file) != m->n ||
        fwrite(&of_data, sizeof of_data, 1, b->file) != 1 || fflush(b->file) != 0) {
        LT_FAIL(LT_ERR_IO, "%s: %s", b->path, strerror(errno));
    }
    return LT_OK;
}

static void begin_event(message *m, int64_t step) {
    m->n = 0;
    put_double(m, 1, lt_clock_unix_s());
    if (step != 0) {
        put_number(m, 2, (uint64_t)step);
    }
}

/* The version, and the step from which this file is valid. */
static lt_err write_head(lt_tensorboard *b, int64_t step) {
    static const char version[] = "brain.Event:2";
    static const unsigned char start[] = {1 << 3 | KIND_VARINT, 1};
    message m;
    begin_event(&m, 0);
    put_bytes(&m, 3, version, sizeof version - 1);
    LT_TRY(write_record(b, &m));
    begin_event(&m, step + 1);
    put_bytes(&m, 7, start, sizeof start);
    return write_record(b, &m);
}

lt_err lt_tensorboard_open(lt_tensorboard **out, const char *run_folder, int64_t step) {
    lt_err err = LT_OK;
    char host[128] = "localhost", name[256];
    lt_tensorboard *b = calloc(1, sizeof *b);

    if (b == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "log.tensorboard");
    }
    (void)gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%d", (long long)lt_clock_unix_s(),
             host, (int)getpid());
    LT_TRY_DONE(lt_path_join(b->path, run_folder, name));
    b->file = fopen(b->path, "ae");
    if (b->file == NULL) {
        LT_FAIL_DONE(LT_ERR_IO, "%s: %s", b->path, strerror(errno));
    }
    LT_TRY_DONE(write_head(b, step));
    *out = b;
    b = NULL;
done:
    lt_tensorboard_close(b);
    return err;
}

void lt_tensorboard_close(lt_tensorboard *b) {
    if (b != NULL && b->file != NULL) {
        fclose(b->file);
    }
    free(b);
}

lt_err lt_tensorboard_row(void *tensorboard, const char *kind, const lt_metric *table, int n,
                          const double *values, const bool *present) {
    lt_tensorboard *b = tensorboard;
    message event, summary = {.n = 0}, value;
    int64_t step = 0;

    for (int i = 0; i < n; i++) {
        char tag[TAG_BYTES];
        if (!present[i]) {
            continue;
        }
        if (strcmp(table[i].name, "step") == 0) {
            step = (int64_t)values[i];
            continue;
        }
        snprintf(tag, sizeof tag, "%.60s/%.90s", kind, table[i].name);
        value.n = 0;
        put_bytes(&value, 1, tag, strlen(tag));
        put_float(&value, 2, (float)values[i]);
        put_bytes(&summary, 1, value.data, value.n);
    }
    begin_event(&event, step);
    put_bytes(&event, 5, summary.data, summary.n);
    return write_record(b, &event);
}
