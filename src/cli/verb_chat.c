/* verb_chat.c: `lateen chat`: talk to a model on the terminal. At each turn the model's chat
 * template renders the whole conversation, as the server does for a request; the beginning that its
 * tokens share with the key/value cache is not computed again.
 *
 *   /reset           forget the conversation
 *   /system TEXT     forget it and set the system message
 *   /quit, Ctrl-D    end */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/opened.h"
#include "cli/utf8_text.h"
#include "cli/verb.h"
#include "data/chat_format.h"
#include "data/chat_template.h"
#include "base/file.h"
#include "lateen/generate.h"
#include "tensor/backend.h"

#define CHAT_OPTIONS(X)                                                                            \
    LT_OPENED_OPTIONS(X)                                                                           \
    LT_OPENED_LORA_OPTION(X)                                                                       \
    X(TEXT, system, "system", "", 0, 0, "TEXT", "system message")                                  \
    LT_UTF8_OPTION(X)                                                                              \
    X(STR, format, "format", "auto", 0, 1, "NAME",                                                 \
      "auto (the model's template), chatml, llama3, gemma, zephyr, mistral or plain")              \
    X(STR, chat_template, "chat-template", "", 0, 0, "FILE", "use this Jinja template instead")    \
    X(I64, max_tokens, "max-tokens", "512", 1, 1e9, "N", "most tokens of an answer")               \
    X(I64, context, "context", "4096", 16, 1e9, "N", "most tokens of the conversation")            \
    LT_SAMPLING_OPTIONS(X)                                                                         \
    X(BOOL, stats, "stats", "false", 0, 0, "", "print rates after each answer on standard error")

