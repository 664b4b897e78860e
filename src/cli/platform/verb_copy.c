/* verb_copy.c: `lateen copy SRC DST`: copies files between folders, object stores, web servers and
 * the model hub. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/platform/copying.h"
#include "cli/verb.h"

#define COPY_OPTIONS(X)                                                                            \
    X(I64, connections, "connections", "8", 1, 256, "N",                                           \
      "parts that are transferred at the same time")                                               \
    X(I64, part_bytes, "part-bytes", "16MiB", 4096, 2147483648.0, "BYTES",                         \
      "size of a part; larger if an upload would have more than 10,000 of them")                   \
    X(I64, limit_rate, "limit-rate", "0", 0, 1e15, "BYTES/S",                                      \
      "most bytes a second of all connections together; 0: no limit")                              \
    X(STR, include, "include", "", 0, 0, "PATTERNS",                                               \
      "copy only files whose names match one of these, e.g. '*.json,*.safetensors'")               \
    X(STR, exclude, "exclude", "", 0, 0, "PATTERNS",                                               \
      "do not copy files whose names match one of these")                                          \
    X(STR, sha256, "sha256", "", 0, 0, "HEX", "the SHA-256 that the one file must have")           \
    X(BOOL, force, "force", "false", 0, 0, "", "copy files that the target already has, too")      \
    X(BOOL, list, "list", "false", 0, 0, "",                                                       \
      "list the files of a place instead: date, size, name")                                       \
    X(BOOL, delete, "delete", "false", 0, 0, "",                                                   \
      "delete an object of s3 instead, or all objects below s3://BUCKET/PREFIX/")                  \
    X(STR, endpoint, "endpoint", "", 0, 0, "URL",                                                  \
      "object store; empty: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, ~/.aws/config, Amazon's")       \
    X(STR, region, "region", "", 0, 0, "NAME",                                                     \
      "region of the object store; empty: AWS_REGION, ~/.aws/config, us-east-1")                   \
    X(STR, profile, "profile", "", 0, 0, "NAME",                                                   \
      "section of ~/.aws/credentials and ~/.aws/config; empty: the keys of the environment, "      \
      "AWS_PROFILE, default")                                                                      \
    X(ENUM, addressing, "addressing", "auto", 0, 0, "auto|path|host",                              \
      "where a bucket's name goes; auto: in the host for Amazon, in the path for others")          \
    X(BOOL, anonymous, "anonymous", "false", 0, 0, "", "send no keys, for public buckets")         \
    X(I64, tries, "tries", "8", 1, 1000, "N", "tries of a request that makes no progress")         \
    X(F64, delay_s, "delay-s", "0.5", 0, 60, "S",                                                  \
      "mean wait before the second try; it doubles with each, up to 20 s")                         \
    X(F64, stall_s, "stall-s", "30", 1, 3600, "S",                                                 \
      "time without a byte after which a connection is given up and tried again")                  \
    X(BOOL, json, "json", "false", 0, 0, "", "progress and result as lines of JSON")

typedef struct {
    COPY_OPTIONS(LT_OPTION_FIELD)
} copy_options;
#define LT_OPTION_STRUCT copy_options
static const lt_option rows[] = {COPY_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_copy_options = LT_OPTION_TABLE("copy", rows);

/* "812 bytes", "26.8 MB" */
static const char *size_text(char out[32], int64_t bytes) {
    if (bytes <= 50000) { /* It would be shown as 0.0 MB. */
        (void)snprintf(out, 32, "%lld byte%s", (long long)bytes, bytes == 1 ? "" : "s");
    } else {
        (void)snprintf(out, 32, "%.1f MB", (double)bytes * 1e-6);
    }
    return out;
}

static void print_report(const lt_copy_report *r, const char *source, const char *target,
                         bool json) {
    char took[LT_CLOCK_TEXT_BYTES], total[32], moved[32];
    if (json) {
        printf("{\"event\": \"done\", \"files\": %lld, \"files_same\": %lld, \"bytes\": %lld, "
               "\"moved_bytes\": %lld, \"seconds\": %.3f, \"retries\": %lld, \"checked_by\": "
               "\"%s\"}\n",
               (long long)r->n_files, (long long)r->n_files_same, (long long)r->total_bytes,
               (long long)r->moved_bytes, r->seconds, (long long)r->n_retries, r->checked_by);
    } else if (r->n_files_same == r->n_files) {
        lt_log_info("%s: all of %s is there already (%lld file%s, %s)", target, source,
                    (long long)r->n_files, r->n_files == 1 ? "" : "s",
                    size_text(total, r->total_bytes));
    } else {
        lt_log_info("%s: %lld file%s, %s; %s moved in %s (%.1f MB/s), %lld requests "
                    "repeated, checked by %s",
                    target, (long long)r->n_files, r->n_files == 1 ? "" : "s",
                    size_text(total, r->total_bytes), size_text(moved, r->moved_bytes),
                    lt_duration_text(took, r->seconds),
                    (double)r->moved_bytes * 1e-6 / (r->seconds > 1e-6 ? r->seconds : 1e-6),
                    (long long)r->n_retries, r->checked_by);
    }
}

/* Counts of a list so far. */
typedef struct {
    bool json;
    int64_t n_files, n_bytes;
} listed;

