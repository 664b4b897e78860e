/* chat_source.c: see chat_source.h. */
#include "data/chat_source.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/error.h"
#include "base/file.h"
#include "data/chat_format.h"

static lt_err choose_template(lt_chat_template **out, const lt_chat_source_options *o) {
    lt_err err;
    char *text = NULL;
    size_t n = 0;
    if (o->template[0] == '\0') {
        err = lt_chat_template_open_model(out, o->tokenizer_path, o->tokenizer, NULL);
        return err == LT_ERR_NOT_FOUND
                   ? lt_error_set(err,
                                  "%s: no chat template; give one with %s: a file, or one of %s",
                                  o->tokenizer_path, o->option, lt_chat_format_names())
                   : err;
    }
    if (lt_chat_format_find(o->template) != NULL) {
        return lt_chat_template_open_format(out, o->template);
    }
    err = lt_file_read(&text, &n, o->template, LT_TEMPLATE_BYTES);
    if (err == LT_ERR_NOT_FOUND) {
        LT_FAIL(err, "%s %s: no such file, nor one of %s", o->option, o->template,
                lt_chat_format_names());
    }
    err = err == LT_OK ? lt_chat_template_open(out, text, n, o->template) : err;
    free(text);
    LT_TRY(err);
    return lt_chat_template_name_tokens(*out, o->tokenizer_path, o->tokenizer);
}

static uint64_t hash_text(uint64_t h, const char *text) {
    return XXH64(text != NULL ? text : "", text != NULL ? strlen(text) : 0, h + 1);
}

lt_err lt_chat_source_open(lt_chat_source *out, const lt_chat_source_options *o) {
    *out = (lt_chat_source){.hash = 0};
    LT_TRY(choose_template(&out->template, o));
    out->rows = (lt_chat_rows){.template = out->template,
                               .tokenizer = o->tokenizer,
                               .messages = o->messages,
                               .prompt = o->prompt,
                               .answer = o->answer,
                               .last_only = o->last_only};
    out->hash = hash_text(o->last_only, lt_chat_template_text(out->template));
    out->hash = hash_text(out->hash, o->messages);
    out->hash = hash_text(out->hash, o->prompt);
    out->hash = hash_text(out->hash, o->answer);
    return LT_OK;
}

void lt_chat_source_close(lt_chat_source *c) {
    lt_chat_template_close(c->template);
    c->template = NULL;
}
