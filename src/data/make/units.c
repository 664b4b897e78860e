/* units.c: conversions of units, rates, percentages, and word problems about prices, shares,
 * recipes and work.
 *
 * A task has a table with a row for each kind of question: its level, how its numbers are drawn,
 * its wordings and steps. The wordings and steps are templates (lt_fill). The key is the row and
 * its numbers; persons and things do not count. */
#include <string.h>

#include "base/error.h"
#include "data/make/kind.h"

/* Numbers 0 to 3, {a} to {d}, are drawn: low + k step. solve computes the others, {e} to {h}; it
 * returns false if the numbers do not make a good problem. */
typedef struct {
    const char *name;
    int level_min, level_max;
    int n; /* How many numbers are drawn. */
    lt_num low[4], high[4], step[4];
    bool (*solve)(lt_fraction x[8]);
    const char *given; /* Letters of the numbers that the question states. */
    int answer;        /* Index of the result. */
    const char *unit;  /* Unit of the result, written after it. */
    const char *words[3];
    const char *steps;
} row;

static lt_fraction whole(lt_num n) {
    return (lt_fraction){n, 1};
}

#define ADD lt_fraction_add
#define SUB lt_fraction_sub
#define MUL lt_fraction_mul
#define DIV lt_fraction_div

static bool more_than_none(const lt_fraction *x, int from, int to) {
    for (int i = from; i <= to; i++) {
        if (x[i].n <= 0 || !lt_fraction_ends(x[i])) {
            return false;
        }
    }
    return true;
}

/* RATES: distance, speed, time. */
static bool distance_of(lt_fraction x[8]) {
    x[4] = MUL(x[0], x[1]);
    return true;
}

static bool minutes_of(lt_fraction x[8]) { /* a: speed, b: hours, c: minutes */
    x[4] = ADD(MUL(x[1], whole(60)), x[2]);
    x[5] = MUL(x[0], x[4]);
    x[6] = DIV(x[5], whole(60));
    return more_than_none(x, 6, 6);
}

static bool two_legs(lt_fraction x[8]) { /* a, c: speeds; b, d: hours */
    x[4] = MUL(x[0], x[1]);
    x[5] = MUL(x[2], x[3]);
    x[6] = ADD(x[4], x[5]);
    return x[0].n != x[2].n;
}

static bool mean_speed(lt_fraction x[8]) {
    lt_fraction hours = ADD(x[1], x[3]);
    if (!two_legs(x)) {
        return false;
    }
    x[7] = DIV(x[6], hours);
    return more_than_none(x, 7, 7);
}

static bool meeting(lt_fraction x[8]) { /* a, b: speeds; c: hours until they meet */
    x[4] = ADD(x[0], x[1]);
    x[5] = MUL(x[4], x[2]);
    return true;
}