static lt_err print_file(void *ctx, const lt_copy_file *file) {
    listed *l = ctx;
    const time_t at = (time_t)file->modified_s;
    struct tm tm;
    char date[32] = "-", name[LT_PATH_BYTES];
    l->n_files++;
    l->n_bytes += file->size_bytes;
    if (l->json) {
        json_t *line = json_pack("{s:s, s:s, s:I, s:f}", "name", file->name, "address", file->shown,
                                 "bytes", (json_int_t)file->size_bytes, "modified_s",
                                 file->modified_s);
        if (line == NULL) {
            LT_FAIL(LT_ERR_FORMAT, "%s: a name that is not UTF-8", file->shown);
        }
        (void)json_dumpf(line, stdout, 0);
        (void)putchar('\n');
        json_decref(line);
        return LT_OK;
    }
    if (file->modified_s > 0.0 && gmtime_r(&at, &tm) != NULL) {
        (void)strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", &tm);
    }
    if (snprintf(name, sizeof name, "%s", file->name) >= (int)sizeof name) {
        LT_FAIL(LT_ERR_LIMIT, "a name of %zu bytes", strlen(file->name));
    }
    lt_log_tame(name, false);
    printf("%19s %15lld  %s\n", date, (long long)file->size_bytes, name);
    return LT_OK;
}

static lt_err list(const char *place, const lt_copy_options *c, bool json) {
    listed l = {.json = json};
    char total[32];
    LT_TRY(lt_copy_list(place, c, print_file, &l));
    if (!json) {
        lt_log_info("%s: %lld file%s, %s", place, (long long)l.n_files, l.n_files == 1 ? "" : "s",
                    size_text(total, l.n_bytes));
    }
    return LT_OK;
}

static lt_err delete_objects(const char *place, const lt_copy_options *c, bool json) {
    int64_t n = 0;
    const char *prefix = strncmp(place, "s3://", 5) == 0 ? strchr(place + 5, '/') : NULL;
    if (prefix == NULL || prefix[1] == '\0') {
        LT_FAIL(LT_ERR_ARG, "--delete %s: give s3://BUCKET/KEY or s3://BUCKET/PREFIX/", place);
    }
    LT_TRY(lt_copy_delete(place, c, &n));
    if (n == 0) {
        LT_FAIL(LT_ERR_NOT_FOUND, "%s: there is no such object%s", place,
                place[strlen(place) - 1] == '/' ? "" : " (all below it: with a slash at the end)");
    }
    if (json) {
        printf("{\"event\": \"deleted\", \"files\": %lld}\n", (long long)n);
    } else {
        lt_log_info("%s: %lld object%s deleted", place, (long long)n, n == 1 ? "" : "s");
    }
    return LT_OK;
}

static lt_err run(const copy_options *o, const char *const *words, int n) {
    lt_copy_options c = lt_copy_defaults();
    lt_copy_report r = {0};
    char path[LT_PATH_BYTES];
    lt_err err;

    if ((o->list || o->delete) && (n != 1 || (o->list && o->delete))) {
        LT_FAIL(LT_ERR_ARG, "--%s takes one place and no target", o->list ? "list" : "delete");
    }
    c.n_connections = o->connections;
    c.part_bytes = o->part_bytes;
    c.rate_bytes = o->limit_rate;
    c.n_tries = o->tries;
    c.delay_s = o->delay_s;
    c.stall_s = o->stall_s;
    c.profile = o->profile;
    c.region = o->region;
    c.endpoint = o->endpoint;
    c.addressing = o->addressing;
    c.anonymous = o->anonymous;
    c.include = o->include;
    c.exclude = o->exclude;
    c.sha256 = o->sha256;
    c.force = o->force;
    if (o->list || o->delete) {
        return o->list ? list(words[0], &c, o->json) : delete_objects(words[0], &c, o->json);
    }
    if (n == 1 && (strstr(words[0], "://") == NULL || strncmp(words[0], "file:", 5) == 0)) {
        LT_FAIL(LT_ERR_ARG,
                "%s: copy takes a source and a target; only s3://, https:// and hf:// "
                "are copied to the cache without one",
                words[0]);
    }
    lt_copying_show(&c, o->json, true);
    err = n == 1 ? lt_copy_bring(path, words[0], &c) : lt_copy(words[0], words[1], &c, &r);
    lt_copying_shown();
    if (err == LT_ERR_INTERRUPTED) {
        return lt_error_set(err, "stopped; the same command continues from here");
    }
    LT_TRY(err);
    if (n == 1) {
        printf("%s\n", path);
        return LT_OK;
    }
    print_report(&r, words[0], words[1], o->json);
    return LT_OK;
}

int lt_verb_copy(int argc, char **argv);
int lt_verb_copy(int argc, char **argv) {
    static const char usage[] =
        "copy SOURCE TARGET [options] | copy hf://ORG/NAME | copy --list PLACE | "
        "copy --delete s3://...";
    static const char prose[] =
        "Copy files between folders, object stores and the model hub. Source: a file or folder, "
        "s3://BUCKET/KEY, s3://BUCKET/PREFIX/ (all below it), https://..., "
        "hf://[datasets/]ORG/NAME[@REVISION][/FILE]. Target: a file or folder, s3://... A source "
        "without a target is copied to the cache, and its path is printed.\nA target appears "
        "only when it is complete; after any interruption the same command continues. "
        "docs/platform/copy.md has examples.";
    const char *words[2];
    copy_options o;
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;

    if (!lt_verb_parse(&lt_verb_copy_options, &o, argc, argv, usage, prose, words, 2, &n,
                       &status)) {
        return status;
    }
    err = n > 0 ? run(&o, words, n)
                : lt_error_set(LT_ERR_ARG, "copy takes a source and a target; usage: lateen %s",
                               usage);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
