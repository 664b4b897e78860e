/* chat_source.c: see chat_source.h. */
#include "cli/chat_source.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "base/file.h"
#include "data/chat_format.h"

#define TEMPLATE_BYTES ((size_t)4 << 20)

static lt_err choose_template(lt_chat_template **out, const char *asked, const lt_tokenizer *t,
                              const char *tokenizer_path) {
    lt_err err;
    char *text = NULL;
    size_t n = 0;
    if (asked[0] == '\0') {
        err = lt_chat_template_open_model(out, tokenizer_path, t, NULL);
        return err == LT_ERR_NOT_FOUND
                   ? lt_error_set(err,
                                  "%s: no chat template; give one with --chat-template: a file, or "
                                  "one of %s",
                                  tokenizer_path, lt_chat_format_names())
                   : err;
    }
    if (lt_chat_format_find(asked) != NULL) {
        return lt_chat_template_open_format(out, asked);
    }
    err = lt_file_read(&text, &n, asked, TEMPLATE_BYTES);
    if (err == LT_ERR_NOT_FOUND) {
        LT_FAIL(err, "--chat-template %s: no such file, nor one of %s", asked,
                lt_chat_format_names());
    }
    err = err == LT_OK ? lt_chat_template_open(out, text, n, asked) : err;
    free(text);
    LT_TRY(err);
    return lt_chat_template_name_tokens(*out, tokenizer_path, t);
}

static uint64_t hash_text(uint64_t h, const char *text) {
    return XXH64(text != NULL ? text : "", text != NULL ? strlen(text) : 0, h + 1);
}

lt_err lt_chat_source_open(lt_chat_source *out, const lt_chat_source_options *o, const char *prompt,
                           const char *answer, const lt_tokenizer *t, const char *tokenizer_path) {
    const bool pair = prompt[0] != '\0';
    *out = (lt_chat_source){.on = o->on || o->chat_template[0] != '\0'};
    if (!out->on) {
        return LT_OK;
    }
    LT_TRY(choose_template(&out->template, o->chat_template, t, tokenizer_path));
    out->rows = (lt_chat_rows){.template = out->template,
                               .tokenizer = t,
                               .messages = o->messages,
                               .prompt = pair ? prompt : NULL,
                               .answer = pair ? answer : NULL,
                               .last_only = o->turns != 0};
    out->hash = hash_text(out->rows.last_only, lt_chat_template_text(out->template));
    out->hash = hash_text(out->hash, o->messages);
    out->hash = hash_text(out->hash, out->rows.prompt);
    out->hash = hash_text(out->hash, out->rows.answer);
    return LT_OK;
}

void lt_chat_source_close(lt_chat_source *c) {
    lt_chat_template_close(c->template);
    c->template = NULL;
}