typedef struct {
    CHAT_OPTIONS(LT_OPTION_FIELD)
} chat_options;
#define LT_OPTION_STRUCT chat_options
static const lt_option rows[] = {CHAT_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_chat_options = LT_OPTION_TABLE("chat", rows);

typedef struct {
    const chat_options *o;
    lt_sampling sampling;
    lt_logit_bias *bias; /* Biases of sampling. */
    lt_opened opened;
    lt_session *session;
    lt_chat_template *template;
    json_t *messages; /* The conversation. */
    lt_text mended;   /* Room for a message that was not UTF-8. */
    char *said;       /* The last answer; owned. */
    size_t said_bytes;
    lt_ids tokens; /* Tokens of the conversation: those that the session holds, and perhaps more. */
} chat;

static lt_err append(chat *c, const char *text, size_t n) {
    char *grown = realloc(c->said, c->said_bytes + n + 1);
    if (grown == NULL) {
        LT_FAIL(LT_ERR_OOM, "an answer of %zu bytes", c->said_bytes + n);
    }
    c->said = grown;
    memcpy(c->said + c->said_bytes, text, n);
    c->said_bytes += n;
    c->said[c->said_bytes] = '\0';
    return LT_OK;
}

static bool print_text(void *ctx, const char *text, size_t bytes) {
    chat *c = ctx;
    return append(c, text, bytes) == LT_OK && fwrite(text, 1, bytes, stdout) == bytes &&
           fflush(stdout) == 0;
}

/* For a model without a template: infer the format from its special tokens. */
static const char *guess_format(const lt_tokenizer *t) {
    for (const char *const *p = (const char *const[]){"chatml", "llama3", "gemma", NULL};
         *p != NULL; p++) {
        const lt_chat_format *f = lt_chat_format_find(*p);
        if (lt_tokenizer_find(t, f->mark, strlen(f->mark)) != LT_TOKEN_NONE) {
            return f->name;
        }
    }
    return "plain";
}

static lt_err choose_template(chat *c) {
    lt_err err;
    if (c->o->chat_template[0] != '\0') {
        char *text = NULL;
        size_t n = 0;
        LT_TRY(lt_file_read(&text, &n, c->o->chat_template, (size_t)4 << 20));
        err = lt_chat_template_open(&c->template, text, n, c->o->chat_template);
        free(text);
        return err;
    }
    if (strcmp(c->o->format, "auto") != 0) {
        return lt_chat_template_open_format(&c->template, c->o->format);
    }
    err = lt_chat_template_open_model(&c->template, c->opened.path, c->opened.tokenizer, NULL);
    if (err == LT_ERR_NOT_FOUND && c->o->tokenizer[0] != '\0') {
        err = lt_chat_template_open_model(&c->template, c->o->tokenizer, c->opened.tokenizer, NULL);
    }
    if (err == LT_ERR_NOT_FOUND) {
        err = lt_chat_template_open_format(&c->template, guess_format(c->opened.tokenizer));
    }
    return err;
}

static void forget(chat *c) {
    lt_session_truncate(c->session, 0, 0);
    c->tokens.n = 0;
}

static lt_err say(chat *c, const char *role, const char *text, size_t n) {
    json_t *m = json_pack("{s:s,s:s%}", "role", role, "content", text, n);
    if (m == NULL || json_array_append_new(c->messages, m) != 0) {
        LT_FAIL(LT_ERR_ARG, "the message is not UTF-8");
    }
    return LT_OK;
}

/* Render the conversation as text. */
static lt_err compose(chat *c, char **text) {
    json_t *context = json_pack("{s:O,s:b}", "messages", c->messages, "add_generation_prompt", 1);
    size_t n = 0;
    lt_err err;
    if (context == NULL) {
        LT_FAIL(LT_ERR_OOM, "conversation");
    }
    err = lt_chat_template_render(c->template, context, text, &n);
    json_decref(context);
    return err;
}

static lt_err answer(chat *c, const char *words) {
    lt_generate_options g = lt_generate_defaults();
    lt_generate_stats st = {0};
    char *text = NULL;
    lt_err err = LT_OK;

    g.sampling = c->sampling;
    g.max_tokens = c->o->max_tokens;
    g.tokens = &c->tokens;
    LT_TRY(lt_utf8_mend_one("message", c->o->utf8 == 1, &words, &c->mended));
    LT_TRY(say(c, "user", words, strlen(words)));
    LT_TRY_DONE(compose(c, &text));
    g.encode_flags = LT_ENCODE_PARSE_SPECIAL;
    g.is_chat = true;
    c->said_bytes = 0;
    LT_TRY_DONE(lt_generate(c->session, c->opened.model, c->opened.tokenizer, text, &g, print_text,
                            c, &st));
    LT_TRY_DONE(say(c, "assistant", c->said != NULL ? c->said : "", c->said_bytes));
    putchar('\n');
    if (c->o->stats) {
        fprintf(stderr, "[%lld tokens read in %.2f s, %lld written at %.1f tok/s]\n",
                (long long)st.prompt_tokens, st.prompt_s, (long long)st.new_tokens,
                lt_generate_rate(&st));
    }
done:
    free(text);
    return err;
}

/* Begin a new conversation; system "": without a system message. */
static lt_err begin(chat *c, const char *text) {
    forget(c);
    json_array_clear(c->messages);
    LT_TRY(lt_utf8_mend_one("system message", c->o->utf8 == 1, &text, &c->mended));
    return text[0] != '\0' ? say(c, "system", text, strlen(text)) : LT_OK;
}

/* Keep the system message and forget the rest. */
static void restart(chat *c) {
    const json_t *first = json_array_get(c->messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    const bool keeps = role != NULL && strcmp(role, "system") == 0;
    while (json_array_size(c->messages) > (keeps ? 1 : 0)) {
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
    }
    forget(c);
}

/* Handle one line of the user. *over: the conversation ends. */
static lt_err on_line(chat *c, char *line, bool *over) {
    lt_err err;
    line[strcspn(line, "\r\n")] = '\0';
    if (line[0] == '\0') {
        return LT_OK;
    }
    if (strcmp(line, "/quit") == 0) {
        *over = true;
        return LT_OK;
    }
    if (strcmp(line, "/reset") == 0) {
        restart(c);
        return LT_OK;
    }
    if (strncmp(line, "/system ", 8) == 0) {
        return begin(c, line + 8);
    }
    err = answer(c, line);
    /* The conversation has outgrown the context: report it and begin again. */
    if (err == LT_ERR_LIMIT) {
        fprintf(stderr, "lateen: %s; the conversation is forgotten (--context gives more room)\n",
                lt_error_message());
        restart(c);
        return LT_OK;
    }
    return err;
}

static lt_err talk(chat *c) {
    lt_err err = LT_OK;
    const bool terminal = isatty(STDIN_FILENO) != 0;
    char *line = NULL;
    size_t room = 0;
    bool over = false;

    while (!over) {
        if (terminal) {
            printf("> ");
            fflush(stdout);
        }
        if (getline(&line, &room, stdin) < 0) {
            break;
        }
        LT_TRY_DONE(on_line(c, line, &over));
    }
done:
    free(line);
    return err;
}

static lt_err run(chat_options *o, int argc, char **argv) {
    lt_err err = LT_OK;
    chat c = {.o = o};
    char found[LT_PATH_BYTES];
    const char *model = o->model;
    int64_t room;

    lt_device_few_queues();
    if (model[0] == '\0') {
        LT_TRY_DONE(lt_opened_default_model(found, LT_DEFAULT_TALKS));
        model = found;
        if (isatty(STDIN_FILENO) != 0 && strstr(found, "/reasoner-") != NULL) {
            fprintf(stderr, "%s solves small school problems. Ask, for example: %s\n", found,
                    "Multiply 42 by 23.");
        }
    }
    if (o->chat_template[0] != '\0' && strcmp(o->format, "auto") != 0) {
        LT_FAIL_DONE(LT_ERR_ARG, "--format %s beside --chat-template %s: give one of them",
                     o->format, o->chat_template);
    }
    LT_TRY_DONE(lt_opened_open(&c.opened, model, o->lora, o->tokenizer, (lt_opened_dtype)o->dtype,
                               o->device, o->threads));
    if (o->generation_config == 0) {
        LT_TRY_DONE(lt_opened_defaults(c.opened.model, &lt_verb_chat_options, o, argc, argv));
    }
    c.sampling = LT_SAMPLING_OF(o);
    LT_TRY_DONE(lt_bias_read(&c.sampling, &c.bias, o->logit_bias));
    room = lt_model_spec_context(lt_model_get_spec(c.opened.model));
    room = o->context < room ? o->context : room;
    LT_TRY_DONE(choose_template(&c));
    LT_TRY_DONE(lt_session_open(&c.session, c.opened.model, 1, room));
    c.messages = json_array();
    LT_TRY_DONE(begin(&c, o->system));
    LT_TRY_DONE(talk(&c));
done:
    lt_session_close(c.session);
    lt_opened_close(&c.opened);
    lt_chat_template_close(c.template);
    json_decref(c.messages);
    lt_text_free(&c.mended);
    free(c.said);
    free(c.bias);
    lt_ids_free(&c.tokens);
    return err;
}

int lt_verb_chat(int argc, char **argv);
int lt_verb_chat(int argc, char **argv) {
    static const char prose[] = "Talk to a model; each line is a turn. /reset forgets the "
                                "conversation, /system TEXT sets the system message, /quit ends.";
    chat_options o;
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;

    if (!lt_verb_parse(&lt_verb_chat_options, &o, argc, argv, "chat [--model M] [options]", prose,
                       NULL, 0, &n, &status)) {
        return status;
    }
    err = run(&o, argc, argv);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
