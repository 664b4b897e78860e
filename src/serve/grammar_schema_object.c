/* grammar_schema_object.c: arrays and objects of schemas.
 *
 * Properties come in the schema's order, each a rule; then others. What a key's value must satisfy is its property's schema and those of all
 * patterns that the key matches: a key's language is cut into the sets of patterns, and each piece gets the schemas of its set, merged. */
#include <stdlib.h>
#include <string.h>

#include "serve/grammar_schema.h"

#define MAX_PROPERTIES 2000

/* ---- arrays ---- */

static lt_gid comma(lt_gschema_reader *r) {
    const lt_gid ws = lt_gjson_space(r->g);
    return lt_gast_seq3(r->g, ws, lt_gast_text(r->g, ","), ws);
}

/* More items of one kind behind n of them: between min and max in all. */
static lt_gid more_items(lt_gschema_reader *r, lt_gid item, int64_t n, int64_t min, int64_t max) {
    lt_gast *g = r->g;
    const int64_t lo = min > n ? min - n : 0, hi = max == LT_GINF ? LT_GINF : max - n;
    const lt_gid next = lt_gast_seq2(g, comma(r), item);
    lt_gid some;
    if (n > 0) {
        return lt_gast_repeat(g, next, (int32_t)lo, (int32_t)hi);
    }
    if (hi <= 0) {
        return lt_gast_empty(g);
    }
    some = lt_gast_seq2(g, item,
                        lt_gast_repeat(g, next, (int32_t)(lo > 0 ? lo - 1 : 0),
                                       hi == LT_GINF ? LT_GINF : (int32_t)hi - 1));
    return lo > 0 ? some : lt_gast_repeat(g, some, 0, 1);
}

lt_err lt_gschema_array(lt_gschema_reader *r, const json_t *s, lt_gid *out) {
    lt_gast *g = r->g;
    const json_t *items = json_object_get(s, "items"), *prefix = json_object_get(s, "prefixItems");
    const lt_gid ws = lt_gjson_space(g);
    int64_t min = 0, max = LT_GINF;
    lt_gid item = -1, tail, body;
    if (json_is_array(items)) { /* Draft 7's tuple. */
        prefix = items;
        items = json_object_get(s, "additionalItems");
    }
    const int64_t n = (int64_t)json_array_size(prefix);
    LT_TRY(lt_gschema_count(s, "minItems", &min));
    LT_TRY(lt_gschema_count(s, "maxItems", &max));
    if (json_is_false(items)) {
        max = max < n ? max : n;
    } else if (items != NULL) {
        LT_TRY(lt_gschema_any(r, items, &item));
        item = lt_gast_ref(g, lt_gast_new_rule(g, item));
    } else {
        item = lt_gjson_value(g);
    }
    if (min > max) {
        *out = lt_gast_never(g);
        return LT_OK;
    }
    body = item < 0 ? lt_gast_empty(g) : more_items(r, item, n, min, max > n || n == 0 ? max : n);
    for (int64_t i = n - 1; i >= 0; i--) { /* From the last: each may be where the array ends. */
        lt_gid one = -1;
        LT_TRY(lt_gschema_any(r, json_array_get(prefix, (size_t)i), &one));
        tail = lt_gast_seq2(g, i > 0 ? lt_gast_seq2(g, comma(r), one) : one, body);
        body = i >= max ? lt_gast_empty(g) : i >= min ? lt_gast_repeat(g, tail, 0, 1) : tail;
        if (g->failed) {
            return lt_gast_check(g);
        }
    }
    *out = lt_gast_list(g, LT_GNODE_SEQ,
                        (const lt_gid[]){lt_gast_text(g, "["), ws, body, ws, lt_gast_text(g, "]")},
                        5);
    return LT_OK;
}

/* ---- objects ---- */

static bool is_required(const json_t *s, const char *key) {
    return lt_gschema_has(json_object_get(s, "required"), key);
}

static lt_gid pair_of(lt_gschema_reader *r, lt_gid key, lt_gid value) {
    const lt_gid ws = lt_gjson_space(r->g);
    return lt_gast_list(
        r->g, LT_GNODE_SEQ,
        (const lt_gid[]){lt_gjson_quoted(r->g, key), ws, lt_gast_text(r->g, ":"), ws, value}, 5);
}

enum { PATTERNS = 3 }; /* Of patternProperties beside others; each doubles what a key may be. */

/* Keys, and what they may be: patternProperties and propertyNames as languages of keys. */
typedef struct {
    const json_t *schemas[PATTERNS];
    lt_gid keys[PATTERNS];
    size_t n;
    lt_gid names; /* propertyNames; -1: any. */
} key_rules;