/* clang-format off */
static const row rates[] = {
    {"distance", 1, 2, 2, {20, 2}, {160, 24}, {1, 1}, distance_of, "ab", 4, " km",
     {"A {C} travels at {a} km/h for {b} hours. How many kilometres does it travel?",
      "How far does a {C} go in {b} hours at {a} km/h?",
      "A {C} keeps a speed of {a} km/h. What distance does it cover in {b} hours?"},
     "The distance is speed times time: {a} * {b} = {e}.\n"},
    {"time", 1, 3, 2, {2, 20}, {24, 160}, {1, 1}, distance_of, "eb", 0, " hours",
     {"A {C} travels {e} km at {b} km/h. How many hours does that take?",
      "How many hours does a {C} need for {e} km at {b} km/h?",
      "At {b} km/h, how many hours does a {C} take to cover {e} km?"},
     "The time is distance over speed: {e} / {b} = {a}.\n"},
    {"speed", 1, 3, 2, {20, 2}, {160, 24}, {1, 1}, distance_of, "eb", 0, " km/h",
     {"A {C} travels {e} km in {b} hours. What is its average speed in km/h?",
      "What is the average speed in km/h of a {C} that covers {e} km in {b} hours?",
      "In {b} hours a {C} goes {e} km. How fast is it on average, in km/h?"},
     "The speed is distance over time: {e} / {b} = {a}.\n"},
    {"minutes", 3, 4, 3, {24, 1, 5}, {120, 5, 55}, {6, 1, 5}, minutes_of, "abc", 6, " km",
     {"A {C} travels at {a} km/h for {b} h {c} min. How many kilometres does it travel?",
      "How far does a {C} go in {b} hours and {c} minutes at {a} km/h, in km?",
      "At {a} km/h, what distance in km does a {C} cover in {b} h {c} min?"},
     "In minutes, the time is {b} * 60 + {c} = {e}.\n"
     "The distance is {a} * {e} / 60 = {g}.\n"},
    {"two legs", 3, 5, 4, {20, 1, 20, 1}, {120, 6, 120, 6}, {5, 1, 5, 1}, two_legs, "abcd", 6,
     " km",
     {"A {C} travels at {a} km/h for {b} hours, then at {c} km/h for {d} hours. How many "
      "kilometres is that in total?",
      "First a {C} goes {b} hours at {a} km/h, then {d} hours at {c} km/h. What is the total "
      "distance in km?",
      "A {C} covers one leg in {b} hours at {a} km/h and another in {d} hours at {c} km/h. How "
      "long are both together, in km?"},
     "The first leg: {a} * {b} = {e}.\n"
     "The second leg: {c} * {d} = {f}.\n"
     "Together: {e} + {f} = {g}.\n"},
    {"mean speed", 4, 5, 4, {20, 1, 20, 1}, {120, 6, 120, 6}, {5, 1, 5, 1}, mean_speed, "abcd", 7,
     " km/h",
     {"A {C} travels at {a} km/h for {b} hours, then at {c} km/h for {d} hours. What is its "
      "average speed in km/h?",
      "First a {C} goes {b} hours at {a} km/h, then {d} hours at {c} km/h. How fast is it on "
      "average, in km/h?",
      "A {C} covers one leg in {b} hours at {a} km/h and another in {d} hours at {c} km/h. Find "
      "its average speed in km/h."},
     "The first leg: {a} * {b} = {e}.\n"
     "The second leg: {c} * {d} = {f}.\n"
     "The whole distance: {e} + {f} = {g}.\n"
     "The whole time is {b} + {d} hours, so the average speed is {g} / ({b} + {d}) = {h}.\n"},
    {"meeting", 4, 5, 3, {20, 20, 2}, {120, 120, 9}, {1, 1, 1}, meeting, "abf", 2, " hours",
     {"Two {C}s start {f} km apart and drive towards each other at {a} km/h and {b} km/h. After "
      "how many hours do they meet?",
      "A {C} leaves at {a} km/h towards another {C}, {f} km away, which comes at {b} km/h. How "
      "many hours pass until they meet?",
      "The distance between two {C}s is {f} km. They approach each other at {a} km/h and {b} "
      "km/h. When do they meet, in hours?"},
     "They approach each other at {a} + {b} = {e} km/h.\n"
     "The time is {f} / {e} = {c}.\n"},
};
/* clang-format on */

/* PERCENTAGES. */
static bool part(lt_fraction x[8]) { /* a percent of b */
    x[4] = MUL(x[0], x[1]);
    x[5] = DIV(x[4], whole(100));
    return more_than_none(x, 5, 5);
}

static bool discount(lt_fraction x[8]) {
    if (!part(x)) {
        return false;
    }
    x[6] = SUB(x[1], x[5]);
    return true;
}

static bool increase(lt_fraction x[8]) {
    if (!part(x)) {
        return false;
    }
    x[6] = ADD(x[1], x[5]);
    return true;
}

static bool two_changes(lt_fraction x[8]) { /* b rises by a percent, then falls by c percent */
    x[4] = DIV(MUL(x[1], ADD(whole(100), x[0])), whole(100));
    x[5] = DIV(MUL(x[4], x[2]), whole(100));
    x[6] = SUB(x[4], x[5]);
    x[7] = ADD(whole(100), x[0]);
    return more_than_none(x, 4, 6);
}

static bool before_discount(lt_fraction x[8]) { /* b was the price; after a percent off it is f */
    x[4] = SUB(whole(100), x[0]);
    x[5] = DIV(MUL(x[1], x[4]), whole(100));
    x[6] = MUL(x[5], whole(100));
    return more_than_none(x, 4, 6) && x[5].d <= 2;
}

static bool share_of(lt_fraction x[8]) { /* f of b is a percent */
    if (!part(x) || x[5].d != 1) {
        return false;
    }
    x[6] = DIV(x[5], x[1]);
    return more_than_none(x, 6, 6);
}

