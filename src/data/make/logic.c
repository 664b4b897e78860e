/* logic.c: puzzles whose facts determine one answer: who is taller than whom, who sits where, who
 * tells the truth, who owns what, and what follows from statements about classes.
 *
 * The key holds the names and the facts, in an order that does not depend on how they are listed;
 * the order of listing, the property that is compared and the question do not count. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "data/make/kind.h"

#define MAX_PEOPLE 7

static void shuffle(lt_rng *r, int *x, int n) {
    for (int i = n - 1; i > 0; i--) {
        const int other = lt_pick(r, i + 1), a = x[i];
        x[i] = x[other];
        x[other] = a;
    }
}

static void in_order(int *x, int n) {
    for (int i = 0; i < n; i++) {
        x[i] = i;
    }
}

/* A permutation of 0 .. n - 1. */
static void permutation(lt_rng *r, int *x, int n) {
    in_order(x, n);
    shuffle(r, x, n);
}

static const char *name_of(lt_num id) {
    return lt_names[id];
}

static void draw_people(lt_draft *d, lt_rng *r, int n) {
    LT_ASSERT(n <= MAX_PEOPLE);
    lt_draw_distinct(d, r, n, LT_N_NAMES);
}

/* The people in the order of their names, for keys that do not depend on who is listed first. */
static void by_name(const lt_draft *d, int *order) {
    for (int i = 0; i < (int)d->v[0]; i++) {
        int at = i;
        for (; at > 0 && d->v[1 + order[at - 1]] > d->v[1 + i]; at--) {
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
}

/* "Anna, Ben and Carla" */
static void list_names(lt_page_text *t, const lt_num *ids, const int *order, int n,
                       const char *last) {
    for (int i = 0; i < n; i++) {
        lt_put(t, i == 0 ? "" : i == n - 1 ? last : ", ");
        lt_put(t, name_of(ids[order[i]]));
    }
}

static void param_names(lt_page *p, const char *name, const lt_num *ids, const int *order, int n) {
    lt_param_begin(p, name, "[");
    for (int i = 0; i < n; i++) {
        lt_say(&p->problem, "%s\"%s\"", i > 0 ? ", " : "", name_of(ids[order[i]]));
    }
    lt_put(&p->problem, "]");
}

/* ORDER. v = n, names from the most to the least. The facts are the comparisons of neighbours. */
static const int order_people[] = {3, 4, 5, 6, 7};

static void draw_order(lt_draft *d, lt_rng *r) {
    draw_people(d, r, order_people[d->level - 1]);
}

static const struct {
    const char *more, *less, *most, *least, *list;
} properties[] = {
    {"is taller than", "is shorter than", "tallest", "shortest",
     "from the tallest to the shortest"},
    {"is older than", "is younger than", "oldest", "youngest", "from the oldest to the youngest"},
    {"is faster than", "is slower than", "fastest", "slowest", "from the fastest to the slowest"},
    {"has more books than", "has fewer books than", "one with the most books",
     "one with the fewest books", "from the most books to the fewest"},
};

static const char *const ordinals[] = {"first", "second", "third",  "fourth",
                                       "fifth", "sixth",  "seventh"};

static void compared(lt_page *p, lt_num a, const char *how, lt_num b) {
    lt_say(&p->question, "%s %s %s. ", name_of(a), how, name_of(b));
    lt_say(&p->problem, "[\"%s\", \"%s\", \"%s\"]", name_of(a), how, name_of(b));
}

static void write_order(const lt_draft *d, lt_page *p, lt_rng *r) {
    const int n = (int)d->v[0], q = lt_pick(r, LT_COUNT(properties)), asked = lt_pick(r, 4);
    const lt_num *who = d->v + 1;
    int facts[MAX_PEOPLE], rank[MAX_PEOPLE];
    int at = asked == 0 ? 0 : asked == 1 ? n - 1 : lt_pick(r, n);
    permutation(r, facts, n - 1);
    in_order(rank, n);
    lt_param_begin(p, "facts", "[");
    for (int i = 0; i < n - 1; i++) {
        const int f = facts[i];
        lt_put(&p->problem, i > 0 ? ", " : "");
        if (lt_pick(r, 2) == 0) {
            compared(p, who[f], properties[q].more, who[f + 1]);
        } else {
            compared(p, who[f + 1], properties[q].less, who[f]);
        }
    }
    lt_put(&p->problem, "]");
    lt_param_text(p, "more", properties[q].more);
    for (int i = 0; i < n - 1; i++) {
        lt_say(&p->steps, "%s %s %s.\n", name_of(who[i]), properties[q].more, name_of(who[i + 1]));
    }
    lt_say(&p->steps, "So the order %s is ", properties[q].list);
    list_names(&p->steps, who, rank, n, ", ");
    lt_put(&p->steps, ".\n");
    if (asked == 3) {
        lt_say(&p->question, "List them %s.", properties[q].list);
        lt_param_text(p, "asked", "list");
        list_names(&p->answer, who, rank, n, ", ");
        p->checker = "list";
        return;
    }
    if (asked == 2) {
        lt_say(&p->question, "They stand in a row %s. Who is %s in the row?", properties[q].list,
               ordinals[at]);
    } else {
        lt_say(&p->question, "Who is the %s?",
               asked == 0 ? properties[q].most : properties[q].least);
    }
    lt_param(p, "asked", at + 1);
    lt_put(&p->answer, name_of(who[at]));
}

/* SEATS. v = n, names by place, then how each person's place follows: v[8 + i] is the person
 * relative to whom person i is placed, or -1 for the one whose place is given. Places are found in
 * the order of v[16..]. */
static void draw_seats(lt_draft *d, lt_rng *r) {
    const int n = order_people[d->level - 1];
    int solved[MAX_PEOPLE];
    draw_people(d, r, n);
    permutation(r, solved, n);
    for (int i = 0; i < n; i++) {
        d->v[8 + solved[i]] = i == 0 ? -1 : solved[lt_pick(r, i)];
        d->v[16 + i] = solved[i];
    }
    memcpy(d->key + 1 + n, d->v + 8, (size_t)n * sizeof *d->v);
    d->n_key = 1 + 2 * n;
}

static void distance(lt_page_text *t, int by) {
    const int size = by < 0 ? -by : by;
    if (size == 1) {
        lt_say(t, "immediately to the %s of", by < 0 ? "left" : "right");
    } else {
        lt_say(t, "%d seats to the %s of", size, by < 0 ? "left" : "right");
    }
}

static void write_seats(const lt_draft *d, lt_page *p, lt_rng *r) {
    const int n = (int)d->v[0], at = lt_pick(r, n), asked = lt_pick(r, 3);
    const lt_num *who = d->v + 1, *by = d->v + 8, *solved = d->v + 16;
    int facts[MAX_PEOPLE], rank[MAX_PEOPLE];
    permutation(r, facts, n);
    in_order(rank, n);
    lt_say(&p->question, "%d people sit in a row of %d seats, numbered from left to right. ", n, n);
    lt_param_begin(p, "facts", "[");
    for (int i = 0; i < n; i++) {
        const int f = facts[i];
        lt_put(&p->problem, i > 0 ? ", " : "");
        lt_say(&p->question, "%s sits ", name_of(who[f]));
        if (by[f] < 0) {
            lt_say(&p->question, "in seat %d. ", f + 1);
            lt_say(&p->problem, "[\"%s\", %d, null]", name_of(who[f]), f + 1);
        } else {
            distance(&p->question, f - (int)by[f]);
            lt_say(&p->question, " %s. ", name_of(who[by[f]]));
            lt_say(&p->problem, "[\"%s\", %d, \"%s\"]", name_of(who[f]), f - (int)by[f],
                   name_of(who[by[f]]));
        }
    }
    lt_put(&p->problem, "]");
    for (int i = 0; i < n; i++) {
        const int f = (int)solved[i], other = (int)by[f];
        if (other < 0) {
            lt_say(&p->steps, "%s sits in seat %d.\n", name_of(who[f]), f + 1);
        } else {
            lt_say(&p->steps, "%s is placed by %s: %d %c %d = %d, so %s sits in seat %d.\n",
                   name_of(who[f]), name_of(who[other]), other + 1, f < other ? '-' : '+',
                   f < other ? other - f : f - other, f + 1, name_of(who[f]), f + 1);
        }
    }
    if (asked == 0) {
        lt_say(&p->question, "Who sits in seat %d?", at + 1);
        lt_param(p, "seat", at + 1);
        lt_put(&p->answer, name_of(who[at]));
    } else if (asked == 1) {
        lt_say(&p->question, "In which seat does %s sit?", name_of(who[at]));
        lt_param_text(p, "person", name_of(who[at]));
        lt_say(&p->answer, "%d", at + 1);
        p->checker = "number";
    } else {
        lt_put(&p->question, "List the people from left to right.");
        lt_param_text(p, "asked", "list");
        list_names(&p->answer, who, rank, n, ", ");
        p->checker = "list";
    }
}

/* TRUTH. Each of n people tells the truth always or never. v = n, names, then for each person what
 * he or she says: v[8 + i] = form * 8 + other. */
enum { TRUTHFUL, LIAR, SAME, DIFFERENT, FORMS };

static const char *const says[FORMS] = {" tells the truth", " lies", " and I are of the same sort",
                                        " and I are of different sorts"};

/* What the statement of i claims, given who is truthful. */
static bool claim(const lt_num *said, int i, unsigned truthful) {
    const int form = (int)said[i] / 8, other = (int)said[i] % 8;
    const bool mine = (truthful >> i & 1) != 0, its = (truthful >> other & 1) != 0;
    return form == TRUTHFUL ? its : form == LIAR ? !its : form == SAME ? mine == its : mine != its;
}

static bool consistent(const lt_num *said, int n, unsigned truthful) {
    for (int i = 0; i < n; i++) {
        if (claim(said, i, truthful) != ((truthful >> i & 1) != 0)) {
            return false;
        }
    }
    return true;
}

/* The only consistent set of truthful people, or 0. */
static unsigned truth_of(const lt_num *said, int n) {
    unsigned found = 0, count = 0;
    for (unsigned set = 0; set < 1u << n; set++) {
        if (consistent(said, n, set)) {
            found = set;
            count++;
        }
    }
    return count == 1 ? found : 0;
}

/* Suppose that the first person is truthful or not, and draw conclusions from what was said. Each
 * new conclusion, or the contradiction at the end, is a line of t unless t is NULL. Returns 1 if
 * all are known and consistent, -1 at a contradiction, and 0 if the statements do not determine
 * everyone. */
static int follow(const lt_num *said, const lt_num *who, int n, bool first, lt_page_text *t) {
    int known[MAX_PEOPLE]; /* 1 truthful, 0 not, -1 unknown */
    bool used[MAX_PEOPLE] = {false};
    int left = n;
    for (int i = 0; i < n; i++) {
        known[i] = i == 0 ? first : -1;
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < n; i++) {
            const int form = (int)said[i] / 8, other = (int)said[i] % 8;
            /* If anybody, truthful or not, says "we are the same", then the other person is
             * truthful. */
            const bool self = form >= SAME;
            int value;
            if (used[i] || (!self && known[i] < 0)) {
                continue;
            }
            value = form == SAME        ? 1
                    : form == DIFFERENT ? 0
                                        : (form == TRUTHFUL) == (known[i] == 1);
            used[i] = moved = true;
            left--;
            if (t != NULL) {
                lt_say(t,
                       self ? "Whether %s lies or not, what %s says means that %s %s"
                            : "%s %s, so %s %s",
                       name_of(who[i]),
                       self            ? name_of(who[i])
                       : known[i] == 1 ? "tells the truth"
                                       : "lies",
                       name_of(who[other]), value == 1 ? "tells the truth" : "lies");
                lt_put(t,
                       known[other] >= 0 && known[other] != value ? ": a contradiction.\n" : ".\n");
            }
            if (known[other] >= 0 && known[other] != value) {
                return -1;
            }
            known[other] = value;
        }
    }
    for (int i = 0; i < n; i++) {
        left += known[i] < 0;
    }
    return left == 0 ? 1 : 0;
}

/* Statements that are consistent with a drawn set of truthful people. The first two forms alone
 * never determine the answer: they would be just as consistent if every person were the
 * opposite. */
static bool draw_statements(lt_draft *d, lt_rng *r) {
    const int n = (int)d->v[0];
    const unsigned truthful = (unsigned)lt_between(r, 1, (1 << n) - 1);
    int one, none;
    for (int i = 0; i < n; i++) {
        const int other = (i + 1 + lt_pick(r, n - 1)) % n;
        const bool mine = (truthful >> i & 1) != 0, its = (truthful >> other & 1) != 0;
        const int form = lt_pick(r, 2) == 0 ? (mine == its ? TRUTHFUL : LIAR)
                                            : (its ? SAME : DIFFERENT);
        d->v[8 + i] = 8 * form + other;
    }
    one = follow(d->v + 8, d->v + 1, n, true, NULL);
    none = follow(d->v + 8, d->v + 1, n, false, NULL);
    return one * none == -1;
}

static void draw_truth(lt_draft *d, lt_rng *r) {
    static const int people[] = {2, 3, 4, 5, 6};
    const int n = people[d->level - 1];
    int order[MAX_PEOPLE];
    do {
        draw_people(d, r, n);
    } while (!draw_statements(d, r));
    by_name(d, order);
    d->n_key = 1; /* n */
    for (int k = 0; k < n; k++) {
        const int i = order[k];
        d->key[d->n_key++] = d->v[1 + i];
        d->key[d->n_key++] = d->v[8 + i] / 8;
        d->key[d->n_key++] = d->v[1 + d->v[8 + i] % 8];
    }
}

static void write_truth(const lt_draft *d, lt_page *p, lt_rng *r) {
    static const char *const ask[] = {"Who tells the truth? Name them in the order in which they "
                                      "speak.",
                                      "Name those who tell the truth, in the order above.",
                                      "Which of them tell the truth? Keep the order above."};
    const int n = (int)d->v[0];
    const lt_num *who = d->v + 1, *said = d->v + 8;
    const unsigned truthful = truth_of(said, n);
    int order[MAX_PEOPLE], n_true = 0, truth[MAX_PEOPLE];
    LT_ASSERT(truthful != 0);
    in_order(order, n);
    lt_put(&p->question, "Each of ");
    list_names(&p->question, who, order, n, " and ");
    lt_put(&p->question, " either always tells the truth or always lies. ");
    param_names(p, "people", who, order, n);
    lt_param_begin(p, "said", "[");
    for (int i = 0; i < n; i++) {
        const int form = (int)said[i] / 8;
        char words[64];
        lt_page_text w = {words, 0, sizeof words};
        lt_put(&w, name_of(who[said[i] % 8]));
        lt_put(&w, says[form]);
        lt_say(&p->question, "%s says: \"%s.\" ", name_of(who[i]), words);
        lt_say(&p->problem, "%s\"%s\"", i > 0 ? ", " : "", words);
    }
    lt_put(&p->problem, "]");
    lt_put(&p->question, ask[lt_pick(r, LT_COUNT(ask))]);
    for (int first = 1; first >= 0; first--) {
        lt_say(&p->steps, "Suppose that %s %s.\n", name_of(who[0]),
               first ? "tells the truth" : "lies");
        if (follow(said, who, n, first != 0, &p->steps) == 1) {
            lt_put(&p->steps, "That is consistent.\n");
        }
    }
    for (int i = 0; i < n; i++) {
        if ((truthful >> i & 1) != 0) {
            truth[n_true++] = i;
        }
    }
    lt_put(&p->steps, "So those who tell the truth are: ");
    list_names(&p->steps, who, truth, n_true, ", ");
    lt_put(&p->steps, ".\n");
    list_names(&p->answer, who, truth, n_true, ", ");
}

/* MATCH. Each of n people owns one thing. v = n, names, then v[8 + i] the thing of person i, and
 * from v[16] the facts as pairs (person, thing that he or she does not own). Facts are added until
 * elimination alone finds the owners. */
static const char *const pets[] = {"cat",  "dog",    "parrot", "rabbit", "hamster", "tortoise",
                                   "goat", "donkey", "snake",  "ferret", "pony",    "goose"};
#define FACTS 20

/* Eliminate by the facts until each person has one thing left, or nothing changes. Conclusions go
 * to t unless it is NULL. True: all owners are found. */
static bool eliminate(const lt_draft *d, int n_facts, lt_page_text *t) {
    const int n = (int)d->v[0];
    const lt_num *who = d->v + 1, *things = d->v + 8, *facts = d->v + 16;
    unsigned can[MAX_PEOPLE]; /* Bit j: may own the thing of person j. */
    int found = 0;
    for (int i = 0; i < n; i++) {
        can[i] = (1u << n) - 1;
    }
    for (int f = 0; f < n_facts; f++) {
        can[facts[2 * f]] &= ~(1u << facts[2 * f + 1]);
    }
    for (bool moved = true; moved && found < n;) {
        moved = false;
        for (int i = 0; i < n && !moved; i++) {
            if (can[i] == 0 || (can[i] & (can[i] - 1)) != 0) {
                continue;
            }
            const int j = __builtin_ctz(can[i]);
            if (t != NULL) {
                lt_say(t, "For %s only the %s is left.\n", name_of(who[i]), pets[things[j]]);
            }
            for (int k = 0; k < n; k++) {
                can[k] &= ~(1u << j);
            }
            found++;
            moved = true;
        }
        for (int j = 0; j < n && !moved; j++) {
            int owner = -1, count = 0;
            for (int i = 0; i < n; i++) {
                if ((can[i] >> j & 1) != 0) {
                    owner = i;
                    count++;
                }
            }
            if (count == 1) {
                if (t != NULL) {
                    lt_say(t, "Only %s can own the %s.\n", name_of(who[owner]), pets[things[j]]);
                }
                can[owner] = 0;
                found++;
                moved = true;
            }
        }
    }
    return found == n;
}

static void draw_match(lt_draft *d, lt_rng *r) {
    static const int people[] = {3, 3, 4, 4, 5};
    const int n = people[d->level - 1];
    int things[MAX_PEOPLE], pairs[FACTS], order[MAX_PEOPLE], n_facts = 0;
    draw_people(d, r, n);
    lt_distinct(r, n, LT_COUNT(pets), things);
    for (int i = 0; i < n; i++) {
        d->v[8 + i] = things[i];
    }
    permutation(r, pairs, n * (n - 1)); /* Pair (i, j), j != i, is i (n - 1) + j less j > i. */
    do {
        const int i = pairs[n_facts] / (n - 1), j = pairs[n_facts] % (n - 1);
        d->v[16 + 2 * n_facts] = i;
        d->v[17 + 2 * n_facts] = j + (j >= i);
        n_facts++;
    } while (!eliminate(d, n_facts, NULL));
    d->v[63] = n_facts;
    by_name(d, order);
    d->n_key = 1; /* n */
    /* For each person: the thing that he or she owns, and the things that the facts exclude. */
    for (int k = 0; k < n; k++) {
        const int i = order[k];
        lt_num denied = 0;
        for (int f = 0; f < n_facts; f++) {
            denied |= d->v[16 + 2 * f] == i ? 1ll << d->v[8 + d->v[17 + 2 * f]] : 0;
        }
        d->key[d->n_key++] = d->v[1 + i];
        d->key[d->n_key++] = d->v[8 + i];
        d->key[d->n_key++] = denied;
    }
}

static void write_match(const lt_draft *d, lt_page *p, lt_rng *r) {
    const int n = (int)d->v[0], n_facts = (int)d->v[63], at = lt_pick(r, n);
    const lt_num *who = d->v + 1, *things = d->v + 8, *facts = d->v + 16;
    int people[MAX_PEOPLE], order[MAX_PEOPLE];
    permutation(r, people, n);
    permutation(r, order, n);
    list_names(&p->question, who, people, n, " and ");
    lt_put(&p->question, " own one pet each: a ");
    param_names(p, "people", who, people, n);
    lt_param_begin(p, "pets", "[");
    for (int i = 0; i < n; i++) {
        lt_say(&p->question, "%s%s",
               i == 0       ? ""
               : i == n - 1 ? " and a "
                            : ", a ",
               pets[things[order[i]]]);
        lt_say(&p->problem, "%s\"%s\"", i > 0 ? ", " : "", pets[things[order[i]]]);
    }
    lt_put(&p->question, ". ");
    lt_put(&p->problem, "]");
    lt_param_begin(p, "denied", "[");
    for (int f = 0; f < n_facts; f++) {
        const char *name = name_of(who[facts[2 * f]]), *pet = pets[things[facts[2 * f + 1]]];
        lt_say(&p->question, "%s does not own the %s. ", name, pet);
        lt_say(&p->problem, "%s[\"%s\", \"%s\"]", f > 0 ? ", " : "", name, pet);
    }
    lt_put(&p->problem, "]");
    (void)eliminate(d, n_facts, &p->steps);
    if (lt_pick(r, 2) == 0) {
        lt_say(&p->question, "Who owns the %s?", pets[things[at]]);
        lt_param_text(p, "pet", pets[things[at]]);
        lt_say(&p->steps, "So the %s is %s's.\n", pets[things[at]], name_of(who[at]));
        lt_put(&p->answer, name_of(who[at]));
    } else {
        lt_say(&p->question, "Which pet does %s own?", name_of(who[at]));
        lt_param_text(p, "person", name_of(who[at]));
        lt_say(&p->steps, "So %s owns the %s.\n", name_of(who[at]), pets[things[at]]);
        lt_put(&p->answer, pets[things[at]]);
    }
}

/* FOLLOWS. Classes with made-up names, each inside the next: v = n, the classes from the smallest
 * to the largest. The statements come in any order; one of four conclusions follows. */
static const char *const classes[] = {
    "bips",  "blims", "dax",    "fleps", "gorps", "jompus", "kivs",  "lorps", "mibs",  "nools",
    "plims", "quibs", "rompus", "snids", "tarks", "tumps",  "vamps", "wugs",  "yumps", "zets"};

static void draw_follows(lt_draft *d, lt_rng *r) {
    lt_draw_distinct(d, r, order_people[d->level - 1], LT_COUNT(classes));
}

static void write_follows(const lt_draft *d, lt_page *p, lt_rng *r) {
    const int n = (int)d->v[0], right = lt_pick(r, 4);
    const lt_num *chain = d->v + 1;
    int facts[MAX_PEOPLE], low, high;
    bool taken[MAX_PEOPLE][MAX_PEOPLE] = {{false}};
    permutation(r, facts, n - 1);
    lt_param_begin(p, "facts", "[");
    for (int i = 0; i < n - 1; i++) {
        const char *a = classes[chain[facts[i]]], *b = classes[chain[facts[i] + 1]];
        lt_say(&p->question, "All %s are %s. ", a, b);
        lt_say(&p->problem, "%s[\"%s\", \"%s\"]", i > 0 ? ", " : "", a, b);
    }
    /* The conclusion is about classes that are at least two apart. */
    low = lt_pick(r, n - 2);
    high = low + 2 + lt_pick(r, n - low - 2);
    lt_put(&p->question, "Which conclusion follows?");
    lt_put(&p->problem, "]");
    lt_param_begin(p, "choices", "[");
    for (int c = 0; c < 4; c++) {
        int a = low, b = high;
        if (c != right) { /* A wrong conclusion has the classes the wrong way round. */
            do {
                b = lt_pick(r, n - 1);
                a = b + 1 + lt_pick(r, n - b - 1);
            } while (taken[a][b]);
            taken[a][b] = true;
        }
        lt_say(&p->question, " (%c) All %s are %s.", 'A' + c, classes[chain[a]], classes[chain[b]]);
        lt_say(&p->problem, "%s[\"%s\", \"%s\"]", c > 0 ? ", " : "", classes[chain[a]],
               classes[chain[b]]);
    }
    lt_put(&p->problem, "]");
    for (int i = low; i < high; i++) {
        lt_say(&p->steps, "All %s are %s.\n", classes[chain[i]], classes[chain[i + 1]]);
    }
    lt_say(&p->steps, "So all %s are %s, which is (%c). The others are the wrong way round.\n",
           classes[chain[low]], classes[chain[high]], 'A' + right);
    lt_say(&p->answer, "%c", 'A' + right);
}

static const lt_task tasks[] = {
    {"order", 1, 5, "text", draw_order, write_order},
    {"seats", 1, 5, "text", draw_seats, write_seats},
    {"truth", 1, 5, "list", draw_truth, write_truth},
    {"match", 1, 5, "text", draw_match, write_match},
    {"follows", 1, 5, "choice", draw_follows, write_follows},
};

const lt_kind lt_kind_logic = {tasks, LT_COUNT(tasks)};
