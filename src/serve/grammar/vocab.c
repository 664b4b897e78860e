/* grammar/vocab.c: a tokenizer's tokens as tries, once a model.
 *
 * PLAIN    Most tokens (about nine in ten) consist of characters that stand for themselves in a
 *          JSON string. Inside such a string, a grammar allows all of them, or all up to some
 *          number of characters: their masks are made here, and only the other tokens are
 *          walked. */
#include "serve/grammar/impl.h"

#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/unicode.h"

void lt_gvocab_special_bytes(int32_t id, unsigned char out[4]) {
    out[0] = 0xFF;
    out[1] = (unsigned char)(id >> 16);
    out[2] = (unsigned char)(id >> 8);
    out[3] = (unsigned char)id;
}

int32_t lt_gvocab_find_special(const struct lt_grammar_vocab *v, const char *name, size_t n) {
    for (int64_t i = 0; i < v->n_ids; i++) {
        if (v->special[i] != NULL && strlen(v->special[i]) == n &&
            memcmp(v->special[i], name, n) == 0) {
            return (int32_t)i;
        }
    }
    return -1;
}

/* Number of characters of a plain token, or 0. */
static int plain_chars(const unsigned char *s, size_t n) {
    int chars = 0;
    for (size_t i = 0; i < n;) {
        bool incomplete;
        uint32_t cp;
        if (s[i] < 0x20 || s[i] == '"' || s[i] == '\\' ||
            lt_utf8_bad(s + i, s + n, &incomplete) > 0) {
            return 0;
        }
        i += lt_utf8_decode(s + i, s + n, &cp);
        chars++;
    }
    return chars;
}

/* Copy all tokens' bytes, one after another. */
static lt_err collect(lt_grammar_vocab *v, const lt_tokenizer *t) {
    size_t room = 0, n = 0;
    v->start = calloc((size_t)v->n_ids + 1, sizeof *v->start);
    v->special = calloc((size_t)v->n_ids + 1, sizeof *v->special);
    if (v->start == NULL || v->special == NULL) {
        LT_FAIL(LT_ERR_OOM, "vocabulary of %lld tokens", (long long)v->n_ids);
    }
    for (int64_t id = 0; id < v->n_ids; id++) {
        unsigned char code[4];
        size_t bytes = 0;
        const char *s = lt_tokenizer_text(t, (uint32_t)id, &bytes);
        v->start[id] = n;
        if (s == NULL) {
            continue;
        }
        if (lt_tokenizer_is_special(t, (uint32_t)id)) {
            v->special[id] = strndup(s, bytes);
            lt_gvocab_special_bytes((int32_t)id, code);
            s = (const char *)code;
            bytes = 4;
            if (v->special[id] == NULL) {
                LT_FAIL(LT_ERR_OOM, "vocabulary of %lld tokens", (long long)v->n_ids);
            }
        }
        if (v->special[id] == NULL && memchr(s, 0xFF, bytes) != NULL) {
            /* A raw byte that occurs in no text: it would begin the code of a special token. */
            continue;
        }
        while (n + bytes > room) {
            size_t full = room;
            if (!lt_grow((void **)&v->bytes, full, &room, 1)) {
                return LT_ERR_OOM;
            }
        }
        memcpy(v->bytes + n, s, bytes);
        n += bytes;
    }
    v->start[v->n_ids] = n;
    return LT_OK;
}

static int by_bytes(const void *a, const void *b, void *vocab) {
    const lt_grammar_vocab *sorting = vocab;
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    const size_t nx = sorting->start[x + 1] - sorting->start[x],
                 ny = sorting->start[y + 1] - sorting->start[y];
    const int order = memcmp(sorting->bytes + sorting->start[x], sorting->bytes + sorting->start[y],
                             nx < ny ? nx : ny);
    return order != 0 ? order : nx != ny ? (nx > ny) - (nx < ny) : (x > y) - (x < y);
}

