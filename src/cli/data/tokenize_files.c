/* tokenize_files.c: see tokenize_files.h. data/tokenize.c does the work; this file has the encoder,
 * the progress line, the signals and the statistics. */
#include "cli/data/tokenize_files.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/thread.h"
#include "data/encode_workers.h"

#define PLAIN_LINE_EVERY_S 10

typedef struct {
    const lt_tokenizer *t;
    lt_encode_workers workers;
    unsigned flags;
    const lt_chat_rows *chat;
} encoder;

typedef struct {
    lt_progress line;
    double from_s;
    uint64_t from_tokens;
    bool begun;
} progress;

static volatile sig_atomic_t stop_asked;

static void on_signal(int number) {
    (void)number;
    stop_asked = 1;
}

static lt_err encode(void *ctx, int worker, const char *text, size_t bytes, lt_id_buffer *out) {
    encoder *e = ctx;
    lt_ids *ids = &e->workers.ids[worker];
    ids->n = 0;
    LT_TRY(lt_tokenizer_encode(e->t, e->workers.scratch[worker], text, bytes, e->flags, ids));
    return lt_encode_put(out, NULL, ids->data, NULL, ids->n);
}

/* Encode a line that is a conversation. The marks of lt_chat_rows are LT_MASK_*: 1 is a label. */
static lt_err encode_chat(void *ctx, int worker, const lt_record_line *line, lt_id_buffer *out,
                          lt_text_buffer *mask, size_t *text_bytes) {
    encoder *e = ctx;
    lt_ids *ids = &e->workers.ids[worker];
    unsigned char *marks = NULL;
    lt_err err = LT_OK;
    ids->n = 0;
    LT_TRY_DONE(lt_chat_rows_encode(e->chat, e->workers.scratch[worker], line->text, line->bytes,
                                    ids, &marks, text_bytes));
    LT_TRY_DONE(lt_encode_put(out, mask, ids->data, marks, ids->n));
done:
    free(marks);
    return err;
}

static void show(void *ctx, const lt_tokenize_stats *s) {
    progress *p = ctx;
    const double elapsed_s = lt_clock_s() - p->from_s;
    const double done = (double)(s->file_bytes - s->resumed_bytes),
                 left = (double)(s->file_bytes_total - s->file_bytes);
    char eta[LT_CLOCK_TEXT_BYTES] = "?";

    if (!p->begun) { /* Tokens of an earlier run do not count towards the speed. */
        p->begun = true;
        p->from_tokens = s->resumed_bytes > 0 ? s->tokens : 0;
    }
    if (s->file_bytes_total > 0 && done > 0) {
        lt_duration_text(eta, left * elapsed_s / done);
    }
    lt_progress_show(
        &p->line, "tokenize %5.1f %%  %llu documents  %.2f M tokens  %.2f M tokens/s  %s left",
        s->file_bytes_total > 0 ? 100.0 * (double)s->file_bytes / (double)s->file_bytes_total : 0.0,
        (unsigned long long)s->documents, (double)s->tokens / 1e6,
        (double)(s->tokens - p->from_tokens) / elapsed_s / 1e6, eta);
}

/* The ids of --append-eod and --prepend-bos, or -1. */
static lt_err document_marks(int64_t *bos, int64_t *eod, const lt_tokenize_files_options *o,
                             const lt_tokenizer *t) {
    const lt_tokenizer_info info = lt_tokenizer_describe(t);
    const uint32_t end = o->eod[0] != '\0' ? lt_tokenizer_find(t, o->eod, strlen(o->eod))
                                           : info.eos;
    *bos = *eod = -1;
    if (o->eod[0] != '\0' && end == LT_TOKEN_NONE) {
        LT_FAIL(LT_ERR_ARG, "--eod: the tokenizer has no token '%s'", o->eod);
    }
    if (o->append_eod || o->eod[0] != '\0') {
        if (end == LT_TOKEN_NONE) {
            LT_FAIL(LT_ERR_ARG,
                    "--append-eod: the tokenizer names no end token; say which with --eod");
        }
        *eod = end;
    }
    if (o->prepend_bos) {
        if (info.bos == LT_TOKEN_NONE) {
            LT_FAIL(LT_ERR_ARG, "--prepend-bos: the tokenizer names no BOS token");
        }
        *bos = info.bos;
    }
    return LT_OK;
}

