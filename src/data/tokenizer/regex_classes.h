/* regex_classes.h: the named character classes of Oniguruma, in terms of PCRE2's.
 *
 * PCRE2 10.42 knows the characters of Unicode 14, Oniguruma those of Unicode 16, and some names
 * mean other classes there. tools/make_regex_classes.py compares the two on every code point. One
 * difference is left: U+1171E belongs to PCRE2's Mn. */
#ifndef LT_DATA_REGEX_CLASSES_H
#define LT_DATA_REGEX_CLASSES_H

#include <stdbool.h>
#include <stddef.h>

/* Names are in lower case, without spaces, hyphens and underscores. [word] and [punct] are \w
 * inside of a bracket and [[:punct:]], word and punct are \w outside of one and \p{punct}, and
 * "rust word" is \w of Rust's crates. */
typedef struct {
    const char *name, *alias; /* alias may be NULL. */
    bool complement;          /* The class is what the items do not contain. */
    const char *items;        /* They stand in a bracket of PCRE2. */
} lt_regex_class;

extern const lt_regex_class lt_regex_classes[];
extern const size_t lt_regex_n_classes;

#endif