/* Build nodes in depth-first order from ids that are sorted by their bytes. */
static lt_err build_trie(lt_gtrie *t, const lt_grammar_vocab *v, int32_t *ids, size_t n) {
    int32_t path[LT_GTOKEN_BYTES]; /* Nodes of the previous token. */
    size_t depth = 0;
    qsort_r(ids, n, sizeof *ids, by_bytes, (void *)(uintptr_t)v);
    for (size_t i = 0; i < n; i++) {
        const unsigned char *s = v->bytes + v->start[ids[i]];
        const size_t bytes = v->start[ids[i] + 1] - v->start[ids[i]];
        size_t same = 0;
        while (same < depth && same < bytes && t->nodes[path[same]].byte == s[same]) {
            same++;
        }
        for (; depth > same; depth--) {
            t->nodes[path[depth - 1]].skip = (int32_t)t->n_nodes;
        }
        for (; depth < bytes; depth++) {
            if (!LT_GROW(t, nodes)) {
                return LT_ERR_OOM;
            }
            path[depth] = (int32_t)t->n_nodes;
            t->nodes[t->n_nodes++] = (lt_gtrie_node){
                .byte = s[depth], .depth = (uint16_t)depth, .token = (int32_t)t->n_ids};
        }
        if (!LT_GROW(t, ids)) {
            return LT_ERR_OOM;
        }
        if (t->nodes[path[bytes - 1]].n_tokens == 0) {
            t->nodes[path[bytes - 1]].token = (int32_t)t->n_ids;
        }
        t->nodes[path[bytes - 1]].n_tokens++;
        t->ids[t->n_ids++] = ids[i];
    }
    for (; depth > 0; depth--) {
        t->nodes[path[depth - 1]].skip = (int32_t)t->n_nodes;
    }
    return LT_OK;
}

static lt_err plain_masks(lt_grammar_vocab *v, const uint8_t *chars) {
    for (int k = 1; k <= LT_GPLAIN; k++) {
        v->up_to[k] = calloc((size_t)v->n_words, sizeof **v->up_to);
        if (v->up_to[k] == NULL) {
            LT_FAIL(LT_ERR_OOM, "vocabulary of %lld tokens", (long long)v->n_ids);
        }
    }
    for (int64_t id = 0; id < v->n_ids; id++) {
        for (int k = chars[id]; k >= 1 && k <= LT_GPLAIN; k++) {
            v->up_to[k][id / 32] |= UINT32_C(1) << (id % 32);
            v->n_up_to[k]++;
        }
    }
    return LT_OK;
}

static lt_err long_plain(lt_grammar_vocab *v, const uint8_t *chars) {
    size_t n = 0;
    for (int64_t id = 0; id < v->n_ids; id++) {
        n += chars[id] > LT_GPLAIN;
    }
    v->longer = malloc((n + 1) * sizeof *v->longer);
    v->longer_chars = malloc((n + 1) * sizeof *v->longer_chars);
    if (v->longer == NULL || v->longer_chars == NULL) {
        LT_FAIL(LT_ERR_OOM, "vocabulary of %lld tokens", (long long)v->n_ids);
    }
    for (int k = LT_GPLAIN + 1; k <= v->max_chars; k++) {
        for (int64_t id = 0; id < v->n_ids; id++) {
            if (chars[id] == k) {
                v->longer[v->n_longer] = (int32_t)id;
                v->longer_chars[v->n_longer++] = (uint16_t)k;
            }
        }
    }
    return LT_OK;
}

/* Whether it has two quotes, or a comma and a character that is neither a comma nor white space. */
static bool holds_several(const unsigned char *s, size_t n) {
    int quotes = 0, commas = 0, others = 0;
    for (size_t i = 0; i < n; i++) {
        quotes += s[i] == '"';
        commas += s[i] == ',';
        others += s[i] > ' ' && s[i] != ',';
    }
    return quotes > 1 || (commas > 0 && others > 0);
}

static lt_err find_several(lt_grammar_vocab *v) {
    v->several = calloc((size_t)v->n_words + 1, sizeof *v->several);
    if (v->several == NULL) {
        LT_FAIL(LT_ERR_OOM, "vocabulary of %lld tokens", (long long)v->n_ids);
    }
    for (int64_t id = 0; id < v->n_ids; id++) {
        if (holds_several(v->bytes + v->start[id], v->start[id + 1] - v->start[id])) {
            v->several[id / 32] |= UINT32_C(1) << (id % 32);
        }
    }
    return LT_OK;
}

