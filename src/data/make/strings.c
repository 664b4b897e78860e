/* strings.c: sequences of operations on the letters of a word (reverse, rotate, replace, shift,
 * ...) and questions about several words. Each step shows the text that an operation makes.
 *
 * Words are made of random syllables, so they are new to a model. The key is the text and the
 * operations; the question at the end does not count. */
#include <string.h>

#include "base/error.h"
#include "data/make/kind.h"

#define MAX_TEXT  96
#define MAX_OPS   4
#define MAX_WORDS 8

typedef struct {
    char s[MAX_TEXT];
    int n;
} text;

typedef struct {
    const char *name;
    const char *sentence; /* {a}: a number; {A}, {B}: letters. */
    int low, high;        /* The number is drawn from here. */
    int letters;          /* 0, 1 or 2 letters are drawn. A number is below the text's length. */
    void (*run)(text *t, lt_num a, lt_num b);
} operation;

static bool vowel(char c) {
    return strchr("aeiou", c) != NULL && c != 0;
}

static void reverse_range(char *s, int n) {
    for (int i = 0; i < n / 2; i++) {
        const char c = s[i];
        s[i] = s[n - 1 - i];
        s[n - 1 - i] = c;
    }
}

static void reverse(text *t, lt_num a, lt_num b) {
    (void)a, (void)b;
    reverse_range(t->s, t->n);
}

#define KEEP(name, condition)                                                                      \
    static void name(text *t, lt_num a, lt_num b) {                                                \
        int n = 0;                                                                                 \
        for (int i = 0; i < t->n; i++) {                                                           \
            const char c = t->s[i];                                                                \
            if (condition) {                                                                       \
                t->s[n++] = c;                                                                     \
            }                                                                                      \
        }                                                                                          \
        (void)a, (void)b;                                                                          \
        t->n = n;                                                                                  \
    }
KEEP(drop_vowels, !vowel(c))
KEEP(drop_letter, c != a)
KEEP(take_first, i < a)
KEEP(drop_first, i >= a)
KEEP(every_second, i % 2 == 0)

static void replace(text *t, lt_num a, lt_num b) {
    for (int i = 0; i < t->n; i++) {
        t->s[i] = t->s[i] == a ? (char)b : t->s[i];
    }
}

/* The first a characters go to the end. */
static void rotate(text *t, lt_num a, lt_num b) {
    const int by = (int)a % t->n;
    (void)b;
    reverse_range(t->s, by);
    reverse_range(t->s + by, t->n - by);
    reverse_range(t->s, t->n);
}

static void sort(text *t, lt_num a, lt_num b) {
    (void)a, (void)b;
    for (int i = 1; i < t->n; i++) {
        const char c = t->s[i];
        int at = i;
        for (; at > 0 && t->s[at - 1] > c; at--) {
            t->s[at] = t->s[at - 1];
        }
        t->s[at] = c;
    }
}

static void shift(text *t, lt_num a, lt_num b) {
    (void)b;
    for (int i = 0; i < t->n; i++) {
        t->s[i] = (char)('a' + (t->s[i] - 'a' + a) % 26);
    }
}

static void double_letters(text *t, lt_num a, lt_num b) {
    (void)a, (void)b;
    for (int i = t->n - 1; i >= 0; i--) {
        t->s[2 * i] = t->s[2 * i + 1] = t->s[i];
    }
    t->n *= 2;
}

static void append(text *t, lt_num a, lt_num b) {
    (void)b;
    t->s[t->n++] = (char)a;
}

static void swap_ends(text *t, lt_num a, lt_num b) {
    const char c = t->s[0];
    (void)a, (void)b;
    t->s[0] = t->s[t->n - 1];
    t->s[t->n - 1] = c;
}

static const operation operations[] = {
    {"reverse", "Reverse it", 0, 0, 0, reverse},
    {"drop_vowels", "Remove the vowels", 0, 0, 0, drop_vowels},
    {"append", "Append the letter {A}", 0, 0, 1, append},
    {"take_first", "Keep the first {a} letters", 3, 6, 0, take_first},
    {"swap_ends", "Swap the first and the last letter", 0, 0, 0, swap_ends},
    {"drop_letter", "Remove each {A}", 0, 0, 1, drop_letter},
    {"replace", "Replace each {A} by {B}", 0, 0, 2, replace},
    {"sort", "Sort its letters alphabetically", 0, 0, 0, sort},
    {"drop_first", "Remove the first {a} letters", 2, 3, 0, drop_first},
    {"rotate", "Move the first {a} letters to the end, in the same order", 2, 3, 0, rotate},
    {"every_second", "Keep every second letter, beginning with the first", 0, 0, 0, every_second},
    {"shift", "Move each letter {a} places on in the alphabet, after z comes a", 2, 5, 0, shift},
    {"double", "Write each letter twice", 0, 0, 0, double_letters},
};
static const int in_use[] = {5, 8, LT_COUNT(operations), LT_COUNT(operations),
                             LT_COUNT(operations)};
