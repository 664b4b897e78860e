/* align_logprobs.c: `lateen align logprobs FILE.jsonl... --out FOLDER`: computes a teacher's most
 * likely tokens at each learnt token (align/teacher_logprobs.h). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "align/teacher_logprobs.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "cli/train/align.h"
#include "cli/platform/copying.h"
#include "cli/opened.h"
#include "cli/verb.h"
#include "data/conversations.h"
#include "data/text_reader.h"
#include "tensor/backend.h"

#define MOST_FILES 64

#define LOGPROBS_OPTIONS(X)                                                                        \
    LT_OPENED_MODEL_OPTIONS(X)                                                                     \
    X(ENUM, dtype, "dtype", "fp32", 0, 0, "fp32|bf16", "storage of weights and activations")       \
    X(STR, out, "out", "", 0, 1, "FOLDER", "where the files go, for distill.logprobs")             \
    X(I64, top_k, "top-k", "64", 1, LT_TEACHER_LOGPROBS_MOST, "K",                                 \
      "most likely vocabulary entries to write for each token")                                    \
    X(F64, temperature, "temperature", "1", 0, 1e3, "",                                            \
      "temperature of the probabilities; distill.temperature must be the same",                    \
      LT_OPTION_ABOVE_MIN)                                                                         \
    X(I64, seq, "seq", "1024", 2, 1e7, "N",                                                        \
      "tokens of a conversation, as data.seq of the run: what is longer is cut or left out")       \
    X(I64, batch, "batch", "8", 1, 65536, "ROWS", "conversations of one forward pass")             \
    X(I64, part, "part", "256", 1, 1e6, "N", "conversations of one file")                          \
    X(STR, chat_template, "chat-template", "", 0, 0, "NAME|FILE",                                  \
      "template of the conversations; empty: the model's own")                                     \
    X(ENUM, chat_turns, "chat-turns", "all", 0, 0, "all|last",                                     \
      "which of the assistant's turns are learnt")                                                 \
    X(ENUM, bad_rows, "bad-rows", "skip", 0, 0, LT_BAD_ROWS_CHOICES,                               \
      "conversations that the template refuses, or that have nothing to learn: skip them, or "     \
      "fail")                                                                                      \
    X(ENUM, too_long, "too-long", "cut", 0, 0, LT_TOO_LONG_CHOICES,                                \
      "conversations of more than --seq tokens")                                                   \
    X(BOOL, quiet, "quiet", "false", 0, 0, "", "print errors only")

typedef struct {
    LOGPROBS_OPTIONS(LT_OPTION_FIELD)
} logprobs_options;
#define LT_OPTION_STRUCT logprobs_options
static const lt_option rows[] = {LOGPROBS_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("align logprobs", rows);

static const char usage[] = "align logprobs FILE.jsonl... --model TEACHER --out FOLDER";
static const char prose[] =
    "Write a teacher's log-probabilities of conversations: for each token that is learnt, the most "
    "likely\nentries of the vocabulary, for `lateen train --objective.kind distill "
    "--distill.logprobs FOLDER`.\nThe options of the conversations must be those of the run, and "
    "the files those of its data.train,\nin their order. After an interruption, the same command "
    "continues where it stopped.";

typedef struct {
    const logprobs_options *o;
    lt_opened opened;
    lt_chat_source chat;
    lt_dialogues dialogues;
    lt_pass *pass;
    lt_progress line;
} job;

static lt_err add_file(job *j, const char *path) {
    const logprobs_options *o = j->o;
    char folder[LT_PATH_BYTES], prefix[LT_PATH_BYTES];
    lt_conversations_stats stats;
    if (!lt_text_path_is_jsonl(path)) {
        LT_FAIL(LT_ERR_ARG,
                "%s: conversations are JSON lines, in files named .jsonl, .ndjson or "
                ".json",
                path);
    }
    LT_TRY(lt_path_join(folder, o->out, "data"));
    LT_TRY(lt_conversations_shard(prefix, &stats,
                                  &(lt_conversations_options){.path = path,
                                                              .folder = folder,
                                                              .source = &j->chat,
                                                              .tokenizer_path = j->opened.path,
                                                              .longest = o->seq,
                                                              .bad_rows = (lt_bad_rows)o->bad_rows,
                                                              .too_long = (lt_too_long)o->too_long,
                                                              .n_threads = lt_thread_count()}));
    if (!o->quiet) {
        lt_log_info("%s: %" PRIu64 " conversations, %" PRIu64 " tokens, of which %" PRIu64
                    " are learnt; %" PRIu64 " left out",
                    path, stats.documents, stats.tokens, stats.labels, stats.left_out);
    }
    return lt_dialogues_add(&j->dialogues, prefix);
}

static lt_err open_all(job *j, const char **files, int n) {
    const logprobs_options *o = j->o;
    const lt_model_spec *spec;
    LT_TRY(lt_opened_open(&j->opened, o->model, "", o->tokenizer,
                          o->dtype == 0 ? LT_OPENED_F32 : LT_OPENED_BF16, o->device, o->threads));
    spec = lt_model_get_spec(j->opened.model);
    LT_TRY(lt_align_check_model(j->opened.model, "align logprobs", o->seq));
    if (o->top_k > spec->vocab_size) {
        LT_FAIL(LT_ERR_ARG, "--top-k %" PRId64 " of a vocabulary of %" PRId64 " tokens", o->top_k,
                spec->vocab_size);
    }
    LT_TRY(lt_align_open_chat(&j->chat, &j->opened, o->tokenizer, o->chat_template,
                              o->chat_turns != 0));
    LT_TRY(lt_file_make_dirs(o->out));
    for (int i = 0; i < n; i++) {
        LT_TRY(add_file(j, files[i]));
    }
    return lt_pass_open(&j->pass, j->opened.model,
                        &(lt_pass_options){.batch = o->batch,
                                           .seq = o->seq,
                                           .on_device = !j->opened.device->backend->host_memory});
}

static void progress(void *ctx, int64_t done, int64_t all) {
    job *j = ctx;
    if (!j->o->quiet) {
        lt_progress_show(&j->line, "%" PRId64 " of %" PRId64 " conversations", done, all);
    }
}

static lt_err run(job *j, const char **files, int n) {
    const logprobs_options *o = j->o;
    lt_teacher_logprobs_stats stats;
    LT_TRY(open_all(j, files, n));
    LT_TRY(lt_teacher_logprobs_write(&(lt_teacher_logprobs_options){.folder = o->out,
                                                                    .model = o->model,
                                                                    .dialogues = &j->dialogues,
                                                                    .pass = j->pass,
                                                                    .teacher = j->opened.model,
                                                                    .k = o->top_k,
                                                                    .per_part = o->part,
                                                                    .rows = o->batch,
                                                                    .seq = o->seq,
                                                                    .temperature = o->temperature,
                                                                    .progress = progress,
                                                                    .ctx = j},
                                     &stats));
    if (!o->quiet) {
        lt_progress_end(&j->line);
        lt_log_info("%s: %" PRId64 " tokens for each of %" PRId64 " tokens of %" PRId64
                    " conversations, %" PRId64 " of these from an earlier start",
                    o->out, o->top_k, stats.places, stats.conversations, stats.kept);
    }
    return LT_OK;
}

int lt_align_logprobs(int argc, char **argv) {
    logprobs_options o;
    job j = {.o = &o, .line = {.plain_every_s = 10}};
    const char *files[MOST_FILES];
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;
    if (!lt_verb_parse(&table, &o, argc, argv, usage, prose, files, MOST_FILES, &n, &status)) {
        return status;
    }
    if (n == 0 || o.out[0] == '\0') {
        return lt_verb_fail(lt_error_set(LT_ERR_ARG, "align: usage: lateen %s", usage));
    }
    err = run(&j, files, n);
    lt_pass_close(j.pass);
    lt_dialogues_close(&j.dialogues);
    lt_chat_source_close(&j.chat);
    lt_opened_close(&j.opened);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