/* propertyNames: a schema of strings. */
static lt_err name_rule(lt_gschema_reader *r, const json_t *s, lt_gid *out) {
    const json_t *names = json_object_get(s, "propertyNames"), *list, *v;
    lt_gids alts = {0};
    size_t i;
    *out = -1;
    if (names == NULL || json_is_true(names)) {
        return LT_OK;
    }
    if (json_is_string(json_object_get(names, "$ref")) && json_object_size(names) == 1) {
        LT_TRY(
            lt_gschema_resolve(r->root, json_string_value(json_object_get(names, "$ref")), &names));
    }
    list = json_object_get(names, "enum");
    if (list == NULL) {
        const char *type = json_string_value(json_object_get(names, "type"));
        if (json_is_false(names) || json_object_get(names, "const") != NULL ||
            json_object_get(names, "anyOf") != NULL || json_object_get(names, "allOf") != NULL ||
            json_object_get(names, "oneOf") != NULL || json_object_get(names, "not") != NULL ||
            json_object_get(names, "$ref") != NULL ||
            (type == NULL ? json_object_get(names, "type") != NULL : strcmp(type, "string") != 0)) {
            return lt_gschema_refuse("propertyNames other than enum, pattern, format and lengths");
        }
        return lt_gschema_string_content(r, names, out);
    }
    json_array_foreach(list, i, v) {
        if (json_is_string(v)) {
            lt_gids_push(r->g, &alts,
                         lt_gjson_content(r->g, json_string_value(v), json_string_length(v)));
        }
    }
    *out = lt_gast_list(r->g, LT_GNODE_ALT, alts.v, alts.n);
    free(alts.v);
    return LT_OK;
}

static lt_err read_key_rules(lt_gschema_reader *r, const json_t *s, key_rules *k) {
    const json_t *patterns = json_object_get(s, "patternProperties");
    const char *pattern;
    json_t *value;
    k->n = 0;
    if (json_object_size(patterns) > PATTERNS) {
        return lt_gschema_refuse("patternProperties with more than 3 patterns");
    }
    json_object_foreach((json_t *)(uintptr_t)patterns, pattern, value) {
        LT_TRY(lt_gregex_read(r->g, pattern, strlen(pattern), true, true, &k->keys[k->n]));
        k->schemas[k->n++] = value;
    }
    return name_rule(r, s, &k->names);
}

/* Pairs of a key with the value that a schema (NULL: any that a pattern allows) and the patterns which the key matches ask for: an alternative for each
 * set of patterns. */
static lt_err ruled_pair(lt_gschema_reader *r, const key_rules *k, lt_gid key, const json_t *value,
                         lt_gid *out) {
    lt_gast *g = r->g;
    lt_gids alts = {0};
    lt_err err = LT_OK;
    for (unsigned set = value == NULL ? 1 : 0; set < 1U << k->n; set++) {
        lt_gid one = key, v = -1;
        const json_t *all = value;
        for (size_t i = 0; i < k->n; i++) {
            const bool in = (set >> i & 1) != 0;
            one = lt_gast_pair(g, in ? LT_GNODE_AND : LT_GNODE_MINUS, one, k->keys[i]);
            if (in && all == NULL) {
                all = k->schemas[i];
            } else if (in) {
                LT_TRY_DONE(lt_gschema_merged(r, all, k->schemas[i], &all));
            }
        }
        LT_TRY_DONE(lt_gschema_any(r, all, &v));
        lt_gids_push(
            g, &alts,
            pair_of(r, k->names >= 0 ? lt_gast_pair(g, LT_GNODE_AND, one, k->names) : one, v));
    }
    *out = alts.n == 0   ? -1
           : alts.n == 1 ? alts.v[0]
                         : lt_gast_list(g, LT_GNODE_ALT, alts.v, alts.n);
done:
    free(alts.v);
    return err;
}

/* Members beside the properties: by pattern, then whatever additionalProperties says. *out -1: none. */
static lt_err other_members(lt_gschema_reader *r, const json_t *s, const key_rules *k,
                            lt_gid *out) {
    lt_gast *g = r->g;
    const json_t *properties = json_object_get(s, "properties");
    const json_t *additional = json_object_get(s, "additionalProperties");
    const bool closed = additional == NULL ? json_object_size(properties) > 0 || k->n > 0
                                           : json_is_false(additional);
    lt_gids names = {0};
    const char *key;
    json_t *value;
    lt_gid other = lt_gast_repeat(g, lt_gjson_char(g), 0, LT_GINF);

    json_object_foreach((json_t *)(uintptr_t)properties, key, value) {
        lt_gids_push(g, &names, lt_gjson_content(g, key, strlen(key)));
    }
    if (names.n > 0) {
        other = lt_gast_pair(g, LT_GNODE_MINUS, other,
                             lt_gast_list(g, LT_GNODE_ALT, names.v, names.n));
    }
    free(names.v);
    *out = -1;
    if (closed) {
        LT_TRY(ruled_pair(r, k, other, NULL, out));
    } else if (k->n == 0) {
        LT_TRY(ruled_pair(r, k, other, additional != NULL ? additional : json_true(), out));
    } else {
        lt_gid by_pattern = -1, v = -1;
        LT_TRY(ruled_pair(r, k, other, NULL, &by_pattern));
        for (size_t i = 0; i < k->n; i++) {
            other = lt_gast_pair(g, LT_GNODE_MINUS, other, k->keys[i]);
        }
        other = k->names >= 0 ? lt_gast_pair(g, LT_GNODE_AND, other, k->names) : other;
        LT_TRY(lt_gschema_any(r, additional != NULL ? additional : json_true(), &v));
        *out = lt_gast_alt2(g, by_pattern, pair_of(r, other, v));
    }
    if (*out >= 0) {
        *out = lt_gast_ref(g, lt_gast_new_rule(g, *out));
    }
    return LT_OK;
}

