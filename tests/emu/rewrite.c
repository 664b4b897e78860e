/* rewrite.c: see rewrite.h and, for what comes out, device.h. A scanner of words that knows
 * comments and strings, and rewrites three constructs:
 *
 *     __shared__ T a[8][2], b; extern __shared__ T c[]; declarations of the form that our kernels
 *     use: a type of plain words, arrays, no initialiser asm volatile("mnemonic operands; .." :
 *     outputs : inputs : clobbers)
 *                   { .reg declarations and @p conditions, too
 *     __global__ void __launch_bounds__(N) name(...) {  ...
 *                   up to the line that begins with the closing brace */
#include "rewrite.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OPERANDS 256

typedef struct {
    const char *at;
    size_t n;
} span;

typedef struct {
    emu_text *out;
    const char *ptx;
    const char *p;
    uintptr_t id;
    span kernel, bounds; /* A kernel whose end has not been reached. */
} scanner;

void emu_text_add(emu_text *t, const char *from, size_t n) {
    if (t->n + n + 1 > t->most) {
        t->most = 2 * t->most + n + 4096;
        t->text = realloc(t->text, t->most);
        if (t->text == NULL) {
            abort();
        }
    }
    memcpy(t->text + t->n, from, n);
    t->n += n;
    t->text[t->n] = '\0';
}

static void add(scanner *s, const char *text) {
    emu_text_add(s->out, text, strlen(text));
}
static void add_span(scanner *s, span t) {
    emu_text_add(s->out, t.at, t.n);
}
static bool is(span t, const char *word) {
    return t.n == strlen(word) && memcmp(t.at, word, t.n) == 0;
}
static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_';
}
static span trim(span t) {
    for (; t.n > 0 && isspace((unsigned char)*t.at); t.at++, t.n--) {}
    for (; t.n > 0 && isspace((unsigned char)t.at[t.n - 1]); t.n--) {}
    return t;
}
static const char *space_skip(const char *p) {
    while (isspace((unsigned char)*p)) {
        p++;
    }
    return p;
}
static span word_at(const char *p) {
    span w = {p, 0};
    while (is_word(p[w.n])) {
        w.n++;
    }
    return w;
}
/* The end of the string or comment that begins at p; p itself if none does. */
static const char *quiet_skip(const char *p) {
    if (*p == '"' || *p == '\'') {
        const char quote = *p++;
        while (*p != '\0' && *p != quote) {
            p += *p == '\\' && p[1] != '\0' ? 2 : 1;
        }
        return *p != '\0' ? p + 1 : p;
    }
    if (p[0] == '/' && p[1] == '*') {
        const char *const end = strstr(p + 2, "*/");
        return end != NULL ? end + 2 : p + strlen(p);
    }
    if (p[0] == '/' && p[1] == '/') {
        return p + strcspn(p, "\n");
    }
    return p;
}
/* The first of `stops` at or after p that is outside brackets, strings and comments; or the end
 * of the text. */
static const char *find(const char *p, const char *stops) {
    for (int depth = 0; *p != '\0';) {
        const char *const quiet = quiet_skip(p);
        if (quiet != p) {
            p = quiet;
            continue;
        }
        if (depth == 0 && strchr(stops, *p) != NULL) {
            return p;
        }
        depth += *p == '(' || *p == '[' || *p == '{';
        depth -= *p == ')' || *p == ']' || *p == '}';
        p++;
    }
    return p;
}
/* Write as many line breaks as the text [from, to) had, so that later lines keep their
 * numbers. */
static void lines_keep(scanner *s, const char *from, const char *to) {
    for (; from < to; from++) {
        if (*from == '\n') {
            add(s, "\n");
        }
    }
}

/* ---- Shared memory ---- */

static const char *alignment_skip(const char *p) {
    span w = word_at(p = space_skip(p));
    while (is(w, "__align__") || is(w, "alignas")) {
        p = find(space_skip(p + w.n) + 1, ")") + 1;
        w = word_at(p = space_skip(p));
    }
    return p;
}