/* clang-format off */
static const row percentages[] = {
    {"part", 1, 3, 2, {1, 10}, {99, 2000}, {1, 10}, part, "ab", 5, "",
     {"What is {a}% of {b}?",
      "Find {a} percent of {b}.",
      "How much is {a}% of {b}?"},
     "{a} * {b} = {e}.\n"
     "{e} / 100 = {f}.\n"},
    {"discount", 2, 4, 2, {2, 10}, {60, 1500}, {1, 5}, discount, "ab", 6, " dollars",
     {"A {D} costs {b} dollars. Its price falls by {a}%. What is the new price in dollars?",
      "{A} buys a {D} of {b} dollars at a discount of {a}%. How many dollars does {A} pay?",
      "In a sale, {a}% is taken off the price of a {D}, which was {b} dollars. What does it cost "
      "now, in dollars?"},
     "The discount is {b} * {a} / 100 = {f}.\n"
     "The new price is {b} - {f} = {g}.\n"},
    {"increase", 2, 4, 2, {2, 10}, {60, 1500}, {1, 5}, increase, "ab", 6, " dollars",
     {"A {D} costs {b} dollars. Its price rises by {a}%. What is the new price in dollars?",
      "The price of a {D}, {b} dollars, goes up by {a}%. How many dollars is it now?",
      "{A} raises the price of a {D} from {b} dollars by {a}%. What does it cost then, in "
      "dollars?"},
     "The increase is {b} * {a} / 100 = {f}.\n"
     "The new price is {b} + {f} = {g}.\n"},
    {"share", 3, 5, 2, {2, 10}, {98, 1500}, {1, 5}, share_of, "fb", 0, "%",
     {"What percentage of {b} is {f}?",
      "{f} of {b} {E} are {B}'s. What percentage is that?",
      "Of {b} {E}, {A} sells {f}. What percentage of them is that?"},
     "The share is {f} / {b} = {g}.\n"
     "In percent: {g} * 100 = {a}.\n"},
    {"two changes", 4, 5, 3, {5, 100, 5}, {50, 900, 50}, {5, 20, 5}, two_changes, "bac", 6,
     " dollars",
     {"The price of a {D} is {b} dollars. It rises by {a}% and then falls by {c}%. What is it "
      "now, in dollars?",
      "{A} raises the price of a {D} from {b} dollars by {a}%, then gives {c}% off. How many "
      "dollars does it cost?",
      "A {D} costs {b} dollars. Find its price in dollars after an increase of {a}% followed by "
      "a discount of {c}%."},
     "After the rise: {b} * {h} / 100 = {e}.\n"
     "The fall is {e} * {c} / 100 = {f}.\n"
     "The price is then {e} - {f} = {g}.\n"},
    {"before", 4, 5, 2, {2, 10}, {80, 1500}, {1, 5}, before_discount, "af", 1, " dollars",
     {"After a discount of {a}%, a {D} costs {f} dollars. What was its price before, in dollars?",
      "{A} pays {f} dollars for a {D} that was {a}% off. How many dollars did it cost originally?",
      "The price of a {D} fell by {a}% to {f} dollars. What was it at first, in dollars?"},
     "What remains is 100 - {a} = {e} percent of the price.\n"
     "{f} * 100 = {g}, and {g} / {e} = {b}.\n"},
};
/* clang-format on */

/* PRICES. */
static bool total(lt_fraction x[8]) {
    x[4] = MUL(x[0], x[1]);
    return true;
}

static bool two_totals(lt_fraction x[8]) {
    x[4] = MUL(x[0], x[1]);
    x[5] = MUL(x[2], x[3]);
    x[6] = ADD(x[4], x[5]);
    return x[1].n != x[3].n;
}

static bool change(lt_fraction x[8]) { /* c: the note */
    x[4] = MUL(x[0], x[1]);
    x[5] = SUB(x[2], x[4]);
    return x[5].n > 0;
}

static bool how_many(lt_fraction x[8]) { /* a: money, b: price, c: a first purchase */
    x[4] = SUB(x[0], x[2]);
    if (x[4].n <= 0) {
        return false;
    }
    x[5] = whole(x[4].n / x[1].n);
    x[6] = MUL(x[5], x[1]);
    x[7] = SUB(x[4], x[6]);
    return x[5].n > 1;
}

