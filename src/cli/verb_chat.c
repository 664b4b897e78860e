/* verb_chat.c: `lateen chat`: talk to a model on the terminal. The conversation stays in the key/value cache: each turn is read once.
 *
 *   /reset   forget the conversation      /system TEXT   forget it and set the system message      /quit, Ctrl-D   end */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/opened.h"
#include "cli/verb.h"
#include "data/chat_format.h"
#include "lateen/generate.h"

#define CHAT_OPTIONS(X)                                                                            \
    LT_OPENED_OPTIONS(X)                                                                           \
    X(STR, system, "system", "", 0, 0, "TEXT", "system message")                                   \
    X(STR, format, "format", "auto", 0, 1, "NAME",                                                 \
      "auto, chatml, llama3, gemma, zephyr, mistral or plain")                                     \
    X(I64, max_tokens, "max-tokens", "512", 1, 1e9, "N", "tokens of an answer at most")            \
    X(I64, context, "context", "4096", 16, 1e9, "N", "tokens of the conversation at most")         \
    LT_SAMPLING_OPTIONS(X)                                                                         \
    X(BOOL, stats, "stats", "false", 0, 0, "", "tell rates after each answer, on standard error")

typedef struct {
    CHAT_OPTIONS(LT_OPTION_FIELD)
} chat_options;
#define LT_OPTION_STRUCT chat_options
static const lt_option rows[] = {CHAT_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_chat_options = LT_OPTION_TABLE("chat", rows);

typedef struct {
    const chat_options *o;
    const lt_chat_format *format;
    lt_opened opened;
    lt_session *session;
    char *system; /* Owned. */
    char *turn;   /* Text of the turn being sent; owned. */
    size_t turn_bytes;
} chat;

static bool print_text(void *ctx, const char *text, size_t bytes) {
    (void)ctx;
    return fwrite(text, 1, bytes, stdout) == bytes && fflush(stdout) == 0;
}

static lt_err choose_format(chat *c) {
    const lt_tokenizer_info info = lt_tokenizer_describe(c->opened.tokenizer);
    if (strcmp(c->o->format, "auto") != 0) {
        c->format = lt_chat_format_find(c->o->format);
        if (c->format == NULL) {
            LT_FAIL(LT_ERR_ARG, "--format %s is not one of auto, %s", c->o->format,
                    lt_chat_format_names());
        }
        return LT_OK;
    }
    c->format = lt_chat_format_detect(info.chat_template);
    for (const char *const *p = (const char *const[]){"chatml", "llama3", "gemma", NULL};
         c->format == NULL && *p != NULL; p++) {
        const lt_chat_format *f = lt_chat_format_find(
            *p); /* A file without a template: its special tokens tell. */
        if (lt_tokenizer_find(c->opened.tokenizer, f->mark, strlen(f->mark)) != LT_TOKEN_NONE) {
            c->format = f;
        }
    }
    c->format = c->format != NULL ? c->format : lt_chat_format_find("plain");
    return LT_OK;
}

static lt_err append(chat *c, const char *text) {
    const size_t n = strlen(text);
    char *grown = realloc(c->turn, c->turn_bytes + n + 1);
    if (grown == NULL) {
        LT_FAIL(LT_ERR_OOM, "turn of %zu bytes", c->turn_bytes + n);
    }
    c->turn = grown;
    memcpy(c->turn + c->turn_bytes, text, n + 1);
    c->turn_bytes += n;
    return LT_OK;
}

/* What the model has not read yet: the close of its last answer or the system message, the user's words, the question for an answer. */
static lt_err compose(chat *c, const char *words) {
    const lt_chat_format *f = c->format;
    c->turn_bytes = 0;
    if (lt_session_length(c->session, 0) > 0) {
        LT_TRY(append(c, f->answer_close));
    } else {
        LT_TRY(append(c, f->begin));
        if (c->system[0] != '\0') {
            LT_TRY(append(c, f->system_open));
            LT_TRY(append(c, c->system));
            LT_TRY(append(c, f->system_close));
        }
    }
    LT_TRY(append(c, f->user_open));
    LT_TRY(append(c, words));
    LT_TRY(append(c, f->user_close));
    return append(c, f->answer_open);
}

static lt_err answer(chat *c, const char *words) {
    lt_generate_options g = lt_generate_defaults();
    lt_generate_stats st = {0};
    const int64_t before = lt_session_length(c->session, 0);

    g.sampling = (lt_sampling){.temperature = c->o->temperature,
                               .top_k = c->o->top_k,
                               .top_p = c->o->top_p,
                               .min_p = c->o->min_p,
                               .seed = (uint64_t)c->o->seed};
    g.max_tokens = c->o->max_tokens;
    g.encode_flags = LT_ENCODE_PARSE_SPECIAL | (before == 0 ? LT_ENCODE_ADD_SPECIAL : 0);
    LT_TRY(compose(c, words));
    LT_TRY(lt_generate(c->session, c->opened.model, c->opened.tokenizer, c->turn, &g, print_text,
                       NULL, &st));
    putchar('\n');
    if (c->o->stats) {
        fprintf(stderr, "[%lld tokens read in %.2f s, %lld written at %.1f tok/s]\n",
                (long long)st.prompt_tokens, st.prompt_s, (long long)st.new_tokens,
                (double)(st.new_tokens - 1) / st.new_s);
    }
    return LT_OK;
}

static lt_err set_system(chat *c, const char *text) {
    char *copy = strdup(text);
    if (copy == NULL) {
        LT_FAIL(LT_ERR_OOM, "system message");
    }
    free(c->system);
    c->system = copy;
    lt_session_truncate(c->session, 0, 0);
    return LT_OK;
}

/* One line of the user's. *over: the conversation ends. */
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
        lt_session_truncate(c->session, 0, 0);
        return LT_OK;
    }
    if (strncmp(line, "/system ", 8) == 0) {
        return set_system(c, line + 8);
    }
    err = answer(c, line);
    if (err ==
        LT_ERR_LIMIT) { /* The conversation has outgrown its room: say so and begin afresh. */
        fprintf(stderr, "lateen: %s; the conversation is forgotten (--context gives more room)\n",
                lt_error_message());
        lt_session_truncate(c->session, 0, 0);
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

static lt_err run(const chat_options *o) {
    lt_err err = LT_OK;
    chat c = {.o = o};
    int64_t room;

    LT_TRY_DONE(lt_opened_open(&c.opened, o->model, o->tokenizer, (lt_opened_dtype)o->dtype,
                               (lt_device)o->device, o->threads));
    room = lt_model_get_spec(c.opened.model)->max_seq;
    room = o->context < room ? o->context : room;
    LT_TRY_DONE(choose_format(&c));
    LT_TRY_DONE(lt_session_open(&c.session, c.opened.model, 1, room));
    LT_TRY_DONE(set_system(&c, o->system));
    LT_TRY_DONE(talk(&c));
done:
    lt_session_close(c.session);
    lt_opened_close(&c.opened);
    free(c.system);
    free(c.turn);
    return err;
}

int lt_verb_chat(int argc, char **argv);
int lt_verb_chat(int argc, char **argv) {
    static const char prose[] = "Talk to a model: a line is a turn. /reset forgets, /system TEXT "
                                "sets the system message, /quit ends.";
    chat_options o;
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;

    if (!lt_verb_parse(&lt_verb_chat_options, &o, argc, argv, "chat --model M [options]", prose,
                       NULL, 0, &n, &status)) {
        return status;
    }
    err = run(&o);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