static const int n_operations[] = {1, 2, 2, 3, 4};

enum { WHOLE, LENGTH, VOWELS, ENDS };

static const struct {
    const char *name, *question;
} ends[ENDS] = {{"text", "What is the result?"},
                {"length", "How many letters does the result have?"},
                {"vowels", "How many vowels does the result have?"}};

/* Draw a pronounceable word of n letters: consonants and vowels alternate. */
static void draw_word(lt_num *out, lt_rng *r, int n) {
    static const char vowels[] = "aeiou", consonants[] = "bcdfghjklmnprstvwyz";
    const int first = lt_pick(r, 3) == 0;
    for (int i = 0; i < n; i++) {
        out[i] = (i + first) % 2 == 1 ? vowels[lt_pick(r, 5)] : consonants[lt_pick(r, 19)];
    }
}

/* LETTERS. v = n, letters, number of operations, three values for each, end. */
typedef struct {
    text t;
    int n_ops, end;
    const lt_num *ops;
} program;

static void program_of(program *p, const lt_draft *d) {
    p->t.n = (int)d->v[0];
    for (int i = 0; i < p->t.n; i++) {
        p->t.s[i] = (char)d->v[1 + i];
    }
    p->n_ops = (int)d->v[1 + p->t.n];
    p->ops = d->v + 2 + p->t.n;
    p->end = (int)p->ops[3 * p->n_ops];
}

/* Draw the operands: a number, or letters of which the first occurs in the word. */
static void draw_operation(lt_num out[3], lt_rng *r, const text *t, int level) {
    const operation *o;
    out[0] = lt_pick(r, in_use[level - 1]);
    o = &operations[out[0]];
    out[1] = out[2] = 0;
    if (o->high > 0) {
        out[1] = lt_between(r, o->low, o->high);
    } else if (o->letters > 0) {
        out[1] = o->run == append ? lt_between(r, 'a', 'z') : t->s[lt_pick(r, t->n)];
        do {
            out[2] = o->letters > 1 ? lt_between(r, 'a', 'z') : 0;
        } while (out[2] == out[1]);
    }
}

static void draw_letters(lt_draft *d, lt_rng *r) {
    const int level = d->level, n_ops = n_operations[level - 1];
    const int n = (int)lt_between(r, 4, 5 + level);
    program p;
    lt_num *v;
    do {
        lt_num last = -1;
        d->v[0] = n;
        draw_word(d->v + 1, r, n);
        d->v[1 + n] = n_ops;
        d->v[2 + n + 3 * n_ops] = lt_pick(r, 3) > 0 ? WHOLE : LENGTH + lt_pick(r, ENDS - 1);
        program_of(&p, d);
        v = d->v + 2 + n;
        for (int i = 0; i < n_ops && p.t.n > 1; i++, v += 3) {
            do {
                draw_operation(v, r, &p.t, level);
            } while (v[0] == last);
            last = v[0];
            p.t.n = operations[v[0]].high > 0 && operations[v[0]].run != shift && v[1] >= p.t.n
                        ? 0
                        : p.t.n;
            if (p.t.n > 0) {
                operations[v[0]].run(&p.t, v[1], v[2]);
            }
        }
    } while (p.t.n < 2 || p.t.n > 24); /* Every step must leave something. */
    lt_key(d, 2 + n + 3 * n_ops);
}

static void show(lt_page_text *out, const text *t) {
    lt_say(out, "%.*s", t->n, t->s);
}

static void write_letters(const lt_draft *d, lt_page *p, lt_rng *r) {
    static const char *const begin[] = {"Start with the word ", "Take the word ",
                                        "Here is a made-up word: "};
    program g;
    program_of(&g, d);
    lt_put(&p->question, begin[lt_pick(r, LT_COUNT(begin))]);
    show(&p->question, &g.t);
    lt_put(&p->question, ". ");
    lt_param_begin(p, "word", "\"");
    show(&p->problem, &g.t);
    lt_put(&p->problem, "\"");
    lt_param_begin(p, "operations", "[");
    for (int i = 0; i < g.n_ops; i++) {
        const operation *o = &operations[g.ops[3 * i]];
        const lt_num a = g.ops[3 * i + 1], b = g.ops[3 * i + 2];
        const char one[] = {(char)a, 0}, two[] = {(char)b, 0};
        const lt_slots s = {.numbers = {{a, 1}}, .words = {one, two}};
        lt_fill(&p->question, o->sentence, &s);
        lt_put(&p->question, ". ");
        lt_say(&p->problem, "%s[\"%s\"", i > 0 ? ", " : "", o->name);
        if (o->letters > 0) {
            lt_say(&p->problem, ", \"%s\"", one);
            lt_say(&p->problem, o->letters > 1 ? ", \"%s\"" : "%s", two);
        } else if (o->high > 0) {
            lt_say(&p->problem, ", %lld", a);
        }
        lt_put(&p->problem, "]");
        o->run(&g.t, a, b);
        lt_fill(&p->steps, o->sentence, &s);
        lt_put(&p->steps, ": ");
        show(&p->steps, &g.t);
        lt_put(&p->steps, ".\n");
    }
    lt_put(&p->problem, "]");
    lt_param_text(p, "asked", ends[g.end].name);
    lt_put(&p->question, ends[g.end].question);
    if (g.end == WHOLE) {
        show(&p->answer, &g.t);
        return;
    }
    lt_num count = 0;
    lt_put(&p->steps, g.end == LENGTH ? "Count the letters: " : "Count the vowels: ");
    for (int i = 0; i < g.t.n; i++) {
        if (g.end == LENGTH || vowel(g.t.s[i])) {
            lt_say(&p->steps, count > 0 ? ", %c" : "%c", g.t.s[i]);
            count++;
        }
    }
    lt_say(&p->steps, count > 0 ? "; %lld.\n" : "none, %lld.\n", count);
    lt_say(&p->answer, "%lld", count);
    p->checker = "number";
}

