/* byte_source.c: see byte_source.h.
 *
 * One input chunk is filled from the file, and the codec decompresses it into the caller's buffer.
 * gzip members and zstd frames may follow one another (pigz, `cat a.gz b.gz`, zstd -T): the codec
 * restarts at each. The file may end only between members; inside one, it is reported as
 * truncated. */
#include "data/byte_source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/error.h"
#include "base/file.h"

#ifndef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
#define CHUNK_BYTES ((size_t)64 << 10)
/* A small chunk, so that small inputs take several and set-up does not dominate a fuzz run. */
#else
#define CHUNK_BYTES ((size_t)512)
#endif
/* A frame may ask for a window of 2 GiB (`zstd --long=31`, as some public dumps do), and the
 * decoder allocates it. Windows up to 128 MiB, which every level of zstd may write, are always
 * accepted; larger ones only in files large enough to need them. */
#define ZSTD_LOG_ALWAYS 27
#define ZSTD_LOG_MAX    31
#define ZSTD_FILE_SHARE 1024      /* Window bytes allowed per byte of the file. */
#define GZIP_WINDOW     (15 + 16) /* zlib: the largest window, gzip wrapper required. */
#define SKIP_BYTES_MAX  ((size_t)64 << 10)
#define NAMED_BYTES     8 /* First bytes of a file that a message shows. */

typedef enum { CODEC_PLAIN, CODEC_GZIP, CODEC_ZSTD } codec;

struct lt_byte_source {
    char path[LT_PATH_BYTES];
    int fd;
    codec codec;
    bool file_ended;    /* read() has returned 0. */
    bool inside;        /* The codec is within a gzip member or a zstd frame. */
    uint64_t file_size; /* 0: unknown. */
    uint64_t taken;     /* File bytes given to the codec in earlier chunks. */
    size_t at, filled;  /* The unread part of chunk: [at, filled). */
    z_stream gz;
    ZSTD_DStream *zst;
    unsigned char chunk[CHUNK_BYTES];
};

static lt_err fill(lt_byte_source *s) {
    LT_ASSERT(s->at == s->filled);
    s->taken += s->filled;
    s->at = s->filled = 0;
    while (!s->file_ended) {
        const ssize_t got = read(s->fd, s->chunk, sizeof s->chunk);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            LT_FAIL(LT_ERR_IO, "%s: byte %llu: %s", s->path, (unsigned long long)s->taken,
                    strerror(errno));
        }
        s->file_ended = got == 0;
        s->filled = (size_t)got;
        break;
    }
    return LT_OK;
}

static unsigned long long file_offset(const lt_byte_source *s) {
    return (unsigned long long)(s->taken + s->at);
}

static int window_log_max(const lt_byte_source *s) {
    int log = ZSTD_LOG_ALWAYS;
    while (log < ZSTD_LOG_MAX &&
           (s->file_size == 0 || s->file_size >= ((uint64_t)2 << log) / ZSTD_FILE_SHARE)) {
        log++;
    }
    return log;
}

static lt_err codec_open(lt_byte_source *s) {
    static const unsigned char gzip_magic[] = {0x1f, 0x8b}, zstd_magic[] = {0x28, 0xb5, 0x2f, 0xfd};
    size_t failed;

    if (s->filled >= sizeof gzip_magic && memcmp(s->chunk, gzip_magic, sizeof gzip_magic) == 0) {
        if (inflateInit2(&s->gz, GZIP_WINDOW) != Z_OK) {
            LT_FAIL(LT_ERR_OOM, "%s: gzip decoder", s->path);
        }
        s->codec = CODEC_GZIP;
    } else if (s->filled >= sizeof zstd_magic &&
               memcmp(s->chunk, zstd_magic, sizeof zstd_magic) == 0) {
        s->zst = ZSTD_createDStream();
        if (s->zst == NULL) {
            LT_FAIL(LT_ERR_OOM, "%s: zstd decoder", s->path);
        }
        s->codec = CODEC_ZSTD;
        failed = ZSTD_DCtx_setParameter(s->zst, ZSTD_d_windowLogMax, window_log_max(s));
        LT_ASSERT(!ZSTD_isError(failed));
    }
    return LT_OK;
}

