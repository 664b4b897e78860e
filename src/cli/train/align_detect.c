/* align_detect.c: `lateen align detect`: whether a text carries the watermark of a key
 * (lateen/watermark.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "cli/train/align.h"
#include "cli/platform/copying.h"
#include "cli/opened.h"
#include "cli/verb.h"
#include "data/tokenizer/bpe.h"
#include "lateen/watermark.h"

#define DETECT_OPTIONS(X)                                                                          \
    X(STR, tokenizer, "tokenizer", "", 0, 0, "PATH",                                               \
      "tokenizer, or model that has one, of the model that wrote the text; not with --ids")        \
    X(STR, key, "key", "", 0, 1, "TEXT", "the key of the requests")                                \
    X(STR, scheme, "scheme", "gumbel", 0, 1, "NAME", "green, gumbel or exponential")               \
    X(F64, gamma, "gamma", "0.25", 0, 1, "", "green: share of green tokens")                       \
    X(I64, context, "context", "0", 0, LT_WATERMARK_CONTEXT, "N",                                  \
      "green, gumbel: tokens that decide the next one's numbers; 0: 1 for green, 4 for gumbel")    \
    X(I64, length, "length", "256", 1, LT_WATERMARK_LENGTH, "N",                                   \
      "exponential: places of the cycle of numbers")                                               \
    X(I64, resamples, "resamples", "99", 1, 1e6, "N",                                              \
      "exponential: random keys with which the key is compared; p is at least 1 / (N + 1)")        \
    X(I64, seed, "seed", "0", 0, 9e18, "", "seed of these keys")                                   \
    X(BOOL, ids, "ids", "false", 0, 0, "",                                                         \
      "the file is a JSON list of token ids, such as an answer's token_ids")                       \
    X(BOOL, json, "json", "false", 0, 0, "", "print one JSON object")

typedef struct {
    DETECT_OPTIONS(LT_OPTION_FIELD)
} detect_options;
#define LT_OPTION_STRUCT detect_options
static const lt_option rows[] = {DETECT_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("align detect", rows);

static lt_err check_idle(const detect_options *o, lt_watermark_scheme scheme) {
    const bool exponential = scheme == LT_WATERMARK_EXPONENTIAL;
    const lt_verb_use uses[] = {
        {"gamma", scheme == LT_WATERMARK_GREEN, "--scheme green"},
        {"context", !exponential, "--scheme green or gumbel"},
        {"length", exponential, "--scheme exponential"},
        {"resamples", exponential, "--scheme exponential"},
        {"seed", exponential, "--scheme exponential"},
        {"tokenizer", !o->ids, "a text: --ids has token ids"},
    };
    if (o->key[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "align detect needs the key of the watermark: --key TEXT");
    }
    return lt_verb_idle(&table, o, uses, sizeof uses / sizeof *uses);
}

static lt_err read_watermark(lt_watermark *w, const detect_options *o) {
    lt_watermark_scheme scheme;
    LT_TRY(lt_watermark_find(&scheme, o->scheme));
    LT_TRY(check_idle(o, scheme));
    *w = lt_watermark_defaults(scheme);
    w->key = lt_watermark_key(o->key, strlen(o->key));
    w->gamma = o->gamma;
    w->context = o->context > 0 ? o->context : w->context;
    w->length = o->length;
    return lt_watermark_check(w);
}

static lt_err encode_text(detect_options *o, const char *text, lt_ids *out) {
    lt_err err = LT_OK;
    lt_tokenizer *t = NULL;
    lt_tokenizer_scratch *s = NULL;
    if (o->tokenizer[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "align detect: a text needs --tokenizer; token ids need --ids");
    }
    LT_TRY_DONE(lt_cli_bring_option(o->tokenizer));
    LT_TRY_DONE(lt_tokenizer_open(&t, o->tokenizer, NULL));
    LT_TRY_DONE(lt_tokenizer_scratch_open(&s, t));
    LT_TRY_DONE(lt_tokenizer_encode(t, s, text, strlen(text), 0, out));
done:
    lt_tokenizer_scratch_close(s);
    lt_tokenizer_close(t);
    return err;
}

static lt_err read_ids(const char *path, const char *text, lt_ids *out) {
    json_t *list = NULL;
    lt_err err = lt_json_parse(&list, text, strlen(text), path);
    if (err == LT_OK && !json_is_array(list)) {
        err = lt_error_set(LT_ERR_FORMAT, "%s: not a list of token ids", path);
    }
    for (size_t i = 0; err == LT_OK && i < json_array_size(list); i++) {
        const json_t *x = json_array_get(list, i);
        const json_int_t value = json_integer_value(x);
        const uint32_t id = (uint32_t)value;
        if (!json_is_integer(x) || value < 0 || value > INT32_MAX) {
            err = lt_error_set(LT_ERR_FORMAT, "%s: entry %zu is not a token id", path, i);
        } else {
            err = lt_ids_append(out, &id, 1);
        }
    }
    json_decref(list);
    return err;
}

static lt_err detect(detect_options *o, const char *path) {
    lt_err err = LT_OK;
    lt_watermark w;
    lt_watermark_report r;
    lt_ids ids = {0};
    char *text = NULL;
    LT_TRY(read_watermark(&w, o));
    LT_TRY(lt_prompt_read(&text, path));
    LT_TRY_DONE(o->ids ? read_ids(path, text, &ids) : encode_text(o, text, &ids));
    LT_TRY_DONE(lt_watermark_detect(&w, (const int32_t *)ids.data, (int64_t)ids.n, o->resamples,
                                    (uint64_t)o->seed, &r));
    printf(o->json ? "{\"scheme\":\"%s\",\"tokens\":%lld,\"scored\":%lld,\"statistic\":%.9g,"
                     "\"z\":%.9g,\"p\":%.9g}\n"
                   : "%s, %lld tokens, %lld of them scored: statistic %.6g, z %.3f, p %.3g\n",
           o->scheme, (long long)ids.n, (long long)r.n_scored, r.statistic, r.z, r.p);
done:
    lt_ids_free(&ids);
    lt_prompt_free(text);
    return err;
}

int lt_align_detect(int argc, char **argv) {
    detect_options o;
    const char *path = NULL;
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;
    if (!lt_verb_parse(
            &table, &o, argc, argv, "align detect FILE --tokenizer PATH --key TEXT [--scheme NAME]",
            "Test whether a text carries the watermark of a key. p is the probability "
            "that a text written\nwithout the key scores at least as high. FILE is -: standard "
            "input.",
            &path, 1, &n, &status)) {
        return status;
    }
    if (n != 1) {
        return lt_verb_fail(lt_error_set(LT_ERR_ARG, "align detect needs a file"));
    }
    err = detect(&o, path);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
