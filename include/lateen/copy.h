/* copy.h: files, objects and models that move between folders, object stores, web servers and
 * Hugging Face's hub.
 *
 *     lt_copy("s3://bucket/run/", "run", NULL, NULL);
 *     lt_copy("run/checkpoint/", "s3://bucket/run/checkpoint/", NULL, NULL);
 *     lt_copy_bring(path, "hf://org/model", NULL);   path: a folder that lt_model_open reads
 *
 * Sources are file, s3, https, http and hf; targets are file and s3. Several connections each read
 * a range and write it. What arrives is compared with the checksum that the source provides
 * (lt_copy_report says which kind); what a store reports to have written is compared with the MD5
 * of what was sent.
 *
 * A target appears whole or not at all: a file is written under another name, synced and renamed,
 * an object in parts that are joined at the end. A copy that was interrupted, for whatever reason,
 * resumes when the same copy is made again. A file that is at the target already, with the same
 * size and date (or checksum), is not copied. */
#ifndef LATEEN_COPY_H
#define LATEEN_COPY_H

#include <stdbool.h>
#include <stdint.h>

#include "lateen/base.h"

#define LT_COPY_PATH_BYTES 4096

typedef struct {
    /* n_files_done: including those that were already at the target. */
    int64_t n_files, n_files_done;
    int64_t n_files_same; /* Already at the target. */
    int64_t total_bytes;  /* Bytes of the files that are known so far. */
    int64_t done_bytes;   /* Read or sent, found at the target, or resumed. */
    int64_t moved_bytes;  /* The part of done_bytes that this copy moved. */
    int64_t n_retries;    /* Requests that were sent again. */
    double seconds;
    /* How the last file was checked: "SHA-256", "MD5 of its parts", "length". */
    char checked_by[64];
} lt_copy_report;

typedef struct {
    int64_t n_connections; /* Connections; each holds one part in memory. */
    int64_t part_bytes;    /* At least this size, since an upload has at most 10,000 parts. */
    int64_t rate_bytes;    /* Bytes per second of all connections; 0: no limit. */
    int64_t n_tries;       /* Most tries of a request without progress. */
    double delay_s;        /* Mean wait before the second try; it doubles, up to 20 s. */
    double stall_s;        /* A connection that moves no byte for this long is tried again. */
    const char *profile, *region, *endpoint; /* For S3; "": as the AWS command line finds them. */
    /* How buckets are addressed: 0 chosen by the endpoint, 1 in the path, 2 in the host name. */
    int addressing;
    bool anonymous;                /* S3 without keys, for public buckets. */
    const char *include, *exclude; /* Comma-separated patterns of names (fnmatch); "": all, none. */
    /* The expected checksum of a single file, in hex; "": not given. */
    const char *sha256;
    bool force; /* Also copy files that are already at the target. */
    bool wait;  /* Wait for another process that makes the same copy; else STATE. */
    /* Called about five times a second, by the thread of the call; true stops the copy, with
     * LT_ERR_INTERRUPTED. NULL: not called. */
    bool (*tick)(void *ctx, const lt_copy_report *now);
    /* Called often, by any thread, also before the transfer begins; true stops the copy, too. NULL:
     * not called. */
    bool (*stop)(void *ctx);
    void *ctx;
} lt_copy_options;

lt_copy_options lt_copy_defaults(void);

/* options NULL: lt_copy_defaults. report may be NULL. ARG: what is wrong with a location.
 * NOT_FOUND: there is no such source. REMOTE: a service refused, or did not answer. FORMAT: the
 * content has another checksum. IO: the disk is full, or fails. In all cases a target is as it was
 * before. */
LT_MUST_USE lt_err lt_copy(const char *source, const char *target, const lt_copy_options *options,
                           lt_copy_report *report);

/* A file of a list. The strings are valid during the call only. */
typedef struct {
    const char *name;  /* Name below the place; for a single file, its last part. */
    const char *shown; /* Its address. */
    int64_t size_bytes;
    double modified_s; /* Unix time; 0: not known. */
} lt_copy_file;

/* Call found(ctx, file) for each file of a place, in the order of their names: a folder with all
 * below it, s3://BUCKET/PREFIX/, a repository of the hub, or one file. `include` and `exclude` of
 * the options choose among them. An error that `found` returns ends the list. NOT_FOUND: there is
 * no file. */
LT_MUST_USE lt_err lt_copy_list(const char *place, const lt_copy_options *options,
                                lt_err (*found)(void *ctx, const lt_copy_file *file), void *ctx);

/* Delete an object, all objects below s3://BUCKET/PREFIX/, a file, or a folder. `include` and
 * `exclude` choose among them. *n: how many files were deleted; it may be NULL, and is 0 if there
 * was none. */
LT_MUST_USE lt_err lt_copy_delete(const char *place, const lt_copy_options *options, int64_t *n);

/* A local path for `text`: itself, if it is a path; else that of a copy, which is made or brought
 * up to date first. hf:// goes into the hub's own cache (HF_HOME), where other programs find it,
 * without files that no model needs; all other addresses go into Lateen's cache. */
LT_MUST_USE lt_err lt_copy_bring(char out[LT_COPY_PATH_BYTES], const char *text,
                                 const lt_copy_options *options);

/* The path of an earlier copy, without sending a request. NOT_FOUND: there is none. */
LT_MUST_USE lt_err lt_copy_brought(char out[LT_COPY_PATH_BYTES], const char *text);

/* lt_copy_bring for training data: a file of conversations, or a shard of tokens, whose files
 * (PREFIX.bin, .idx, .mask, .json) are then in one folder of Lateen's cache, with their dates. */
LT_MUST_USE lt_err lt_copy_bring_data(char out[LT_COPY_PATH_BYTES], const char *text,
                                      const lt_copy_options *options);

#endif