/* clang-format off */
static const row prices[] = {
    {"total", 1, 2, 2, {2, 2}, {99, 150}, {1, 1}, total, "ab", 4, " dollars",
     {"{A} buys {a} {E} at {b} dollars each. How many dollars is that?",
      "One of the {E} costs {b} dollars. What do {a} of them cost, in dollars?",
      "How many dollars does {A} pay for {a} {E} if each costs {b} dollars?"},
     "{a} * {b} = {e}.\n"},
    {"two totals", 2, 4, 4, {2, 2, 2, 2}, {15, 30, 15, 30}, {1, 1, 1, 1}, two_totals, "abcd", 6,
     " dollars",
     {"{A} buys {a} {E} at {b} dollars each and {c} {F} at {d} dollars each. How many dollars is "
      "that in total?",
      "The {E} cost {b} dollars each and the {F} {d} dollars each. What do {a} {E} and {c} {F} "
      "cost together, in dollars?",
      "How many dollars does {A} pay for {a} {E} of {b} dollars and {c} {F} of {d} dollars?"},
     "The {E}: {a} * {b} = {e}.\n"
     "The {F}: {c} * {d} = {f}.\n"
     "Together: {e} + {f} = {g}.\n"},
    {"change", 2, 4, 3, {2, 2, 50}, {30, 90, 2000}, {1, 1, 50}, change, "abc", 5, " dollars",
     {"{A} buys {a} {E} at {b} dollars each and pays with {c} dollars. How many dollars does {A} "
      "get back?",
      "{A} has {c} dollars and buys {a} {E}, each for {b} dollars. How many dollars are left?",
      "From {c} dollars, {A} spends {b} dollars on each of {a} {E}. What remains, in dollars?"},
     "The {E} cost {a} * {b} = {e}.\n"
     "What remains is {c} - {e} = {f}.\n"},
    {"how many", 3, 5, 3, {50, 3, 5}, {600, 40, 90}, {1, 1, 1}, how_many, "abc", 5, "",
     {"{A} has {a} dollars and spends {c} of them on a {D}. How many {E} at {b} dollars each can "
      "{A} then buy at most?",
      "After paying {c} dollars for a {D}, {A} buys as many {E} as possible with the rest of {a} "
      "dollars. Each costs {b} dollars. How many are they?",
      "A {D} costs {c} dollars and each of the {E} {b} dollars. {A} has {a} dollars and buys one "
      "{D} and then only {E}. How many at most?"},
     "After the {D}, {a} - {c} = {e} dollars are left.\n"
     "{f} * {b} = {g} is affordable, and {e} - {g} = {h} is less than {b}.\n"},
};
/* clang-format on */

/* SHARES, RECIPES, WORK. */
static bool times_as_many(lt_fraction x[8]) { /* A has a times as many as B, who has b */
    x[4] = ADD(x[0], whole(1));
    x[5] = MUL(x[4], x[1]);
    x[6] = MUL(x[0], x[1]);
    return true;
}

static bool more_than(lt_fraction x[8]) { /* A has a more than B, who has b */
    x[4] = ADD(ADD(x[1], x[1]), x[0]);
    x[5] = SUB(x[4], x[0]);
    x[6] = ADD(x[1], x[0]);
    return true;
}

static bool ratio(lt_fraction x[8]) { /* c units are shared as a to b */
    x[4] = ADD(x[0], x[1]);
    x[5] = MUL(x[4], x[2]);
    x[6] = MUL(x[2], x[0]);
    return x[0].n != x[1].n && lt_gcd(x[0].n, x[1].n) == 1;
}

static bool recipe(lt_fraction x[8]) { /* a people need b grams; how much for c? */
    x[4] = DIV(x[1], x[0]);
    x[5] = MUL(x[4], x[2]);
    return x[4].d == 1 && x[0].n != x[2].n;
}

static bool work(lt_fraction x[8]) { /* a workers need b hours; how long do c need? */
    x[4] = MUL(x[0], x[1]);
    x[5] = DIV(x[4], x[2]);
    return x[0].n != x[2].n && lt_fraction_ends(x[5]);
}