/* WORDS. v = n, the word of each place, which of the questions. */
static const char *const words[] = {
    "apple", "bird",  "boat",  "bread", "brick", "cloud", "coin",  "corn",  "drum",  "field",
    "fish",  "flag",  "frog",  "glass", "grape", "hill",  "horn",  "house", "jam",   "king",
    "lake",  "leaf",  "lemon", "light", "maple", "moon",  "mouse", "night", "ocean", "paint",
    "pearl", "piano", "river", "road",  "roof",  "sand",  "seed",  "ship",  "snow",  "stone",
    "storm", "sugar", "tiger", "tower", "train", "tree",  "truck", "wheel", "wind",  "wolf"};

enum { BACKWARDS, ALPHABET, INITIALS, LAST_LETTERS, LETTERS, ASKED };

static const struct {
    const char *name, *question;
} asked[ASKED] = {
    {"backwards", "Write the words in reverse order, separated by commas."},
    {"alphabet", "Write the words in alphabetical order, separated by commas."},
    {"initials", "Join the first letters of the words. What do you get?"},
    {"last_letters", "Join the last letters of the words. What do you get?"},
    {"letters", "How many letters do the words have in total?"},
};

static void draw_words(lt_draft *d, lt_rng *r) {
    const int n = (int)lt_between(r, 2 + (d->level + 1) / 2, 3 + d->level);
    LT_ASSERT(n <= MAX_WORDS);
    lt_draw_distinct(d, r, n, LT_COUNT(words));
}

static void write_words(const lt_draft *d, lt_page *p, lt_rng *r) {
    const int n = (int)d->v[0], q = lt_pick(r, ASKED);
    lt_num order[MAX_WORDS], total = 0;
    lt_put(&p->question, "Here are some words: ");
    lt_param_begin(p, "words", "[");
    for (int i = 0; i < n; i++) {
        const char *w = words[d->v[1 + i]];
        int at = i;
        lt_say(&p->question, i > 0 ? ", %s" : "%s", w);
        lt_say(&p->problem, i > 0 ? ", \"%s\"" : "\"%s\"", w);
        /* The table is in alphabetical order. */
        for (; at > 0 && (q == ALPHABET ? order[at - 1] > d->v[1 + i] : q == BACKWARDS); at--) {
            order[at] = order[at - 1];
        }
        order[at] = d->v[1 + i];
    }
    lt_put(&p->problem, "]");
    lt_param_text(p, "asked", asked[q].name);
    lt_say(&p->question, ". %s", asked[q].question);
    for (int i = 0; i < n; i++) {
        const char *w = words[order[i]];
        const int letters = (int)strlen(w);
        if (q == INITIALS || q == LAST_LETTERS) {
            const char c = q == INITIALS ? w[0] : w[letters - 1];
            lt_say(&p->answer, "%c", c);
            lt_say(&p->steps, "%s: %c, so far %s.\n", w, c, p->answer.data);
        } else if (q == LETTERS) {
            lt_say(&p->steps, "%s has %d letters", w, letters);
            if (i > 0) {
                lt_say(&p->steps, ", %lld + %d = %lld", total, letters, total + letters);
            }
            lt_put(&p->steps, ".\n");
            total += letters;
        } else {
            lt_say(&p->answer, i > 0 ? ", %s" : "%s", w);
            lt_say(&p->steps, "Place %d: %s.\n", i + 1, w);
        }
    }
    if (q == LETTERS) {
        lt_say(&p->answer, "%lld", total);
        p->checker = "number";
    } else if (q == BACKWARDS || q == ALPHABET) {
        p->checker = "list";
    }
}

static const lt_task tasks[] = {
    {"letters", 1, 5, "text", draw_letters, write_letters},
    {"words", 1, 5, "text", draw_words, write_words},
};

const lt_kind lt_kind_strings = {tasks, LT_COUNT(tasks)};