/* p: after the word __shared__. */
static void shared(scanner *s, const char *p, bool dynamic) {
    const char *const from = p, *const end = find(p, ";");
    const char *name, *stop;
    span type;
    p = alignment_skip(p);
    for (name = stop = find(p, "[,;"); name > p && isspace((unsigned char)name[-1]); name--) {}
    while (name > p && is_word(name[-1])) {
        name--;
    }
    type = trim((span){p, (size_t)(name - p)});
    for (p = name; p < end; p = stop + 1) {
        char id[32];
        const span n = word_at(p = space_skip(p));
        stop = find(p + n.n, ",;");
        const span dims = trim((span){p + n.n, (size_t)(stop - p) - n.n});
        add_span(s, type);
        add(s, dynamic ? " *const " : dims.n > 0 ? " (&" : " &");
        add_span(s, n);
        if (dynamic) {
            add(s, " = (");
            add_span(s, type);
            add(s, " *)emu_shared_dynamic();");
            break;
        }
        add(s, dims.n > 0 ? ")" : "");
        add_span(s, dims);
        (void)snprintf(id, sizeof id, " = EMU_SHARED(%lu, \"", (unsigned long)++s->id);
        add(s, id);
        add_span(s, n);
        add(s, "\", ");
        add_span(s, type);
        add_span(s, dims);
        add(s, "); ");
    }
    lines_keep(s, from, end);
    s->p = end + 1;
}

/* ---- Instructions ---- */

/* Append operands "x"(expression), .. up to the next colon or the end to list. */
static const char *operands(const char *p, const char *end, span *list, int *n) {
    while (p < end) {
        p = space_skip(p);
        if (*p == ':' || p >= end) {
            break;
        }
        const char *const stop = find(p, ",:)"), *const open = strchr(p, '(');
        if (*p == '"' && open != NULL && open < stop && *n < MAX_OPERANDS) {
            list[(*n)++] = (span){open, (size_t)(stop - open)};
        }
        p = *stop == ',' ? stop + 1 : stop;
        if (*stop == ')') {
            return end;
        }
    }
    return p;
}

/* The text of the template: its strings joined, with escapes replaced by the characters they
 * stand for. */
static const char *template_read(const char *p, const char *end, emu_text *text) {
    for (p = space_skip(p); p < end && *p == '"'; p = space_skip(p)) {
        const char *const to = quiet_skip(p);
        for (p++; p < to - 1; p++) {
            p += *p == '\\';
            emu_text_add(text, p[-1] == '\\' ? " " : p, 1);
        }
        p = to;
    }
    return p;
}

/* Write the rest of an instruction as arguments of a call: %3 is the fourth operand, %%name the
 * special register ptx_name, other words stay; "_", for an unwanted result, is left out. */
static void arguments_add(scanner *s, span t, const span *list, int n, bool first) {
    for (const char *p = t.at; p < t.at + t.n;) {
        const span w = word_at(*p == '%' ? p + 1 + (p[1] == '%') : p);
        if (w.n == 0 || is(w, "_")) {
            p++;
            continue;
        }
        add(s, first ? "" : ", ");
        first = false;
        if (*p == '%' && p[1] == '%') {
            add(s, "ptx_");
            add_span(s, w);
        } else if (*p == '%' && atoi(w.at) < n) {
            add_span(s, list[atoi(w.at)]);
        } else {
            add_span(s, w);
        }
        p = w.at + w.n;
    }
}

/* a.b::c_2 -> ptx_a_b_c_2( ; in wgmma's m64n128k16, 128 becomes the first argument and N in the
 * name. */
static span name_make(emu_text *name, span mnemonic) {
    span columns = {NULL, 0};
    emu_text_add(name, "ptx_", 4);
    for (const char *c = mnemonic.at; c < mnemonic.at + mnemonic.n; c++) {
        if (strncmp(c, "m64n", 4) == 0) {
            emu_text_add(name, "m64nN", 5);
            for (columns.at = c += 4; isdigit((unsigned char)*c); c++, columns.n++) {}
        }
        if (is_word(*c)) {
            emu_text_add(name, c, 1);
        } else if (name->text[name->n - 1] != '_') {
            emu_text_add(name, "_", 1);
        }
    }
    emu_text_add(name, "(", 1);
    return columns;
}

/* Do the headers have "name(", as a function, or "name,", among those that a macro defines? */
static bool has(const char *ptx, char *name) {
    char *const end = name + strlen(name) - 1;
    bool found = strstr(ptx, name) != NULL;
    *end = ',';
    found = found || strstr(ptx, name) != NULL;
    *end = '(';
    return found;
}