static bool rented(lt_fraction x[8]) { /* a to begin with, b an hour, c hours */
    x[4] = MUL(x[1], x[2]);
    x[5] = ADD(x[0], x[4]);
    return true;
}

/* clang-format off */
static const row shares[] = {
    {"times as many", 2, 4, 2, {2, 2}, {12, 500}, {1, 1}, times_as_many, "af", 6, "",
     {"{A} has {a} times as many {E} as {B}. Together they have {f}. How many does {A} have?",
      "{A} and {B} have {f} {E} together, and {A} has {a} times as many as {B}. How many {E} has "
      "{A}?",
      "Together, {B} and {A} own {f} {E}. {A} owns {a} times as many as {B}. How many does {A} "
      "own?"},
     "In shares of {B}, both have {a} + 1 = {e}.\n"
     "One share is {f} / {e} = {b}.\n"
     "{A} has {a} * {b} = {g}.\n"},
    {"more than", 2, 4, 2, {2, 2}, {250, 500}, {1, 1}, more_than, "ae", 6, "",
     {"{A} has {a} more {E} than {B}. Together they have {e}. How many does {A} have?",
      "{A} and {B} have {e} {E} together, and {A} has {a} more than {B}. How many {E} has {A}?",
      "Together, {B} and {A} own {e} {E}. {A} owns {a} more than {B}. How many does {A} own?"},
     "Without the {a} more, they would have {e} - {a} = {f}.\n"
     "Half of it is what {B} has: {f} / 2 = {b}.\n"
     "{A} has {b} + {a} = {g}.\n"},
    {"ratio", 3, 5, 3, {1, 1, 2}, {9, 9, 60}, {1, 1, 1}, ratio, "abf", 6, "",
     {"{A} and {B} share {f} {E} in the ratio {a} to {b}. How many does {A} get?",
      "{f} {E} are divided between {A} and {B} as {a} to {b}. How many {E} does {A} get?",
      "{A} gets {a} parts and {B} {b} parts of {f} {E}. How many does {A} get?"},
     "There are {a} + {b} = {e} parts.\n"
     "One part is {f} / {e} = {c}.\n"
     "{A} gets {c} * {a} = {g}.\n"},
    {"recipe", 2, 4, 3, {2, 50, 2}, {12, 1200, 20}, {1, 10, 1}, recipe, "abc", 5, " grams",
     {"A recipe for {a} people needs {b} grams of {G}. How many grams are needed for {c} people?",
      "{A} cooks for {c} people. The recipe says {b} grams of {G} for {a} people. How many grams "
      "does {A} need?",
      "For {a} people, {b} grams of {G} are enough. How many grams do {c} people need?"},
     "One person needs {b} / {a} = {e} grams.\n"
     "{e} * {c} = {f}.\n"},
    {"work", 3, 5, 3, {2, 2, 2}, {15, 40, 15}, {1, 1, 1}, work, "abc", 5, " hours",
     {"{a} workers need {b} hours to build a {H}. How many hours do {c} workers need?",
      "It takes {a} people {b} hours to build a {H}. How many hours does it take {c} people?",
      "A {H} was built by {a} workers in {b} hours. In how many hours could {c} workers build it?"},
     "The work is {a} * {b} = {e} hours of one worker.\n"
     "{e} / {c} = {f}.\n"},
    {"rented", 1, 3, 3, {5, 2, 2}, {60, 30, 12}, {1, 1, 1}, rented, "abc", 5, " dollars",
     {"Renting a {C} costs {a} dollars and {b} dollars an hour. How many dollars do {c} hours "
      "cost?",
      "{A} rents a {C} for {c} hours. The price is {a} dollars plus {b} dollars for each hour. "
      "How many dollars does {A} pay?",
      "A {C} can be rented for {b} dollars an hour and a fee of {a} dollars. What is the price "
      "of {c} hours, in dollars?"},
     "The hours cost {b} * {c} = {e}.\n"
     "With the fee: {a} + {e} = {f}.\n"},
};
/* clang-format on */

/* CONVERSIONS: v becomes v * n / d. v is drawn as a multiple of 1 / scale. */
typedef struct {
    int level_min, level_max;
    const char *from, *to, *fact;
    lt_num n, d, scale, high;
} conversion;

