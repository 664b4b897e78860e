/* chat_data.c: see chat_data.h. */
#include "train/chat_data.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "data/conversations.h"
#include "data/text_reader.h"

#define TEMPLATE_OPTION "data.chat_template"

static bool names_chats(const char *mixture, const char *option) {
    lt_mixture *m = calloc(1, sizeof *m);
    bool any = false;
    if (m != NULL && lt_mixture_parse(m, mixture, option) == LT_OK) {
        for (int64_t i = 0; i < m->n_sources; i++) {
            any = any || lt_text_path_is_jsonl(m->sources[i].path);
        }
    }
    free(m);
    return any;
}

bool lt_recipe_has_chats(const lt_recipe *r) {
    return names_chats(r->train, "data.train") || names_chats(r->valid, "data.valid");
}

lt_err lt_chat_data_resolve(lt_recipe *r) {
    const bool chats = names_chats(r->train, "data.train");
    if (r->packing == LT_RECIPE_PACK_AUTO && r->objective == LT_RECIPE_OBJECTIVE_sft) {
        r->packing = chats ? LT_RECIPE_PACK_BEST_FIT : LT_RECIPE_PACK_STREAM;
    }
    if (lt_recipe_has_chats(r) && r->tokenizer[0] == '\0') {
        if (r->init[0] == '\0') {
            LT_FAIL(LT_ERR_ARG,
                    "%s holds conversations, and there is no tokenizer for them: give "
                    "data.tokenizer, or model.init, which has one",
                    chats ? r->train : r->valid);
        }
        memcpy(r->tokenizer, r->init, sizeof r->tokenizer);
    }
    return LT_OK;
}

static lt_err open_from(lt_chat_source *out, const lt_recipe *r, const lt_tokenizer *t,
                        const char *path) {
    return lt_chat_source_open(out, &(lt_chat_source_options){.tokenizer = t,
                                                              .tokenizer_path = path,
                                                              .template = r->chat_template,
                                                              .option = TEMPLATE_OPTION,
                                                              .messages = "messages",
                                                              .last_only = r->chat_turns != 0});
}

lt_err lt_chat_data_open(lt_chat_source *out, const lt_recipe *r, const lt_tokenizer *t) {
    lt_err err;
    *out = (lt_chat_source){.hash = 0};
    if (!lt_recipe_has_chats(r)) {
        return LT_OK;
    }
    err = open_from(out, r, t, r->tokenizer);
    if (err == LT_ERR_NOT_FOUND && r->chat_template[0] == '\0' && r->init[0] != '\0') {
        err = open_from(out, r, t, r->init);
    }
    LT_TRY(err);
    if (r->objective > LT_RECIPE_OBJECTIVE_distill) {
        return LT_OK; /* Its files say which tokens are learnt. */
    }
    lt_log_info(
        "conversations: template %s; what is learnt: %s, found by %s",
        r->chat_template[0] != '\0' ? r->chat_template : "of the model",
        r->chat_turns != 0 ? "the last turn if it is the assistant's" : "the assistant's turns",
        lt_chat_template_marks_answers(out->template) ? "the template's {% generation %} tags"
                                                      : "the difference of prefixes");
    return LT_OK;
}

static void tell(const char *path, const lt_conversations_stats *s) {
    lt_log_info("%s: %" PRIu64 " conversations, %" PRIu64 " tokens, of which %" PRIu64
                " are learnt (%.1f %%)%s",
                path, s->documents, s->tokens, s->labels,
                100.0 * (double)s->labels / (double)s->tokens,
                s->existed ? "; tokens from an earlier start" : "");
    if (s->left_out > 0 || s->cut > 0) {
        lt_log_warn("%s: %" PRIu64 " conversations left out, %" PRIu64 " cut", path, s->left_out,
                    s->cut);
    }
}

static lt_err read_one(lt_mixture *m, int64_t i, const lt_recipe *r, const lt_chat_source *source) {
    lt_loader_source *s = &m->sources[i];
    char folder[LT_PATH_BYTES], prefix[LT_PATH_BYTES];
    lt_conversations_stats stats;
    LT_TRY(lt_path_join(folder, r->out, "data"));
    LT_TRY(lt_conversations_shard(prefix, &stats,
                                  &(lt_conversations_options){.path = s->path,
                                                              .folder = folder,
                                                              .source = source,
                                                              .tokenizer_path = r->tokenizer,
                                                              .longest = r->seq,
                                                              .bad_rows = (lt_bad_rows)r->bad_rows,
                                                              .too_long = (lt_too_long)r->too_long,
                                                              .n_threads = lt_thread_count()}));
    tell(s->path, &stats);
    m->made[i] = strdup(prefix);
    if (m->made[i] == NULL) {
        LT_FAIL(LT_ERR_OOM, "path of a shard");
    }
    s->path = m->made[i];
    return LT_OK;
}

lt_err lt_chat_data_read(lt_mixture *m, const char *option, const lt_recipe *r,
                         const lt_chat_source *source) {
    for (int64_t i = 0; i < m->n_sources; i++) {
        if (lt_text_path_is_jsonl(m->sources[i].path)) {
            const lt_err err = read_one(m, i, r, source);
            if (err != LT_OK) {
                return lt_error_prefix(err, "%s", option);
            }
        }
    }
    return LT_OK;
}
