/* rewrite.c: see rewrite.h and, for what comes out, device.h. A scanner of words that knows comments and strings, and takes three of them apart:
 *
 *     __shared__ T a[8][2], b;   extern __shared__ T c[];     declarations, of the kind our kernels have: a type of words, arrays, no initialiser
 *     asm volatile("mnemonic operands;" : outputs : inputs : clobbers)
 *     __global__ void __launch_bounds__(N) name(...) {  ...   up to the line that begins with the closing brace */
#include "rewrite.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OPERANDS 64

typedef struct {
    const char *at;
    size_t n;
} span;

typedef struct {
    emu_text *out;
    const char *ptx;
    const char *p;
    uintptr_t id;
    span kernel, bounds; /* A kernel whose end has not come yet. */
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
/* Behind the string or comment that begins at p; p itself when none does. */
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
/* The first of `stops` at or after p outside brackets, strings and comments; or the text's end. */
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
/* The lines that the text [from, to) had, so that later ones keep their numbers. */
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

/* p: behind the word __shared__. */
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

/* Operands "x"(expression), .. up to the next colon or the end; appended to list. */
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

/* One instruction's operands, as they stand in its text. */
static void instruction_add(scanner *s, const char *p, const span *list, int n, bool first) {
    while (*p != '\0' && *p != ';') {
        if (*p == '%' && isdigit((unsigned char)p[1])) {
            const int k = atoi(p + 1);
            add(s, first ? "" : ", ");
            if (k < n) {
                add_span(s, list[k]);
            }
            first = false;
            p++;
        } else if (is_word(*p)) {
            add(s, first ? "" : ", ");
            add_span(s, word_at(p));
            first = false;
        }
        p += is_word(*p) ? word_at(p).n : 1;
    }
}

/* The template's text, macros as X (their names in list): "a.b." M ".c %0;" -> "a.b.X.c %0;" */
static const char *template_read(const char *p, const char *end, emu_text *text, span *macros,
                                 int *n) {
    while (p < end) {
        p = space_skip(p);
        if (*p == '"') {
            const char *const to = quiet_skip(p);
            emu_text_add(text, p + 1, (size_t)(to - p) - 2);
            p = to;
        } else if (is_word(*p)) {
            const span w = word_at(p);
            emu_text_add(text, "X", 1);
            if (*n < MAX_OPERANDS) {
                macros[(*n)++] = w;
            }
            p += w.n;
        } else {
            break;
        }
    }
    return p;
}

/* p: behind the word asm. */
static void instruction(scanner *s, const char *p) {
    const char *const from = p, *open = p = space_skip(p), *end;
    span w = word_at(p), list[MAX_OPERANDS], macros[MAX_OPERANDS];
    int n = 0, n_macros = 0;
    emu_text text = {0}, name = {0};
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
    p = template_read(open + 1, end, &text, macros, &n_macros);
    for (int part = 0; part < 2 && p < end && *p == ':'; part++) {
        p = operands(p + 1, end, list, &n);
    }
    const char *const rest = text.text + strcspn(text.text, " ;");
    emu_text_add(&name, "ptx_", 4);
    for (const char *c = text.text; c < rest; c++) {
        if (is_word(*c)) {
            emu_text_add(&name, c, 1);
        } else if (name.text[name.n - 1] != '_') {
            emu_text_add(&name, "_", 1);
        }
    }
    emu_text_add(&name, "(", 1);
    if (name.n > 5 && strstr(s->ptx, name.text) != NULL) {
        add(s, name.text);
        for (int i = 0; i < n_macros; i++) {
            add(s, i > 0 ? ", " : "");
            add_span(s, macros[i]);
        }
        instruction_add(s, rest, list, n, n_macros == 0);
        add(s, ")");
    } else {
        add(s, "emu_trap(\"no such instruction on the emulated GPU: %s\", \"");
        emu_text_add(s->out, text.text, strcspn(text.text, "\\;\n"));
        add(s, "\")");
    }
    lines_keep(s, from, end);
    s->p = end + 1;
    free(text.text);
    free(name.text);
}

/* ---- Kernels ---- */

/* p: behind the word __global__. Notes name and bounds; the text itself is copied on. */
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

void emu_rewrite(emu_text *out, const char *source, const char *file, const char *ptx) {
    scanner s = {.out = out, .ptx = ptx, .p = source, .id = 1};
    for (const char *c = file; *c != '\0';
         c++) { /* Declarations of two files never share a number. */
        s.id = (s.id * 31 + (unsigned char)*c) & 0xffffff;
    }
    s.id <<= 8;
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