/* clang-format off */
static const conversion conversions[] = {
    {1, 2, "km", "m", "1 km has 1000 m", 1000, 1, 1, 5000},
    {1, 2, "m", "cm", "1 m has 100 cm", 100, 1, 1, 5000},
    {1, 2, "kg", "g", "1 kg has 1000 g", 1000, 1, 1, 5000},
    {1, 2, "litres", "mL", "1 litre has 1000 mL", 1000, 1, 1, 5000},
    {1, 2, "hours", "minutes", "1 hour has 60 minutes", 60, 1, 1, 3000},
    {1, 2, "minutes", "seconds", "1 minute has 60 seconds", 60, 1, 1, 3000},
    {1, 2, "days", "hours", "1 day has 24 hours", 24, 1, 1, 3000},
    {2, 3, "m", "km", "1 km has 1000 m", 1, 1000, 1, 9999},
    {2, 3, "cm", "m", "1 m has 100 cm", 1, 100, 1, 9999},
    {2, 3, "g", "kg", "1 kg has 1000 g", 1, 1000, 1, 9999},
    {2, 3, "mL", "litres", "1 litre has 1000 mL", 1, 1000, 1, 9999},
    {2, 3, "minutes", "hours", "1 hour has 60 minutes", 1, 60, 1, 2000},
    {3, 4, "km", "m", "1 km has 1000 m", 1000, 1, 100, 90},
    {3, 4, "kg", "g", "1 kg has 1000 g", 1000, 1, 100, 90},
    {3, 4, "litres", "mL", "1 litre has 1000 mL", 1000, 1, 100, 90},
    {3, 4, "hours", "minutes", "1 hour has 60 minutes", 60, 1, 10, 90},
    {3, 4, "days", "minutes", "1 day has 24 hours of 60 minutes, which is 1440 minutes", 1440, 1, 1,
     400},
    {3, 4, "hours", "seconds", "1 hour has 60 minutes of 60 seconds, which is 3600 seconds", 3600,
     1, 1, 60},
    {4, 5, "km/h", "m/s", "1 km has 1000 m and 1 hour has 3600 seconds", 1000, 3600, 1, 999},
    {4, 5, "m/s", "km/h", "1 hour has 3600 seconds and 1 km has 1000 m", 3600, 1000, 10, 90},
    {4, 5, "litres per minute", "mL per second", "1 litre has 1000 mL and 1 minute has 60 seconds",
     1000, 60, 1, 900},
    {4, 5, "square metres", "square centimetres",
     "1 square metre has 100 * 100 = 10000 square centimetres", 10000, 1, 10, 90},
    {4, 5, "square metres", "hectares", "1 hectare has 10000 square metres", 1, 10000, 1, 99999},
    {4, 5, "cubic centimetres", "litres", "1 litre has 1000 cubic centimetres", 1, 1000, 1, 99999},
};
/* clang-format on */

static bool fits(int level, int low, int high) {
    return low <= level && level <= high;
}

static void draw_conversion(lt_draft *d, lt_rng *r) {
    const conversion *c;
    lt_fraction result;
    do {
        d->v[0] = lt_pick(r, LT_COUNT(conversions));
        c = &conversions[d->v[0]];
        d->v[1] = lt_between(r, 2, c->high * c->scale);
        result = lt_fraction_of(d->v[1] * c->n, c->scale * c->d);
    } while (!fits(d->level, c->level_min, c->level_max) || !lt_fraction_ends(result));
    lt_key(d, 2);
}

static void write_conversion(const lt_draft *d, lt_page *p, lt_rng *r) {
    static const char *const words[] = {"Convert {a} {A} to {B}.", "How many {B} are {a} {A}?",
                                        "Write {a} {A} in {B}.", "What is {a} {A} in {B}?"};
    const conversion *c = &conversions[d->v[0]];
    const lt_fraction a = lt_fraction_of(d->v[1], c->scale);
    const lt_fraction e = lt_fraction_mul(a, lt_fraction_of(c->n, c->d));
    const lt_slots s = {.numbers = {a, whole(c->n), whole(c->d), MUL(a, whole(c->n)), e},
                        .words = {c->from, c->to, c->fact}};
    lt_fill(&p->question, words[lt_pick(r, LT_COUNT(words))], &s);
    lt_fill(&p->steps, "{C}.\n", &s);
    lt_fill(&p->steps,
            c->d == 1   ? "{a} * {b} = {e}.\n"
            : c->n == 1 ? "{a} / {c} = {e}.\n"
                        : "{a} * {b} = {d} and {d} / {c} = {e}.\n",
            &s);
    lt_put_decimal(&p->answer, e);
    lt_fill(&p->answer, " {B}", &s);
    lt_param_text(p, "from", c->from);
    lt_param_text(p, "to", c->to);
    lt_param_begin(p, "value", "");
    lt_put_decimal(&p->problem, a);
}