typedef struct {
    lt_gid pair;
    bool required;
} member;

/* properties, and required names that are not among them. */
static lt_err members_of(lt_gschema_reader *r, const json_t *s, const key_rules *k, member *m,
                         size_t *n) {
    lt_gast *g = r->g;
    const json_t *properties = json_object_get(s, "properties"),
                 *additional = json_object_get(s, "additionalProperties");
    const char *key;
    json_t *value;
    size_t i;
    lt_gid pair = -1;
    *n = 0;
    json_object_foreach((json_t *)(uintptr_t)properties, key, value) {
        LT_TRY(ruled_pair(r, k, lt_gjson_content(g, key, strlen(key)), value, &pair));
        m[*n].pair = lt_gast_ref(g, lt_gast_new_rule(g, pair));
        m[(*n)++].required = is_required(s, key);
    }
    json_array_foreach(json_object_get(s, "required"), i, value) {
        if (!json_is_string(value)) {
            return lt_gschema_wrong("required", "holds something that is not a string");
        }
        if (json_object_get(properties, json_string_value(value)) == NULL) {
            if (k->n > 0) {
                return lt_gschema_refuse("required of a key that patternProperties rule");
            }
            LT_TRY(ruled_pair(
                r, k, lt_gjson_content(g, json_string_value(value), json_string_length(value)),
                additional != NULL ? additional : json_true(), &m[*n].pair));
            m[(*n)++].required = true;
        }
    }
    return LT_OK;
}

/* after[i]: what may follow when members before i are settled and something was written; first[i]: when nothing was. Built from the last
 * member, each a rule, so that the whole grows with the number of members. */
static lt_gid chain(lt_gschema_reader *r, const member *m, size_t n, lt_gid other, int64_t min,
                    int64_t max) {
    lt_gast *g = r->g;
    lt_gid after = lt_gast_empty(g), first = lt_gast_empty(g);
    if (other >= 0) {
        after = more_items(r, other, n > 0 ? 1 : 0, 0, LT_GINF);
        first = more_items(r, other, 0, n == 0 ? min : 0, n == 0 ? max : LT_GINF);
        after = n > 0 ? after : first;
    }
    for (size_t i = n; i-- > 0 && !g->failed;) {
        const lt_gid rest = lt_gast_ref(g, lt_gast_new_rule(g, after));
        const lt_gid next = lt_gast_seq2(g, comma(r), m[i].pair);
        first = m[i].required ? lt_gast_seq2(g, m[i].pair, rest)
                              : lt_gast_alt2(g, lt_gast_seq2(g, m[i].pair, rest),
                                             lt_gast_ref(g, lt_gast_new_rule(g, first)));
        after = lt_gast_seq2(g, m[i].required ? next : lt_gast_repeat(g, next, 0, 1), rest);
    }
    return first;
}

lt_err lt_gschema_object(lt_gschema_reader *r, const json_t *s, lt_gid *out) {
    lt_gast *g = r->g;
    const size_t room = json_object_size(json_object_get(s, "properties")) +
                        json_array_size(json_object_get(s, "required")) + 1;
    const lt_gid ws = lt_gjson_space(g);
    int64_t min = 0, max = LT_GINF, n_required = 0;
    size_t n = 0;
    lt_gid other = -1, body;
    key_rules rules;
    member *m = calloc(room, sizeof *m);
    lt_err err = LT_OK;

    if (m == NULL || room > MAX_PROPERTIES) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "schema: an object of more than %d properties", MAX_PROPERTIES);
    }
    LT_TRY_DONE(lt_gschema_count(s, "minProperties", &min));
    LT_TRY_DONE(lt_gschema_count(s, "maxProperties", &max));
    LT_TRY_DONE(read_key_rules(r, s, &rules));
    LT_TRY_DONE(members_of(r, s, &rules, m, &n));
    LT_TRY_DONE(other_members(r, s, &rules, &other));
    for (size_t i = 0; i < n; i++) {
        n_required += m[i].required;
    }
    if (n > 0 && (min > n_required || (max < (int64_t)n || (other >= 0 && max != LT_GINF)))) {
        err = lt_gschema_refuse("minProperties or maxProperties beside properties");
        goto done;
    }
    body = chain(r, m, n, other, min, max);
    *out = n == 0 && other < 0 && min > 0
               ? lt_gast_never(g)
               : lt_gast_list(
                     g, LT_GNODE_SEQ,
                     (const lt_gid[]){lt_gast_text(g, "{"), ws, body, ws, lt_gast_text(g, "}")}, 5);
done:
    free(m);
    return err;
}