static bool is_end(const lt_grammar_vocab *v, int64_t id) {
    for (size_t i = 0; i < v->n_ends; i++) {
        if (v->ends[i] == id) {
            return true;
        }
    }
    return false;
}

static lt_err build(lt_grammar_vocab *v) {
    lt_err err = LT_OK;
    int32_t *plain = malloc(((size_t)v->n_ids + 1) * sizeof *plain),
            *rest = malloc(((size_t)v->n_ids + 1) * sizeof *rest);
    uint8_t *chars = calloc((size_t)v->n_ids + 1, 1);
    size_t n_plain = 0, n_rest = 0;
    if (plain == NULL || rest == NULL || chars == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "vocabulary of %lld tokens", (long long)v->n_ids);
    }
    for (int64_t id = 0; id < v->n_ids; id++) {
        const size_t bytes = v->start[id + 1] - v->start[id];
        int n;
        if (bytes == 0 || bytes >= LT_GTOKEN_BYTES || is_end(v, id)) {
            continue;
        }
        n = plain_chars(v->bytes + v->start[id], bytes);
        chars[id] = (uint8_t)n;
        v->max_chars = n > v->max_chars ? n : v->max_chars;
        if (n == 0) {
            size_t reach = 0;
            while (reach < bytes && v->bytes[v->start[id] + reach] >= 0x20) {
                reach++;
            }
            v->rest_reach = (int)reach > v->rest_reach ? (int)reach : v->rest_reach;
        }
        *(n > 0 ? &plain[n_plain++] : &rest[n_rest++]) = (int32_t)id;
    }
    LT_TRY_DONE(build_trie(&v->plain, v, plain, n_plain));
    LT_TRY_DONE(build_trie(&v->rest, v, rest, n_rest));
    LT_TRY_DONE(plain_masks(v, chars));
    LT_TRY_DONE(long_plain(v, chars));
    LT_TRY_DONE(find_several(v));
done:
    free(plain);
    free(rest);
    free(chars);
    return err;
}

lt_err lt_grammar_vocab_open(lt_grammar_vocab **out, const lt_tokenizer *t, const int32_t *ends,
                             int64_t n_ends) {
    lt_err err = LT_OK;
    const lt_tokenizer_info info = lt_tokenizer_describe(t);
    lt_grammar_vocab *v = calloc(1, sizeof *v);

    if (v == NULL) {
        LT_FAIL(LT_ERR_OOM, "vocabulary of %u tokens", info.n_ids);
    }
    v->n_ids = info.n_ids;
    v->n_words = (v->n_ids + 31) / 32;
    v->ends = calloc((size_t)n_ends + info.n_ends + 1, sizeof *v->ends);
    if (v->ends == NULL || v->n_ids >= 1 << 24) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "vocabulary of %u tokens", info.n_ids);
    }
    /* A padded vocabulary may end with ids that have no text. */
    for (int64_t i = 0; i < n_ends; i++) {
        if (ends[i] >= 0 && ends[i] < v->n_ids && !is_end(v, (uint32_t)ends[i])) {
            v->ends[v->n_ends++] = ends[i];
        }
    }
    for (size_t i = 0; i < info.n_ends; i++) {
        if (!is_end(v, info.ends[i])) {
            v->ends[v->n_ends++] = (int32_t)info.ends[i];
        }
    }
    LT_TRY_DONE(collect(v, t));
    LT_TRY_DONE(build(v));
    *out = v;
    v = NULL;
done:
    lt_grammar_vocab_close(v);
    return err;
}

void lt_grammar_vocab_close(lt_grammar_vocab *v) {
    if (v == NULL) {
        return;
    }
    for (int64_t i = 0; v->special != NULL && i < v->n_ids; i++) {
        free(v->special[i]);
    }
    for (int k = 0; k <= LT_GPLAIN; k++) {
        free(v->up_to[k]);
    }
    free(v->plain.nodes);
    free(v->plain.ids);
    free(v->rest.nodes);
    free(v->rest.ids);
    free(v->longer);
    free(v->several);
    free(v->longer_chars);
    free(v->bytes);
    free(v->start);
    free(v->ends);
    free(v->special);
    free(v);
}