static void print_stats(const lt_tokenize_stats *s, const char *prefix, bool masked,
                        double elapsed_s, double encoded_mb) {
    if (s->was_complete) {
        printf("%s: already complete\n", prefix);
    }
    printf("documents    %llu", (unsigned long long)s->documents);
    if (s->empty > 0) {
        printf(" (%llu empty ones left out)", (unsigned long long)s->empty);
    }
    printf("\ntokens       %llu\nbytes/token  %.3f\n", (unsigned long long)s->tokens,
           s->tokens > 0 ? (double)s->text_bytes / (double)s->tokens : 0.0);
    if (masked) {
        printf("labels       %llu (%.1f %% of the tokens)\n", (unsigned long long)s->labels,
               s->tokens > 0 ? 100.0 * (double)s->labels / (double)s->tokens : 0.0);
    }
    if (!s->was_complete) {
        printf("time         %.2f s, %.1f MB of text a second\n", elapsed_s,
               encoded_mb / elapsed_s);
    }
    printf("written      %s.bin  %s.idx  %s.json", prefix, prefix, prefix);
    if (masked) {
        printf("  %s.mask", prefix);
    }
    printf("\n");
}

lt_err lt_tokenize_files_run(const lt_tokenize_files_options *o, const char *const *inputs,
                             size_t n_inputs, const lt_tokenizer *t, const char *tokenizer_path,
                             unsigned flags, const lt_chat_source *chat) {
    const struct sigaction asked = {.sa_handler = on_signal};
    struct sigaction before_int, before_term;
    char journal[LT_PATH_BYTES + 16];
    lt_err err = LT_OK;
    lt_tokenize_stats stats = {0};
    encoder e = {.t = t,
                 .flags = flags & LT_ENCODE_PARSE_SPECIAL,
                 .chat = chat != NULL ? &chat->rows : NULL};
    progress p = {.line = {.plain_every_s = PLAIN_LINE_EVERY_S}, .from_s = lt_clock_s()};
    lt_tokenize_options how = {
        .inputs = inputs,
        .n_inputs = n_inputs,
        .text = {.format = (lt_text_format)o->format,
                 .field = o->field,
                 .split_on = o->split_on,
                 .utf8 = o->utf8 == LT_TOKENIZE_UTF8_REPLACE ? LT_UTF8_REPLACE : LT_UTF8_FAIL},
        .prompt_field = o->prompt_field[0] != '\0' && chat == NULL ? o->prompt_field : NULL,
        .encode_record = chat != NULL ? encode_chat : NULL,
        .record_hash = chat != NULL ? chat->hash : 0,
        .out_prefix = o->out,
        .vocab_size = lt_tokenizer_describe(t).n_ids,
        .tokenizer = tokenizer_path,
        .n_threads = o->threads > 0 ? (int)o->threads : lt_thread_count(),
        .overwrite = o->overwrite,
        .commit_every_s = o->commit_every,
        .encode = encode,
        .encode_ctx = &e,
        .progress = show,
        .progress_ctx = &p,
        .stop = &stop_asked};

    if (lt_file_is_dir(o->out) || lt_path_has_suffix(o->out, "/")) {
        LT_FAIL(LT_ERR_ARG, "--out %s is a folder; name the shard in it, for example %s%sshard",
                o->out, o->out, lt_path_has_suffix(o->out, "/") ? "" : "/");
    }
    stop_asked = 0;
    sigaction(SIGINT, &asked, &before_int);
    sigaction(SIGTERM, &asked, &before_term);
    LT_TRY_DONE(document_marks(&how.bos_id, &how.eod_id, o, t));
    LT_TRY_DONE(lt_tokenize_hash(&how.tokenizer_hash, t, tokenizer_path));
    LT_TRY_DONE(lt_encode_workers_open(&e.workers, t, how.n_threads));
    LT_TRY_DONE(lt_tokenize_files(&how, &stats));
    lt_progress_end(&p.line);
    print_stats(&stats, o->out, chat != NULL || how.prompt_field != NULL, lt_clock_s() - p.from_s,
                (double)(stats.text_bytes - stats.resumed_text_bytes) / 1e6);
done:
    lt_progress_end(&p.line);
    snprintf(journal, sizeof journal, "%s.journal", o->out);
    if (err == LT_ERR_IO && stats.documents > 0 && lt_file_exists(journal)) {
        lt_log_info("%s: what is written is kept; the same command continues from there", o->out);
    }
    sigaction(SIGINT, &before_int, NULL);
    sigaction(SIGTERM, &before_term, NULL);
    lt_encode_workers_close(&e.workers);
    return err;
}
