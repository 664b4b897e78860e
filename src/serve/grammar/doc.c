/* grammar/doc.c: see grammar/doc.h.
 *
 * All objects and arrays of the document are listed once, each after its parent, with the resource
 * that it belongs to: the nearest schema around it with an $id. References are resolved against
 * that resource's address. A reference is an address that some $id of the document gives, followed
 * by nothing, a pointer ("/$defs/a") or the name of an $anchor. If a pointer has no target in its
 * resource, the document's root is tried: many schemas have an inner $id but mean the root. */
#include "serve/grammar/doc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/option.h"
#include "serve/grammar/dfa.h"

#define MAX_PLACES 2000000

typedef struct {
    const json_t *v;
    int32_t parent; /* -1: the root. */
    int32_t resource;
    const char *key; /* Key in an object; NULL: an array's element. */
    int32_t index;
    bool map;  /* The names of its members are not keywords, as in "properties". */
    bool data; /* Within enum, const and similar keywords: it is not a schema. */
} place;

typedef struct {
    char *uri; /* Without a fragment. */
    const json_t *v;
} resource;

typedef struct {
    int32_t resource;
    const char *name;
    const json_t *v;
    bool dynamic;
} anchor;

struct lt_gdoc {
    const json_t *root;
    int draft;
    bool named;
    place *places;
    size_t n_places, places_room;
    int32_t *table; /* Hash table by the address of the value. */
    size_t cells;
    resource *resources;
    size_t n_resources, resources_room;
    anchor *anchors;
    size_t n_anchors, anchors_room;
};

static bool is_map(const char *key) {
    static const char *const maps[] = {"properties",  "patternProperties", "$defs",
                                       "definitions", "dependentSchemas",  "dependencies",
                                       NULL};
    return lt_name_is_one_of(key, maps);
}

static bool is_data(const char *key) {
    static const char *const data[] = {"enum", "const", "default", "examples", "example", NULL};
    return lt_name_is_one_of(key, data);
}

/* ---- addresses ---- */

/* The length of "scheme:", or 0. */
static size_t scheme_of(const char *uri) {
    size_t n = strcspn(uri, ":/?#");
    return n > 0 && uri[n] == ':' ? n + 1 : 0;
}

/* A reference resolved against a base, both without fragments, as in RFC 3986; "." and ".." are
 * removed from the path. */
static char *join(const char *base, const char *ref, size_t n_ref) {
    const size_t n_base = strlen(base), scheme = scheme_of(base);
    size_t keep = n_base, n, authority = scheme;
    char *out = malloc(n_base + n_ref + 2), *to, *path;
    if (out == NULL) {
        return NULL;
    }
    if (strncmp(base + scheme, "//", 2) == 0) {
        authority = scheme + 2 + strcspn(base + scheme + 2, "/");
    }
    if (n_ref == 0) {
        return memcpy(out, base, n_base + 1);
    }
    if (scheme_of(ref) > 0 && scheme_of(ref) <= n_ref) {
        keep = 0;
    } else if (n_ref > 1 && ref[0] == '/' && ref[1] == '/') {
        keep = scheme;
    } else if (ref[0] == '/') {
        keep = authority;
    } else {
        while (keep > authority && base[keep - 1] != '/') {
            keep--;
        }
    }
    memcpy(out, base, keep);
    n = keep;
    if (keep == authority && authority > scheme && ref[0] != '/') {
        out[n++] = '/';
    }
    memcpy(out + n, ref, n_ref);
    n += n_ref;
    out[n] = 0;
    path = out + (keep == 0 ? scheme_of(out) : authority < n ? authority : n);
    for (to = strstr(path, "/./"); to != NULL; to = strstr(path, "/./")) {
        memmove(to, to + 2, strlen(to + 2) + 1);
    }
    for (to = strstr(path, "/../"); to != NULL; to = strstr(path, "/../")) {
        char *from = to;
        while (from > path && from[-1] != '/') {
            from--;
        }
        from = from > path ? from - 1 : from;
        memmove(from, to + 3, strlen(to + 3) + 1);
    }
    return out;
}

static lt_err new_resource(lt_gdoc *d, char *uri, const json_t *v) {
    if (uri == NULL || !LT_GROW(d, resources)) {
        free(uri);
        LT_FAIL(LT_ERR_OOM, "schema: addresses");
    }
    d->resources[d->n_resources++] = (resource){uri, v};
    return LT_OK;
}

static lt_err new_anchor(lt_gdoc *d, int32_t in, const char *name, const json_t *v, bool dynamic) {
    if (!LT_GROW(d, anchors)) {
        return LT_ERR_OOM;
    }
    d->anchors[d->n_anchors++] = (anchor){in, name, v, dynamic};
    return LT_OK;
}