/* A plain file with the name of a packed one is refused: it may be a web page about an error that
 * was saved in place of the download, or a packed file whose beginning is damaged. */
static lt_err check_name(const lt_byte_source *s) {
    static const char *const endings[] = {".gz", ".zst"};
    char first[3 * NAMED_BYTES + 1] = "";

    for (size_t i = 0; i < s->filled && i < NAMED_BYTES; i++) {
        snprintf(first + 3 * i, sizeof first - 3 * i, " %02x", s->chunk[i]);
    }
    for (size_t i = 0; i < sizeof endings / sizeof *endings && s->codec == CODEC_PLAIN; i++) {
        if (!lt_path_has_suffix(s->path, endings[i])) {
            continue;
        }
        if (s->filled == 0) {
            LT_FAIL(LT_ERR_FORMAT, "%s: its name ends with %s, but the file is empty", s->path,
                    endings[i]);
        }
        LT_FAIL(LT_ERR_FORMAT,
                "%s: its name ends with %s, but its first bytes,%s, are those of neither gzip nor "
                "zstd; rename it if it is not packed",
                s->path, endings[i], first);
    }
    return LT_OK;
}

lt_err lt_byte_source_open(lt_byte_source **out, const char *path) {
    lt_err err = LT_OK;
    struct stat st;
    lt_byte_source *s = calloc(1, sizeof *s);

    if (s == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: read buffer", path);
    }
    s->fd = -1;
    if (strlen(path) >= sizeof s->path) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "path of %zu characters", strlen(path));
    }
    memcpy(s->path, path, strlen(path) + 1);
    s->fd = strcmp(path, "-") == 0 ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
                                   : open(path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0 || fstat(s->fd, &st) != 0) {
        LT_TRY_DONE(lt_file_open_failed(path));
    }
    if (S_ISDIR(st.st_mode)) {
        LT_FAIL_DONE(LT_ERR_IO, "%s: is a folder, not a file", path);
    }
    s->file_size = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
    LT_TRY_DONE(fill(s));
    LT_TRY_DONE(codec_open(s));
    LT_TRY_DONE(check_name(s));
    *out = s;
    s = NULL;
done:
    lt_byte_source_close(s);
    return err;
}

void lt_byte_source_close(lt_byte_source *s) {
    if (s == NULL) {
        return;
    }
    if (s->codec == CODEC_GZIP) {
        inflateEnd(&s->gz);
    }
    ZSTD_freeDStream(s->zst);
    if (s->fd >= 0) {
        close(s->fd);
    }
    free(s);
}

static lt_err read_gzip(lt_byte_source *s, unsigned char *to, size_t room, size_t *got) {
    s->gz.next_out = to;
    s->gz.avail_out = (uInt)room;
    for (;;) {
        int status;
        if (s->at == s->filled) {
            LT_TRY(fill(s));
        }
        if (!s->inside && s->at == s->filled) {
            break; /* The file ends between two members. */
        }
        s->gz.next_in = s->chunk + s->at;
        s->gz.avail_in = (uInt)(s->filled - s->at);
        s->inside = true;
        status = inflate(&s->gz, Z_NO_FLUSH);
        s->at = s->filled - s->gz.avail_in;
        if (status == Z_STREAM_END) {
            s->inside = false;
            inflateReset(&s->gz);
        } else if (status == Z_BUF_ERROR && s->file_ended) {
            LT_FAIL(LT_ERR_FORMAT,
                    "%s: gzip stream is truncated: the file ends at byte %llu inside a member",
                    s->path, file_offset(s));
        } else if (status != Z_OK && status != Z_BUF_ERROR) {
            LT_FAIL(status == Z_MEM_ERROR ? LT_ERR_OOM : LT_ERR_FORMAT,
                    "%s: gzip stream is damaged near byte %llu: %s", s->path, file_offset(s),
                    s->gz.msg != NULL ? s->gz.msg : zError(status));
        }
        if (s->gz.avail_out < room) {
            break;
        }
    }
    *got = room - s->gz.avail_out;
    return LT_OK;
}

