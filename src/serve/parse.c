/* parse.c: see parse.h: marks, content and reasoning; parse_call.c reads calls.
 *
 * Text that has not been reported yet waits in a buffer. In content or reasoning, everything before
 * the first mark is reported, except a tail that could still become a mark, and white space, which
 * belongs to a mark if one follows. Reasoning can only begin an answer: its mark after content is
 * content. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/think_marks.h"
#include "serve/parse_impl.h"

/* The shortest beginning of a mark that counts as one when the text is cut off; a shorter one, like
 * "<", is more likely text. */
#define CUT_MARK 4

typedef struct {
    const char *text;
    lt_parse_mode to;
} mark;

/* ---- Formats ---- */

#define HARMONY_THOUGHT "<|channel|>analysis<|message|>"
#define HARMONY_ANSWER  "<|end|><|start|>assistant<|channel|>final<|message|>"

lt_parse_marks lt_parse_detect(const char *template_text) {
    static const struct {
        const char *mark, *also;
        lt_parse_format format;
    } rows[] = {{"<|channel|>", "", LT_PARSE_HARMONY},
                {DS_CALLS_BEGIN, "```json", LT_PARSE_DEEPSEEK},
                {DS_CALLS_BEGIN, "", LT_PARSE_DEEPSEEK31},
                {"<|tools_prefix|>", "", LT_PARSE_APERTUS},
                {"[TOOL_CALLS]", "[ARGS]", LT_PARSE_MISTRAL_ARGS},
                {"[TOOL_CALLS]", "", LT_PARSE_MISTRAL},
                {"<tool_call>", "", LT_PARSE_HERMES},
                {"<|python_tag|>", "", LT_PARSE_LLAMA3},
                {"\"parameters\": ", "<|start_header_id|>", LT_PARSE_LLAMA3}};
    const char *t = template_text != NULL ? template_text : "";
    lt_parse_marks m = {.format = LT_PARSE_PLAIN};
    for (size_t i = 0; i < sizeof rows / sizeof *rows && m.format == LT_PARSE_PLAIN; i++) {
        if (strstr(t, rows[i].mark) != NULL && strstr(t, rows[i].also) != NULL) {
            m.format = rows[i].format;
        }
    }
    for (size_t i = 0; m.format != LT_PARSE_HARMONY && m.think_close == NULL && i < LT_THINK_MARKS;
         i++) {
        if (strstr(t, lt_think_marks[i].close) != NULL) {
            m.think_open = lt_think_marks[i].open;
            m.think_close = lt_think_marks[i].close;
        }
    }
    return m;
}

const char *lt_parse_closing(const lt_parse_marks *m) {
    return m->format == LT_PARSE_HARMONY ? HARMONY_ANSWER : m->think_close;
}

const char *lt_parse_format_name(lt_parse_format f) {
    static const char *const names[] = {"plain",      "hermes",       "llama3",
                                        "mistral",    "mistral_args", "deepseek",
                                        "deepseek31", "apertus",      "harmony"};
    return names[f];
}

bool lt_parse_reasons(const lt_parse_marks *m) {
    return m->think_open != NULL || m->format == LT_PARSE_HARMONY;
}

const char *const *lt_parse_call_marks(lt_parse_format f) {
    static const char *const none[] = {NULL}, *const hermes[] = {"<tool_call>", NULL},
                             *const llama3[] = {"<|python_tag|>", NULL},
                             *const mistral[] = {"[TOOL_CALLS]", "[ARGS]", NULL},
                             *const deepseek[] = {DS_CALLS_BEGIN, DS_CALL_BEGIN, DS_SEP, NULL},
                             *const apertus[] = {"<|tools_prefix|>", "<|tools_suffix|>", NULL},
                             *const harmony[] = {"<|channel|>", "<|message|>", NULL};
    static const char *const *const rows[] = {none,     hermes,   llama3,  mistral, mistral,
                                              deepseek, deepseek, apertus, harmony};
    return rows[f];
}