/* Register $id and the anchors of a schema, and set its resource. */
static lt_err name_place(lt_gdoc *d, place *p) {
    const bool old = d->named && d->draft <= 4;
    const json_t *id = json_object_get(p->v, old ? "id" : "$id");
    const char *text = json_string_value(id);
    if (d->draft <= 7 && json_object_get(p->v, "$ref") != NULL) {
        return LT_OK; /* Its siblings are ignored. */
    }
    if (text != NULL && text[0] == '#' && text[1] != 0) {
        LT_TRY(new_anchor(d, p->resource, text + 1, p->v, false));
    } else if (text != NULL && text[0] != '#' && p->parent >= 0) {
        LT_TRY(
            new_resource(d, join(d->resources[p->resource].uri, text, strcspn(text, "#")), p->v));
        p->resource = (int32_t)d->n_resources - 1;
    }
    for (int dynamic = 0; dynamic < 2; dynamic++) {
        const char *name = json_string_value(
            json_object_get(p->v, dynamic != 0 ? "$dynamicAnchor" : "$anchor"));
        if (name != NULL) {
            LT_TRY(new_anchor(d, p->resource, name, p->v, dynamic != 0));
        }
    }
    return LT_OK;
}

/* ---- listing ---- */

static size_t cell_of(const lt_gdoc *d, const json_t *v) {
    return (size_t)(((uintptr_t)v >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 20) & (d->cells - 1);
}

static int32_t find(const lt_gdoc *d, const json_t *v) {
    for (size_t at = cell_of(d, v); d->table[at] >= 0; at = (at + 1) & (d->cells - 1)) {
        if (d->places[d->table[at]].v == v) {
            return d->table[at];
        }
    }
    return -1;
}

static lt_err add(lt_gdoc *d, const json_t *v, int32_t parent, const char *key, size_t index) {
    place p = {.v = v, .parent = parent, .key = key, .index = (int32_t)index};
    if (!json_is_object(v) && !json_is_array(v)) {
        return LT_OK;
    }
    if (key != NULL && key[0] == 1) {
        LT_FAIL(LT_ERR_FORMAT, "schema: a member whose name begins with \\u0001");
    }
    if (parent >= 0) {
        const place *in = &d->places[parent];
        const bool keyword = key != NULL && !in->map;
        p.resource = in->resource;
        p.data = in->data || (keyword && is_data(key));
        p.map = keyword && is_map(key);
    }
    if (d->n_places >= MAX_PLACES) {
        LT_FAIL(LT_ERR_LIMIT, "schema: more than %d values", MAX_PLACES);
    }
    if (!LT_GROW(d, places)) {
        return LT_ERR_OOM;
    }
    if (json_is_object(v) && !p.map && !p.data) {
        LT_TRY(name_place(d, &p));
    }
    d->places[d->n_places++] = p;
    return LT_OK;
}

static lt_err list_places(lt_gdoc *d) {
    LT_TRY(add(d, d->root, -1, NULL, 0));
    for (size_t i = 0; i < d->n_places; i++) {
        json_t *v = (json_t *)(uintptr_t)d->places[i].v, *kid;
        const char *key;
        size_t k;
        if (json_is_object(v)) {
            json_object_foreach(v, key, kid) {
                LT_TRY(add(d, kid, (int32_t)i, key, 0));
            }
        }
        json_array_foreach(v, k, kid) {
            LT_TRY(add(d, kid, (int32_t)i, NULL, k));
        }
    }
    for (d->cells = 64; d->cells < 2 * d->n_places;) {
        d->cells *= 2;
    }
    d->table = malloc(d->cells * sizeof *d->table);
    if (d->table == NULL) {
        LT_FAIL(LT_ERR_OOM, "schema: %zu values", d->n_places);
    }
    memset(d->table, 0xFF, d->cells * sizeof *d->table);
    for (size_t i = 0; i < d->n_places; i++) {
        size_t at = cell_of(d, d->places[i].v);
        while (d->table[at] >= 0) {
            at = (at + 1) & (d->cells - 1);
        }
        d->table[at] = (int32_t)i;
    }
    return LT_OK;
}

static void find_draft(lt_gdoc *d) {
    static const struct {
        const char *part;
        int draft;
    } rows[] = {{"draft-03", 3}, {"draft-04", 4},   {"draft-06", 6},
                {"draft-07", 7}, {"2019-09", 2019}, {"2020-12", 2020}};
    const char *uri = json_string_value(json_object_get(d->root, "$schema"));
    d->draft = 2020;
    for (size_t i = 0; uri != NULL && i < sizeof rows / sizeof *rows; i++) {
        if (strstr(uri, "json-schema.org") != NULL && strstr(uri, rows[i].part) != NULL) {
            d->draft = rows[i].draft;
            d->named = true;
        }
    }
}

lt_err lt_gdoc_open(lt_gdoc **out, const json_t *root) {
    lt_err err = LT_OK;
    lt_gdoc *d = calloc(1, sizeof *d);
    const char *id;
    if (d == NULL) {
        LT_FAIL(LT_ERR_OOM, "schema");
    }
    d->root = root;
    find_draft(d);
    id = json_string_value(json_object_get(root, d->named && d->draft <= 4 ? "id" : "$id"));
    id = id != NULL ? id : "";
    LT_TRY_DONE(new_resource(d, join("", id, strcspn(id, "#")), root));
    LT_TRY_DONE(list_places(d));
    *out = d;
    d = NULL;
done:
    lt_gdoc_close(d);
    return err;
}

void lt_gdoc_close(lt_gdoc *d) {
    if (d == NULL) {
        return;
    }
    for (size_t i = 0; i < d->n_resources; i++) {
        free(d->resources[i].uri);
    }
    free(d->resources);
    free(d->anchors);
    free(d->places);
    free(d->table);
    free(d);
}

int lt_gdoc_draft(const lt_gdoc *d) {
    return d->draft;
}

bool lt_gdoc_names_draft(const lt_gdoc *d) {
    return d->named;
}

/* ---- pointers ---- */

const char *lt_gdoc_pointer(const lt_gdoc *d, const json_t *v, char *out, size_t room) {
    int32_t path[64], at = find(d, v);
    size_t n = 0, used = 1;
    (void)snprintf(out, room, "#");
    for (; at > 0 && n < 64; at = d->places[at].parent) {
        path[n++] = at;
    }
    while (n-- > 0) {
        const place *p = &d->places[path[n]];
        const int more = p->key != NULL ? snprintf(out + used, room - used, "/%.80s", p->key)
                                        : snprintf(out + used, room - used, "/%d", (int)p->index);
        if (more < 0 || (size_t)more >= room - used) {
            break;
        }
        used += (size_t)more;
    }
    return out;
}

/* Copy one step of a pointer, with "~1" and "%25" decoded, to key; returns the rest. NULL: too
 * long. */
static const char *step_of(const char *p, char *key, size_t room) {
    size_t n = 0;
    while (*p != 0 && *p != '/') {
        char c = *p++;
        if (c == '%' && p[0] != 0 && p[1] != 0) {
            const char code[3] = {p[0], p[1], 0};
            c = (char)strtol(code, NULL, 16);
            p += 2;
        }
        if (c == '~' && (*p == '0' || *p == '1')) {
            c = *p++ == '0' ? '~' : '/';
        }
        if (n + 1 >= room) {
            return NULL;
        }
        key[n++] = c;
    }
    key[n] = 0;
    return p;
}

static const json_t *follow(const json_t *at, const char *p) {
    char key[1024];
    while (*p == '/' && at != NULL) {
        p = step_of(p + 1, key, sizeof key);
        if (p == NULL) {
            return NULL;
        }
        if (json_is_array(at)) {
            at = key[0] >= '0' && key[0] <= '9' ? json_array_get(at, (size_t)strtoul(key, NULL, 10))
                                                : NULL;
        } else {
            at = json_object_get(at, key);
        }
    }
    return *p == 0 ? at : NULL;
}

static const anchor *find_anchor(const lt_gdoc *d, int32_t in, const char *name) {
    for (size_t i = 0; i < d->n_anchors; i++) {
        if (d->anchors[i].resource == in && strcmp(d->anchors[i].name, name) == 0) {
            return &d->anchors[i];
        }
    }
    return NULL;
}

/* Number of dynamic anchors of this name in the document. If there is only one, its meaning does
 * not depend on the path of references. */
static size_t count_dynamic(const lt_gdoc *d, const char *name) {
    size_t n = 0;
    for (size_t i = 0; i < d->n_anchors; i++) {
        n += d->anchors[i].dynamic && strcmp(d->anchors[i].name, name) == 0;
    }
    return n;
}

static int32_t resource_named(const lt_gdoc *d, int32_t from, const char *ref) {
    char *uri = join(d->resources[from].uri, ref, strcspn(ref, "#"));
    int32_t found = -1;
    for (size_t i = 0; uri != NULL && i < d->n_resources && found < 0; i++) {
        found = strcmp(d->resources[i].uri, uri) == 0 ? (int32_t)i : -1;
    }
    free(uri);
    return found;
}

lt_err lt_gdoc_resolve(const lt_gdoc *d, const json_t *from, const char *ref, bool dynamic,
                       const json_t **out) {
    const int32_t at = find(d, from);
    const char *fragment = strchr(ref, '#');
    const anchor *a;
    int32_t in = at >= 0 ? d->places[at].resource : 0;
    if (ref[0] != '#') {
        in = resource_named(d, in, ref);
    }
    if (in < 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "schema: $ref '%.200s' is not within the document", ref);
    }
    *out = d->resources[in].v;
    if (fragment == NULL || fragment[1] == 0) {
        return LT_OK;
    }
    if (fragment[1] == '/') {
        *out = follow(*out, fragment + 1);
        if (*out == NULL) {
            *out = follow(d->root, fragment + 1);
        }
    } else {
        a = find_anchor(d, in, fragment + 1);
        *out = a != NULL ? a->v : NULL;
        if (dynamic && a != NULL && a->dynamic && count_dynamic(d, a->name) > 1) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "schema: $dynamicRef '%.200s' is not supported where several schemas have "
                    "that $dynamicAnchor",
                    ref);
        }
    }
    if (*out == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "schema: $ref '%.200s' leads nowhere", ref);
    }
    return LT_OK;
}