/* The word problems: v = row, numbers. */
static void draw_row(lt_draft *d, lt_rng *r, const row *rows, int n) {
    const row *at;
    lt_fraction x[8];
    do {
        d->v[0] = lt_pick(r, n);
        at = &rows[d->v[0]];
    } while (!fits(d->level, at->level_min, at->level_max));
    do {
        for (int i = 0; i < at->n; i++) {
            const lt_num steps = (at->high[i] - at->low[i]) / at->step[i];
            d->v[1 + i] = at->low[i] + at->step[i] * lt_between(r, 0, steps);
            x[i] = whole(d->v[1 + i]);
        }
    } while (!at->solve(x));
    lt_key(d, 1 + at->n);
}

static const char *const vehicles[] = {"car", "bus", "train", "van", "truck", "motorcycle", "taxi"};
static const char *const goods[] = {"coat", "lamp", "book", "chair",  "table",  "radio",
                                    "bag",  "tent", "bike", "kettle", "camera", "jacket"};
static const char *const things[] = {"pens",   "cups",     "cards", "stamps", "apples",  "marbles",
                                     "shells", "stickers", "balls", "plates", "candles", "ribbons"};
static const char *const foods[] = {"flour", "rice", "sugar", "butter", "pasta", "cheese"};
static const char *const works[] = {"wall", "barn", "boat", "shed", "fence", "tower"};

static void write_row(const lt_draft *d, lt_page *p, lt_rng *r, const row *rows) {
    const row *at = &rows[d->v[0]];
    int who[2], what[2];
    lt_slots s = {0};
    lt_distinct(r, 2, LT_N_NAMES, who);
    lt_distinct(r, 2, LT_COUNT(things), what);
    s = (lt_slots){
        .words = {lt_names[who[0]], lt_names[who[1]], vehicles[lt_pick(r, LT_COUNT(vehicles))],
                  goods[lt_pick(r, LT_COUNT(goods))], things[what[0]], things[what[1]],
                  foods[lt_pick(r, LT_COUNT(foods))], works[lt_pick(r, LT_COUNT(works))]}};
    for (int i = 0; i < 8; i++) {
        s.numbers[i] = whole(i < at->n ? d->v[1 + i] : 0);
    }
    (void)at->solve(s.numbers);
    lt_fill(&p->question, at->words[lt_pick(r, LT_COUNT(at->words))], &s);
    lt_fill(&p->steps, at->steps, &s);
    lt_put_decimal(&p->answer, s.numbers[at->answer]);
    lt_put(&p->answer, at->unit);
    lt_param_text(p, "asked", at->name);
    lt_param_begin(p, "given", "[");
    for (const char *letter = at->given; *letter != 0; letter++) {
        lt_put(&p->problem, letter > at->given ? ", " : "");
        lt_put_decimal(&p->problem, s.numbers[*letter - 'a']);
    }
    lt_put(&p->problem, "]");
}

#define ROWS(name)                                                                                 \
    static void draw_##name(lt_draft *d, lt_rng *r) {                                              \
        draw_row(d, r, name, LT_COUNT(name));                                                      \
    }                                                                                              \
    static void write_##name(const lt_draft *d, lt_page *p, lt_rng *r) {                           \
        write_row(d, p, r, name);                                                                  \
    }
ROWS(rates)
ROWS(percentages)
ROWS(prices)
ROWS(shares)

static const lt_task tasks[] = {
    {"conversion", 1, 5, "number", draw_conversion, write_conversion},
    {"rates", 1, 5, "number", draw_rates, write_rates},
    {"percentages", 1, 5, "number", draw_percentages, write_percentages},
    {"prices", 1, 5, "number", draw_prices, write_prices},
    {"shares", 1, 5, "number", draw_shares, write_shares},
};

const lt_kind lt_kind_units = {tasks, LT_COUNT(tasks)};