const char *const *lt_parse_all_call_marks(lt_parse_format f) {
    static const char *const hermes[] = {"<tool_call>", "</tool_call>", NULL},
                             *const mistral[] = {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", NULL},
                             *const deepseek[] = {DS_CALLS_BEGIN, DS_CALL_BEGIN, DS_SEP,
                                                  DS_CALL_END,    DS_CALLS_END,  NULL};
    switch (f) {
    case LT_PARSE_HERMES:
        return hermes;
    case LT_PARSE_MISTRAL:
    case LT_PARSE_MISTRAL_ARGS:
        return mistral;
    case LT_PARSE_DEEPSEEK:
    case LT_PARSE_DEEPSEEK31:
        return deepseek;
    default:
        return lt_parse_call_marks(f);
    }
}

bool lt_parse_prompt_thinks(const lt_parse_marks *m, const char *prompt, size_t n) {
    const char *open = m->format == LT_PARSE_HARMONY ? HARMONY_THOUGHT : m->think_open;
    const size_t len = open != NULL ? strlen(open) : 0;
    while (n > 0 && lt_parse_blank(prompt[n - 1])) {
        n--;
    }
    return len > 0 && n >= len && memcmp(prompt + n - len, open, len) == 0;
}

/* ---- Opening ---- */

lt_err lt_parser_open(lt_parser **out, const lt_parse_options *o) {
    lt_parser *p = calloc(1, sizeof *p);
    if (p == NULL) {
        LT_FAIL(LT_ERR_OOM, "parser");
    }
    p->o = *o;
    if (o->think_close == NULL) {
        p->o.think_open = lt_think_marks[LT_THINK_USUAL].open;
        p->o.think_close = lt_think_marks[LT_THINK_USUAL].close;
    }
    p->at = o->thinks && o->reasoning ? LT_IN_REASONING : LT_IN_CONTENT;
    p->strip = p->at == LT_IN_REASONING;
    *out = p;
    return LT_OK;
}

void lt_parser_close(lt_parser *p) {
    if (p != NULL) {
        lt_text_free(&p->buffer);
        free(p);
    }
}

bool lt_parser_in_reasoning(const lt_parser *p) {
    return p->at == LT_IN_REASONING;
}

void lt_parser_drop(lt_parser *p, size_t n) {
    if (n > 0) {
        memmove(p->buffer.data, p->buffer.data + n, p->buffer.n - n);
        p->buffer.n -= n;
    }
}

bool lt_parse_blank(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* ---- Text ---- */

static void say(lt_parser *p, const char *s, size_t n, lt_parse_fn on, void *ctx) {
    while (p->strip && n > 0 && lt_parse_blank(*s)) {
        s++;
        n--;
    }
    if (n > 0) {
        p->strip = false;
        p->said = p->said || p->at == LT_IN_CONTENT;
        on(ctx, p->at == LT_IN_REASONING ? LT_PART_REASONING : LT_PART_CONTENT, -1, s, n);
    }
}

/* The marks that are possible now, ended by a NULL text. */
static void marks_of(const lt_parser *p, mark out[8]) {
    static const mark calls[][2] = {
        [LT_PARSE_PLAIN] = {{NULL, LT_IN_CALL}},
        [LT_PARSE_HERMES] = {{"<tool_call>", LT_IN_CALL}},
        [LT_PARSE_LLAMA3] = {{"<|python_tag|>", LT_IN_CALL}, {"<function=", LT_IN_CALL}},
        [LT_PARSE_MISTRAL] = {{"[TOOL_CALLS]", LT_IN_CALL}},
        [LT_PARSE_MISTRAL_ARGS] = {{"[TOOL_CALLS]", LT_IN_CALL}},
        [LT_PARSE_DEEPSEEK] = {{DS_CALLS_BEGIN, LT_IN_CALL}, {DS_CALL_BEGIN, LT_IN_CALL}},
        [LT_PARSE_DEEPSEEK31] = {{DS_CALLS_BEGIN, LT_IN_CALL}, {DS_CALL_BEGIN, LT_IN_CALL}},
        [LT_PARSE_APERTUS] = {{"<|tools_prefix|>", LT_IN_CALL}},
        [LT_PARSE_HARMONY] = {{NULL, LT_IN_CALL}}};
    static const mark harmony[] = {{"<|channel|>", LT_IN_HEADER},
                                   {"<|start|>", LT_IN_HEADER},
                                   {"<|end|>", LT_IN_CONTENT},
                                   {"<|return|>", LT_IN_CONTENT},
                                   {"<|call|>", LT_IN_CONTENT}};
    int n = 0;
    if (p->o.format == LT_PARSE_HARMONY) {
        memcpy(out, harmony, sizeof harmony);
        n = 5;
    } else if (p->at == LT_IN_REASONING) {
        out[n++] = (mark){p->o.think_close, LT_IN_CONTENT};
    } else if (p->o.reasoning && !p->said && p->n_calls == 0) {
        out[n++] = (mark){p->o.think_open, LT_IN_REASONING};
    }
    /* Apertus makes calls inside its reasoning. */
    for (int i = 0; p->o.tools && (p->at != LT_IN_REASONING || p->o.format == LT_PARSE_APERTUS) &&
                    i < 2 && calls[p->o.format][i].text != NULL;
         i++) {
        out[n++] = calls[p->o.format][i];
    }
    out[n].text = NULL;
}

/* Position of the first mark in the buffer, and the longest mark there; SIZE_MAX: none. *hold:
 * where a tail begins that may become a mark. */
static size_t find_mark(const lt_text *b, const mark *marks, mark *which, size_t *hold) {
    *hold = b->n;
    for (size_t i = 0; i < b->n; i++) {
        size_t best = 0;
        for (const mark *m = marks; m->text != NULL; m++) {
            const size_t len = strlen(m->text), left = b->n - i;
            if (memcmp(b->data + i, m->text, len < left ? len : left) != 0) {
                continue;
            }
            if (len > left) {
                *hold = *hold < i ? *hold : i;
            } else if (len > best) {
                best = len;
                *which = *m;
            }
        }
        if (best > 0 && *hold >= i) {
            return i;
        }
        if (*hold < b->n && *hold <= i) {
            return SIZE_MAX; /* The text here may still become an earlier mark. */
        }
    }
    return SIZE_MAX;
}

/* ---- The machine ---- */

/* harmony: whether the header, of n bytes, calls a function. whole: it is complete, and so is the
 * name. */
static bool header_calls(lt_parser *p, size_t n, bool whole, lt_parse_fn on, void *ctx) {
    const char *to, *stop;
    n = n < sizeof p->channel - 1 ? n : sizeof p->channel - 1;
    memcpy(p->channel, p->buffer.data, n);
    p->channel[n] = 0;
    to = strstr(p->channel, "to=");
    if (to == NULL || !p->o.tools) {
        return false;
    }
    to += strncmp(to + 3, "functions.", 10) == 0 ? 13 : 3;
    stop = to + strcspn(to, " <\t\n");
    if (!whole && *stop == '\0') {
        return false;
    }
    lt_parser_begin_call(p, to, (size_t)(stop - to), on, ctx);
    return true;
}

/* harmony: the header up to <|message|> gives the kind of the text. */
static bool read_header(lt_parser *p, bool end, lt_parse_fn on, void *ctx) {
    const char *stop = p->buffer.n > 0 ? memmem(p->buffer.data, p->buffer.n, "<|message|>", 11)
                                       : NULL;
    const size_t n = stop != NULL ? (size_t)(stop - p->buffer.data) : p->buffer.n;
    bool calls;
    if (stop == NULL && !(end && p->cut)) {
        return false;
    }
    calls = header_calls(p, n, stop != NULL, on, ctx);
    lt_parser_drop(p, stop != NULL ? n + 11 : n);
    if (calls || stop == NULL) {
        return calls;
    }
    p->at = strstr(p->channel, "analysis") != NULL && p->o.reasoning ? LT_IN_REASONING
                                                                     : LT_IN_CONTENT;
    return true;
}

/* White space at the end belongs to the following text. */
static size_t without_blank(const lt_parser *p, size_t n) {
    while (n > 0 && lt_parse_blank(p->buffer.data[n - 1])) {
        n--;
    }
    return n;
}

/* harmony: the arguments end at the next mark. */
static bool harmony_args(lt_parser *p, bool end, lt_parse_fn on, void *ctx) {
    mark marks[8], which = {NULL, LT_IN_CONTENT};
    size_t hold, at;
    marks_of(p, marks);
    at = find_mark(&p->buffer, marks, &which, &hold);
    if (at == SIZE_MAX) {
        lt_parser_give_args(p, without_blank(p, end && !p->cut ? p->buffer.n : hold), on, ctx);
        return false;
    }
    hold = without_blank(p, at);
    lt_parser_give_args(p, hold, on, ctx);
    lt_parser_drop(p, at - hold + strlen(which.text));
    p->at = which.to;
    p->strip = true;
    return true;
}

/* JSON alone, at the beginning of the content, may be a call. -1: so far it has only white
 * space. */
static int begins_bare(const lt_parser *p) {
    size_t i = 0;
    if (!p->o.tools || p->at != LT_IN_CONTENT || p->said ||
        (p->o.format != LT_PARSE_LLAMA3 && p->o.format != LT_PARSE_PLAIN)) {
        return 0;
    }
    while (i < p->buffer.n && lt_parse_blank(p->buffer.data[i])) {
        i++;
    }
    return i == p->buffer.n ? -1 : p->buffer.data[i] == '{' || p->buffer.data[i] == '[';
}

/* One step in content or reasoning; true: another may follow. */
static bool text_step(lt_parser *p, bool end, lt_parse_fn on, void *ctx) {
    mark marks[8], which = {NULL, LT_IN_CONTENT};
    size_t hold, at, n;
    bool half; /* Only the beginning of a mark is left. */
    const int bare = begins_bare(p);
    if (bare > 0) {
        p->at = LT_IN_CALL;
        return true;
    }
    if (bare < 0 && !end) {
        return false;
    }
    marks_of(p, marks);
    at = find_mark(&p->buffer, marks, &which, &hold);
    if (at != SIZE_MAX && which.to == LT_IN_REASONING && p->at == LT_IN_CONTENT &&
        p->o.format != LT_PARSE_HARMONY && without_blank(p, at) > 0) {
        say(p, p->buffer.data, at, on, ctx); /* After content it is content, too. */
        lt_parser_drop(p, at);
        return true;
    }
    if (at != SIZE_MAX) {
        say(p, p->buffer.data, without_blank(p, at), on, ctx);
        lt_parser_drop(p, at + strlen(which.text));
        p->at = which.to;
        p->opened = which.to == LT_IN_CALL ? which.text : NULL;
        p->strip = true;
        return true;
    }
    half = end && p->cut && p->buffer.n - hold >= (p->forced ? 1 : CUT_MARK);
    n = end && !half ? p->buffer.n : hold;
    if (half || (end ? p->at == LT_IN_REASONING : marks[0].text != NULL)) {
        n = without_blank(p, n); /* Reasoning is stripped at both ends, also if it is cut off. */
    }
    say(p, p->buffer.data, n, on, ctx);
    lt_parser_drop(p, end ? p->buffer.n : n);
    return false;
}

static lt_err run(lt_parser *p, bool end, lt_parse_fn on, void *ctx) {
    bool more = true;
    while (more && (p->buffer.n > 0 || (end && p->at == LT_IN_CALL))) {
        if (p->at == LT_IN_HEADER) {
            more = read_header(p, end, on, ctx);
        } else if (p->at == LT_IN_ARGS && p->o.format == LT_PARSE_HARMONY) {
            more = harmony_args(p, end, on, ctx);
        } else if (p->at == LT_IN_CONTENT || p->at == LT_IN_REASONING) {
            more = text_step(p, end, on, ctx);
        } else {
            LT_TRY(lt_parser_call_step(p, end, on, ctx, &more));
        }
    }
    return LT_OK;
}

lt_err lt_parser_feed(lt_parser *p, const char *text, size_t n, lt_parse_fn on, void *ctx) {
    LT_TRY(lt_text_put(&p->buffer, text, n));
    return run(p, false, on, ctx);
}

lt_err lt_parser_end(lt_parser *p, lt_parse_fn on, void *ctx) {
    LT_TRY(run(p, true, on, ctx));
    p->buffer.n = 0;
    return LT_OK;
}

lt_err lt_parser_cut(lt_parser *p, const json_t *tools, bool forced, lt_parse_fn on, void *ctx) {
    p->cut = true;
    p->callable = tools;
    p->forced = forced;
    return lt_parser_end(p, on, ctx);
}
