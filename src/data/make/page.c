/* page.c: texts, parameters, fractions and draws of problems; see kind.h. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/make/kind.h"

static void put_bytes(lt_page_text *t, const char *text, size_t n) {
    LT_ASSERT(t->n + n < t->room);
    memcpy(t->data + t->n, text, n);
    t->n += n;
    t->data[t->n] = 0;
}

static void put_num(lt_page_text *t, lt_num value) {
    char digits[24];
    size_t at = sizeof digits;
    unsigned long long rest = value < 0 ? 0 - (unsigned long long)value : (unsigned long long)value;
    do {
        digits[--at] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest != 0);
    if (value < 0) {
        digits[--at] = '-';
    }
    put_bytes(t, digits + at, sizeof digits - at);
}

void lt_put(lt_page_text *t, const char *text) {
    put_bytes(t, text, strlen(text));
}

void lt_say(lt_page_text *t, const char *format, ...) {
    va_list list;
    int n;
    va_start(list, format);
    n = vsnprintf(t->data + t->n, t->room - t->n, format, list);
    va_end(list);
    LT_ASSERT(n >= 0 && t->n + (size_t)n < t->room);
    t->n += (size_t)n;
}

void lt_fill(lt_page_text *t, const char *template, const lt_slots *s) {
    for (const char *p = template; *p != 0;) {
        const char *slot = strchr(p, '{');
        if (slot == NULL) {
            lt_put(t, p);
            return;
        }
        put_bytes(t, p, (size_t)(slot - p));
        LT_ASSERT(slot[2] == '}');
        if (slot[1] >= 'a' && slot[1] <= 'h') {
            lt_put_decimal(t, s->numbers[slot[1] - 'a']);
        } else {
            LT_ASSERT(slot[1] >= 'A' && slot[1] <= 'H' && s->words[slot[1] - 'A'] != NULL);
            lt_put(t, s->words[slot[1] - 'A']);
        }
        p = slot + 3;
    }
}

void lt_param_begin(lt_page *p, const char *name, const char *open) {
    lt_put(&p->problem, p->problem.n > 0 ? ", \"" : "\"");
    lt_put(&p->problem, name);
    lt_put(&p->problem, "\": ");
    lt_put(&p->problem, open);
}

void lt_param(lt_page *p, const char *name, lt_num value) {
    lt_param_begin(p, name, "");
    put_num(&p->problem, value);
}

void lt_param_text(lt_page *p, const char *name, const char *value) {
    LT_ASSERT(strpbrk(value, "\"\\\n") == NULL);
    lt_param_begin(p, name, "\"");
    lt_put(&p->problem, value);
    lt_put(&p->problem, "\"");
}

void lt_param_list(lt_page *p, const char *name, const lt_num *values, int n) {
    lt_param_begin(p, name, "[");
    for (int i = 0; i < n; i++) {
        lt_put(&p->problem, i > 0 ? ", " : "");
        put_num(&p->problem, values[i]);
    }
    lt_put(&p->problem, "]");
}

lt_num lt_gcd(lt_num a, lt_num b) {
    a = llabs(a);
    b = llabs(b);
    while (b != 0) {
        const lt_num rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

lt_fraction lt_fraction_of(lt_num n, lt_num d) {
    const lt_num g = lt_gcd(n, d) * (d < 0 ? -1 : 1);
    LT_ASSERT(d != 0);
    return (lt_fraction){n / g, d / g};
}

lt_fraction lt_fraction_add(lt_fraction a, lt_fraction b) {
    return lt_fraction_of(a.n * b.d + b.n * a.d, a.d * b.d);
}

lt_fraction lt_fraction_sub(lt_fraction a, lt_fraction b) {
    return lt_fraction_of(a.n * b.d - b.n * a.d, a.d * b.d);
}

lt_fraction lt_fraction_mul(lt_fraction a, lt_fraction b) {
    return lt_fraction_of(a.n * b.n, a.d * b.d);
}

lt_fraction lt_fraction_div(lt_fraction a, lt_fraction b) {
    return lt_fraction_of(a.n * b.d, a.d * b.n);
}

bool lt_fraction_ends(lt_fraction q) {
    return 1000000 % q.d == 0;
}

void lt_put_fraction(lt_page_text *t, lt_fraction q) {
    put_num(t, q.n);
    if (q.d != 1) {
        lt_put(t, "/");
        put_num(t, q.d);
    }
}

void lt_put_decimal(lt_page_text *t, lt_fraction q) {
    const lt_num whole = llabs(q.n) / q.d;
    lt_num rest = llabs(q.n) % q.d;
    LT_ASSERT(q.d > 0);
    if (!lt_fraction_ends(q)) {
        lt_put_fraction(t, q);
        return;
    }
    lt_put(t, q.n < 0 ? "-" : "");
    put_num(t, whole);
    lt_put(t, rest != 0 ? "." : "");
    for (; rest != 0; rest = rest * 10 % q.d) {
        put_num(t, rest * 10 / q.d);
    }
}

lt_num lt_between(lt_rng *r, lt_num low, lt_num high) {
    LT_ASSERT(low <= high);
    return low + (lt_num)lt_rng_below(r, (uint64_t)(high - low) + 1);
}

lt_num lt_digits(lt_rng *r, int n) {
    lt_num low = 1;
    for (int i = 1; i < n; i++) {
        low *= 10;
    }
    return lt_between(r, low, 10 * low - 1);
}

int lt_pick(lt_rng *r, int n) {
    return (int)lt_rng_below(r, (uint64_t)n);
}

void lt_distinct(lt_rng *r, int n, int of, int *out) {
    int deck[64];
    LT_ASSERT(n <= of && of <= LT_COUNT(deck));
    for (int i = 0; i < of; i++) {
        deck[i] = i;
    }
    for (int i = 0; i < n; i++) {
        const int other = i + lt_pick(r, of - i);
        out[i] = deck[other];
        deck[other] = deck[i];
    }
}

void lt_key(lt_draft *d, int n) {
    LT_ASSERT(n <= LT_DRAFT_VALUES);
    memcpy(d->key, d->v, (size_t)n * sizeof *d->v);
    d->n_key = n;
}

void lt_draw_distinct(lt_draft *d, lt_rng *r, int n, int of) {
    int drawn[LT_DRAFT_VALUES];
    LT_ASSERT(n < LT_DRAFT_VALUES);
    lt_distinct(r, n, of, drawn);
    d->v[0] = n;
    for (int i = 0; i < n; i++) {
        d->v[1 + i] = drawn[i];
    }
    lt_key(d, 1 + n);
}

const char *const lt_names[LT_N_NAMES] = {
    "Adam", "Aisha", "Anna", "Ben",  "Bruno", "Carla", "Chen", "Clara", "Daniel", "Elena",
    "Emma", "Farid", "Finn", "Gina", "Grace", "Hana",  "Hugo", "Ines",  "Ivan",   "Jack",
    "Jana", "Karim", "Leo",  "Lina", "Luca",  "Maria", "Mei",  "Milan", "Nadia",  "Nina",
    "Omar", "Paul",  "Rosa", "Sam",  "Sofia", "Tariq", "Tom",  "Vera",  "Yara",   "Zoe",
};