/* Rewrite one instruction of a template, or the declaration of its registers. */
static void one_instruction(scanner *s, span t, const span *list, int n) {
    span mnemonic = {t.at, 0};
    if (*t.at == '@') { /* @p or @!p: under a condition. */
        const char *const name = t.at + 1 + (t.at[1] == '!');
        const span w = word_at(name);
        add(s, t.at[1] == '!' ? "if (!" : "if (");
        add_span(s, w);
        add(s, ") ");
        t = trim((span){w.at + w.n, (size_t)(t.at + t.n - w.at) - w.n});
        mnemonic.at = t.at;
    }
    while (mnemonic.n < t.n && !isspace((unsigned char)t.at[mnemonic.n])) {
        mnemonic.n++;
    }
    const span rest = trim((span){t.at + mnemonic.n, t.n - mnemonic.n});
    if (is(mnemonic, ".reg")) {
        const bool predicate = strncmp(rest.at, ".pred", 5) == 0;
        add(s, predicate ? "bool" : "uint32_t");
        add_span(s, (span){rest.at + strcspn(rest.at, " "), rest.n - strcspn(rest.at, " ")});
        return;
    }
    emu_text name = {0};
    const span columns = name_make(&name, mnemonic);
    if (has(s->ptx, name.text)) {
        add(s, name.text);
        add_span(s, columns);
        arguments_add(s, rest, list, n, columns.n == 0);
        add(s, ")");
    } else {
        add(s, "emu_trap(\"no such instruction on the emulated GPU: %s\", \"");
        add_span(s, mnemonic);
        add(s, "\")");
    }
    free(name.text);
}

/* p: after the word asm. */
static void instruction(scanner *s, const char *p) {
    const char *const from = p, *open = p = space_skip(p), *end;
    span w = word_at(p), list[MAX_OPERANDS];
    int n = 0;
    emu_text text = {0};
    if (is(w, "volatile")) {
        open = p = space_skip(p + w.n);
    }
    if (*open != '(') {
        add(s, "asm");
        s->p = from;
        return;
    }
    end = find(open + 1, ")");
    emu_text_add(&text, "", 0);
    p = template_read(open + 1, end, &text);
    for (int part = 0; part < 2 && p < end && *p == ':'; part++) {
        p = operands(p + 1, end, list, &n);
    }
    add(s, "do {");
    for (char *at = text.text; *at != '\0';) {
        const size_t length = strcspn(at, ";");
        span t = trim((span){at, length});
        /* The brace of a block, not of an operand. */
        while (t.n > 0 && (*t.at == '{' || *t.at == '}')) {
            t = trim((span){t.at + 1, t.n - 1});
        }
        if (t.n > 0) {
            add(s, " ");
            one_instruction(s, t, list, n);
            add(s, ";");
        }
        at += length + (at[length] == ';');
    }
    add(s, " } while (0)");
    lines_keep(s, from, end);
    s->p = end + 1;
    free(text.text);
}

/* ---- Kernels ---- */

/* p: after the word __global__. Notes name and bounds; the text itself is copied later. */
static void kernel(scanner *s, const char *p) {
    s->bounds = (span){"1024", 4};
    while (*p != '\0' && *p != '{' && *p != ';') {
        const span w = word_at(p);
        const char *const open = space_skip(p + w.n);
        if (w.n == 0) {
            p++;
            continue;
        }
        if (*open == '(' && is(w, "__launch_bounds__")) {
            const char *const stop = find(open + 1, ",)");
            s->bounds = (span){open + 1, (size_t)(stop - open) - 1};
            p = find(open + 1, ")") + 1;
        } else if (*open == '(') {
            s->kernel = w;
            return;
        } else {
            p = open;
        }
    }
}

static void kernel_end(scanner *s) {
    add(s, " EMU_ENTRY(");
    add_span(s, s->kernel);
    add(s, ", ");
    add_span(s, s->bounds);
    add(s, ")");
    s->kernel.n = 0;
}

void emu_rewrite(emu_text *out, const char *source, const char *ptx) {
    scanner s = {.out = out, .ptx = ptx, .p = source};
    while (*s.p != '\0') {
        const char *const quiet = quiet_skip(s.p);
        const span w = word_at(s.p);
        if (quiet != s.p) {
            add_span(&s, (span){s.p, (size_t)(quiet - s.p)});
            s.p = quiet;
        } else if (is(w, "asm")) {
            instruction(&s, s.p + w.n);
        } else if (is(w, "__shared__")) {
            shared(&s, s.p + w.n, false);
        } else if (is(w, "extern") && is(word_at(space_skip(s.p + w.n)), "__shared__")) {
            shared(&s, space_skip(s.p + w.n) + strlen("__shared__"), true);
        } else if (w.n > 0) {
            if (is(w, "__global__")) {
                kernel(&s, s.p + w.n);
            }
            add_span(&s, w);
            s.p += w.n;
        } else {
            const bool ends = *s.p == '}' && s.kernel.n > 0 && (s.p == source || s.p[-1] == '\n');
            emu_text_add(out, s.p++, 1);
            if (ends) {
                kernel_end(&s);
            }
        }
    }
}