static lt_err read_zstd(lt_byte_source *s, unsigned char *to, size_t room, size_t *got) {
    ZSTD_outBuffer out = {.dst = to, .size = room};
    for (;;) {
        ZSTD_inBuffer in;
        size_t status;
        if (s->at == s->filled) {
            LT_TRY(fill(s));
        }
        if (!s->inside && s->at == s->filled) {
            break; /* The file ends between two frames. */
        }
        in = (ZSTD_inBuffer){.src = s->chunk, .size = s->filled, .pos = s->at};
        status = ZSTD_decompressStream(s->zst, &out, &in);
        s->at = in.pos;
        if (ZSTD_getErrorCode(status) == ZSTD_error_frameParameter_windowTooLarge) {
            LT_FAIL(
                LT_ERR_LIMIT,
                "%s: a zstd frame near byte %llu needs a window of more than %llu MiB, too much "
                "for a file of %llu bytes",
                s->path, file_offset(s), (1ull << window_log_max(s)) >> 20,
                (unsigned long long)s->file_size);
        }
        if (ZSTD_isError(status)) {
            LT_FAIL(LT_ERR_FORMAT, "%s: zstd stream is damaged near byte %llu: %s", s->path,
                    file_offset(s), ZSTD_getErrorName(status));
        }
        s->inside = status != 0;
        if (out.pos > 0) {
            break;
        }
        if (s->inside && s->file_ended) { /* The codec needs more input, but the file has ended. */
            LT_FAIL(LT_ERR_FORMAT,
                    "%s: zstd stream is truncated: the file ends at byte %llu inside a frame",
                    s->path, file_offset(s));
        }
    }
    *got = out.pos;
    return LT_OK;
}

lt_err lt_byte_source_read(lt_byte_source *s, void *to, size_t room, size_t *got) {
    LT_ASSERT(room > 0);
    room = room < (size_t)1 << 30 ? room : (size_t)1 << 30; /* zlib's counts have 32 bits. */
    if (s->codec == CODEC_GZIP) {
        return read_gzip(s, to, room, got);
    }
    if (s->codec == CODEC_ZSTD) {
        return read_zstd(s, to, room, got);
    }
    if (s->at == s->filled) {
        LT_TRY(fill(s));
    }
    *got = s->filled - s->at < room ? s->filled - s->at : room;
    memcpy(to, s->chunk + s->at, *got);
    s->at += *got;
    return LT_OK;
}

lt_err lt_byte_source_skip(lt_byte_source *s, uint64_t bytes) {
    unsigned char dropped[SKIP_BYTES_MAX];
    if (s->codec == CODEC_PLAIN && bytes > s->filled - s->at) {
        const uint64_t to = s->taken + s->at + bytes;
        if (to <= s->file_size && lseek(s->fd, (off_t)to, SEEK_SET) >= 0) {
            s->taken = to;
            s->at = s->filled = 0;
            return LT_OK;
        }
    }
    while (bytes > 0) {
        size_t got;
        LT_TRY(lt_byte_source_read(s, dropped,
                                   bytes < sizeof dropped ? (size_t)bytes : sizeof dropped, &got));
        if (got == 0) {
            LT_FAIL(LT_ERR_STATE,
                    "%s: ended %llu bytes before the position to resume from: the file has changed",
                    s->path, (unsigned long long)bytes);
        }
        bytes -= got;
    }
    return LT_OK;
}

uint64_t lt_byte_source_consumed_bytes(const lt_byte_source *s) {
    return s->taken + s->at;
}

uint64_t lt_byte_source_file_bytes(const lt_byte_source *s) {
    return s->file_size;
}
