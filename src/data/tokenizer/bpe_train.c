/* bpe_train.c: the merge loop of BPE training, and writing its tokenizer.json; see bpe_train.h.
 *
 * Words are arrays of ids with a count each. A table holds, for every pair of neighbouring ids, how
 * often it occurs; a heap gives the most frequent pair (of equals the smaller one). A pair's entry
 * in the heap lists the words in which the pair appeared since it was last entered, so one merge
 * touches only those words; the changes it makes to other pairs' counts are applied to the table,
 * and pairs that gained occurrences are entered anew. An entry whose count is out of date goes back
 * with the right one. This is exactly the algorithm of Hugging Face's BpeTrainer, including its
 * lists, because the order of merges depends on such details as soon as two pairs make the same
 * piece. */
#include "data/tokenizer/bpe_train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer/impl.h"
#include "data/tokenizer/word_count.h"

/* The pair table. */
typedef struct {
    uint64_t key; /* a << 32 | b, + 1 so that 0 is empty */
    int64_t count;
    uint32_t *words; /* Words in which it gained occurrences since its last entry. */
    uint32_t n_words, room;
} pair;

typedef struct {
    int64_t count;
    uint64_t key;
    uint32_t *words;
    uint32_t n_words;
} entry;

typedef struct {
    uint32_t start, n; /* Its symbols: the first one, and their number. */
    int64_t count;
} word;

typedef struct {
    word *words;
    uint32_t n_words;
    uint32_t *symbols;
    pair *pairs;
    size_t mask, n_pairs;
    entry *heap;
    size_t n_heap, heap_room;
    uint64_t *touched; /* Keys that gained a word in this merge. */
    size_t n_touched, touched_room;
    lt_vocab vocab;
    lt_ids merges; /* left, right, left, right, ... */
} trainer;

static uint64_t pair_key(uint32_t a, uint32_t b) {
    return ((uint64_t)a << 32 | b) + 1;
}

static size_t pair_home(uint64_t key, size_t mask) {
    return (size_t)((key * 0x9E3779B97F4A7C15u) >> 24) & mask;
}

static lt_err grow_pairs(trainer *t) {
    const size_t room = t->pairs == NULL ? 1u << 16 : 2 * (t->mask + 1);
    pair *pairs;
    if (t->pairs != NULL && 2 * (t->n_pairs + 1) <= t->mask + 1) {
        return LT_OK;
    }
    pairs = calloc(room, sizeof *pairs);
    if (pairs == NULL) {
        LT_FAIL(LT_ERR_OOM, "table of %zu pairs", room);
    }
    for (size_t i = 0; t->pairs != NULL && i <= t->mask; i++) {
        if (t->pairs[i].key != 0) {
            size_t at = pair_home(t->pairs[i].key, room - 1);
            while (pairs[at].key != 0) {
                at = (at + 1) & (room - 1);
            }
            pairs[at] = t->pairs[i];
        }
    }
    free(t->pairs);
    t->pairs = pairs;
    t->mask = room - 1;
    return LT_OK;
}

/* The pair's row, which is created if absent; valid until the next call. */
static lt_err pair_row(trainer *t, uint64_t key, pair **out) {
    size_t at;
    LT_TRY(grow_pairs(t));
    for (at = pair_home(key, t->mask); t->pairs[at].key != 0 && t->pairs[at].key != key;
         at = (at + 1) & t->mask) {}
    if (t->pairs[at].key == 0) {
        t->pairs[at].key = key;
        t->n_pairs++;
    }
    *out = &t->pairs[at];
    return LT_OK;
}

static lt_err touch(trainer *t, uint64_t key) {
    if (t->n_touched == t->touched_room) {
        const size_t room = t->touched_room == 0 ? 1024 : 2 * t->touched_room;
        uint64_t *grown = realloc(t->touched, room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "%zu pairs", room);
        }
        t->touched = grown;
        t->touched_room = room;
    }
    t->touched[t->n_touched++] = key;
    return LT_OK;
}

/* Record that word w has `change` more occurrences of this pair. */
static lt_err change_pair(trainer *t, uint32_t a, uint32_t b, int change, uint32_t w) {
    pair *p;
    LT_TRY(pair_row(t, pair_key(a, b), &p));
    p->count += change * t->words[w].count;
    if (change < 0 || (p->n_words > 0 && p->words[p->n_words - 1] == w)) {
        /* Words are processed in turn, so a repeated word is the last in the list. */
        return LT_OK;
    }
    if (p->n_words == p->room) {
        const uint32_t room = p->room == 0 ? 2 : 2 * p->room;
        uint32_t *grown = realloc(p->words, room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "words of a pair");
        }
        p->words = grown;
        p->room = room;
    }
    p->words[p->n_words++] = w;
    return p->n_words == 1 ? touch(t, p->key) : LT_OK;
}

static bool before(const entry *a, const entry *b) {
    return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static lt_err heap_push(trainer *t, entry e) {
    size_t at = t->n_heap;
    if (t->n_heap == t->heap_room) {
        const size_t room = t->heap_room == 0 ? 4096 : 2 * t->heap_room;
        entry *grown = realloc(t->heap, room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "heap of %zu pairs", room);
        }
        t->heap = grown;
        t->heap_room = room;
    }
    t->n_heap++;
    while (at > 0 && before(&e, &t->heap[(at - 1) / 2])) {
        t->heap[at] = t->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    t->heap[at] = e;
    return LT_OK;
}

/* Put e at the root of the heap and sift it down. */
static void heap_replace_top(trainer *t, entry e) {
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= t->n_heap) {
            break;
        }
        child += child + 1 < t->n_heap && before(&t->heap[child + 1], &t->heap[child]);
        if (!before(&t->heap[child], &e)) {
            break;
        }
        t->heap[at] = t->heap[child];
        at = child;
    }
    t->heap[at] = e;
}

static entry heap_pop(trainer *t) {
    const entry top = t->heap[0];
    t->n_heap--;
    if (t->n_heap > 0) {
        heap_replace_top(t, t->heap[t->n_heap]);
    }
    return top;
}

/* Enter every pair that gained words into the heap, together with its list. */
static lt_err enter_touched(trainer *t) {
    for (size_t i = 0; i < t->n_touched; i++) {
        pair *p;
        LT_TRY(pair_row(t, t->touched[i], &p));
        if (p->count > 0) {
            const entry e = {p->count, p->key, p->words, p->n_words};
            LT_TRY(heap_push(t, e));
        } else {
            free(p->words);
        }
        p->words = NULL;
        p->n_words = p->room = 0;
    }
    t->n_touched = 0;
    return LT_OK;
}

/* Replace each a b in word w by c, left to right, and record the changes to the pairs around it. */
static lt_err merge_word(trainer *t, uint32_t w, uint32_t a, uint32_t b, uint32_t c) {
    uint32_t *s = t->symbols + t->words[w].start;
    const uint32_t n = t->words[w].n;
    uint32_t put = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (s[i] != a || i + 1 == n || s[i + 1] != b) {
            s[put++] = s[i];
            continue;
        }
        if (put > 0) {
            LT_TRY(change_pair(t, s[put - 1], a, -1, w));
            LT_TRY(change_pair(t, s[put - 1], c, 1, w));
        }
        if (i + 2 < n) {
            LT_TRY(change_pair(t, b, s[i + 2], -1, w));
            LT_TRY(change_pair(t, c, s[i + 2], 1, w));
        }
        s[put++] = c;
        i++;
    }
    t->words[w].n = put;
    return LT_OK;
}

/* Begin the vocabulary with the special tokens, then the bytes in the order of their printable
 * characters. */
static lt_err start_vocab(trainer *t, const lt_bpe_train_options *o, uint32_t byte_id[256]) {
    uint32_t id = 0;
    for (size_t i = 0; i < o->n_special; i++) {
        LT_TRY(lt_vocab_put(&t->vocab, id++, o->special[i], strlen(o->special[i]), LT_PIECE_SPECIAL,
                            false, "special tokens"));
    }
    for (uint32_t cp = 0; cp < 0x200; cp++) {
        const int byte = lt_char_byte(cp);
        if (byte >= 0) {
            const char c = (char)byte;
            byte_id[byte] = id;
            LT_TRY(lt_vocab_put(&t->vocab, id++, &c, 1, 0, true, "bytes"));
        }
    }
    return LT_OK;
}

static lt_err load_words(trainer *t, const lt_word_map *m, const uint32_t byte_id[256]) {
    uint64_t n_symbols = 0;
    uint32_t at = 0, w = 0;

    for (size_t i = 0; m->slots != NULL && i <= m->mask; i++) {
        n_symbols += m->slots[i].hash != 0 ? m->slots[i].bytes : 0;
    }
    if (n_symbols > UINT32_MAX || m->n > UINT32_MAX) {
        LT_FAIL(LT_ERR_LIMIT, "%zu different words of %llu bytes; train on a sample", m->n,
                (unsigned long long)n_symbols);
    }
    t->n_words = (uint32_t)m->n;
    t->words = malloc((m->n + 1) * sizeof *t->words);
    t->symbols = malloc((size_t)(n_symbols + 1) * sizeof *t->symbols);
    if (t->words == NULL || t->symbols == NULL) {
        LT_FAIL(LT_ERR_OOM, "%zu words", m->n);
    }
    for (size_t i = 0; m->slots != NULL && i <= m->mask; i++) {
        const lt_word *from = &m->slots[i];
        if (from->hash == 0) {
            continue;
        }
        t->words[w] = (word){at, from->bytes, (int64_t)from->count};
        for (uint32_t k = 0; k < from->bytes; k++) {
            t->symbols[at++] = byte_id[(uint8_t)m->pool.data[from->start + k]];
        }
        for (uint32_t k = 1; k < from->bytes; k++) {
            LT_TRY(change_pair(t, t->symbols[at - from->bytes + k - 1],
                               t->symbols[at - from->bytes + k], 1, w));
        }
        w++;
    }
    return enter_touched(t);
}

/* The piece that a and b make: an existing id if another merge made it first. */
static lt_err make_piece(trainer *t, uint32_t a, uint32_t b, uint32_t *out) {
    lt_err err = LT_OK;
    lt_text both = {0};
    LT_TRY_DONE(lt_text_put(&both, lt_vocab_text(&t->vocab, a), t->vocab.bytes[a]));
    LT_TRY_DONE(lt_text_put(&both, lt_vocab_text(&t->vocab, b), t->vocab.bytes[b]));
    *out = lt_vocab_find(&t->vocab, both.data, both.n);
    if (*out == LT_NO_ID) {
        *out = t->vocab.n;
        LT_TRY_DONE(lt_vocab_put(&t->vocab, *out, both.data, both.n, 0, true, "training"));
    }
done:
    lt_text_free(&both);
    return err;
}

static lt_err merge_all(trainer *t, const lt_bpe_train_options *o) {
    lt_bpe_train_progress p = {.stage = "merge", .total = o->vocab_size, .words = t->n_words};
    while (t->vocab.n < o->vocab_size && t->n_heap > 0) {
        lt_err err = LT_OK;
        entry top = heap_pop(t);
        const uint32_t a = (uint32_t)((top.key - 1) >> 32), b = (uint32_t)(top.key - 1);
        uint32_t c = 0;
        pair *row;
        LT_TRY(pair_row(t, top.key, &row));
        if (row->count != top.count) {
            top.count = row->count;
            LT_TRY(heap_push(t, top));
            continue;
        }
        if (top.count < 1 || (uint64_t)top.count < o->min_frequency) {
            free(top.words);
            break;
        }
        err = make_piece(t, a, b, &c);
        for (uint32_t i = 0; i < top.n_words && err == LT_OK; i++) {
            err = merge_word(t, top.words[i], a, b, c);
        }
        free(top.words);
        LT_TRY(err);
        LT_TRY(lt_ids_append(&t->merges, (const uint32_t[]){a, b}, 2));
        LT_TRY(enter_touched(t));
        p.done = t->vocab.n;
        if (o->progress != NULL && t->merges.n % 256 == 0) {
            o->progress(o->progress_ctx, &p);
        }
    }
    return LT_OK;
}

/* Append s as a JSON string without its quotes; bytes: in printable form. */
static lt_err put_string(lt_text *out, const char *s, size_t n, bool bytes) {
    char escape[8];
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '"' || s[i] == '\\') {
            LT_TRY(lt_text_put(out, "\\", 1));
            LT_TRY(lt_text_put(out, s + i, 1));
        } else if (bytes) {
            LT_TRY(lt_text_put_cp(out, lt_byte_char((uint8_t)s[i])));
        } else if ((uint8_t)s[i] < 0x20) {
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)(uint8_t)s[i]);
            LT_TRY(lt_text_put(out, escape, 6));
        } else {
            LT_TRY(lt_text_put(out, s + i, 1));
        }
    }
    return LT_OK;
}

static lt_err put(lt_text *out, const char *s) {
    return lt_text_put(out, s, strlen(s));
}

static lt_err put_u32(lt_text *out, uint32_t v) {
    char digits[16];
    return lt_text_put(out, digits, (size_t)snprintf(digits, sizeof digits, "%u", v));
}

static lt_err put_head(const trainer *t, const lt_bpe_train_options *o, const char *regex,
                       lt_text *out) {
    LT_TRY(put(out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  "
                    "\"added_tokens\": ["));
    for (uint32_t i = 0; i < o->n_special; i++) {
        LT_TRY(put(out, i > 0 ? ",\n    {\"id\": " : "\n    {\"id\": "));
        LT_TRY(put_u32(out, i));
        LT_TRY(put(out, ", \"content\": \""));
        LT_TRY(put_string(out, lt_vocab_text(&t->vocab, i), t->vocab.bytes[i], false));
        LT_TRY(put(out, "\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                        "\"normalized\": false, "
                        "\"special\": true}"));
    }
    LT_TRY(put(out, "\n  ],\n  \"normalizer\": null,\n  \"pre_tokenizer\": "));
    if (regex == NULL) {
        LT_TRY(put(out, "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": "
                        "true, \"use_regex\": true}"));
    } else {
        LT_TRY(put(out, "{\"type\": \"Sequence\", \"pretokenizers\": [\n    {\"type\": \"Split\", "
                        "\"pattern\": {\"Regex\": \""));
        LT_TRY(put_string(out, regex, strlen(regex), false));
        LT_TRY(put(
            out,
            "\"}, \"behavior\": \"Isolated\", \"invert\": false},\n    {\"type\": \"ByteLevel\", "
            "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}]}"));
    }
    return put(out, ",\n  \"post_processor\": null,\n  \"decoder\": {\"type\": \"ByteLevel\", "
                    "\"add_prefix_space\": true, "
                    "\"trim_offsets\": true, \"use_regex\": true},\n  \"model\": {\n    \"type\": "
                    "\"BPE\", \"dropout\": null, "
                    "\"unk_token\": null, \"continuing_subword_prefix\": null, "
                    "\"end_of_word_suffix\": null,\n    "
                    "\"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": false,\n    "
                    "\"vocab\": {");
}

static lt_err write_json(const trainer *t, const lt_bpe_train_options *o, const char *regex,
                         const char *path) {
    lt_err err = LT_OK;
    lt_text out = {0};
    LT_TRY_DONE(put_head(t, o, regex, &out));
    for (uint32_t id = 0; id < t->vocab.n; id++) {
        LT_TRY_DONE(put(&out, id > 0 ? ",\n      \"" : "\n      \""));
        LT_TRY_DONE(
            put_string(&out, lt_vocab_text(&t->vocab, id), t->vocab.bytes[id], id >= o->n_special));
        LT_TRY_DONE(put(&out, "\": "));
        LT_TRY_DONE(put_u32(&out, id));
    }
    LT_TRY_DONE(put(&out, "\n    },\n    \"merges\": ["));
    for (size_t i = 0; i < t->merges.n; i += 2) {
        const uint32_t a = t->merges.data[i], b = t->merges.data[i + 1];
        LT_TRY_DONE(put(&out, i > 0 ? ",\n      \"" : "\n      \""));
        LT_TRY_DONE(put_string(&out, lt_vocab_text(&t->vocab, a), t->vocab.bytes[a], true));
        LT_TRY_DONE(put(&out, " "));
        LT_TRY_DONE(put_string(&out, lt_vocab_text(&t->vocab, b), t->vocab.bytes[b], true));
        LT_TRY_DONE(put(&out, "\""));
    }
    LT_TRY_DONE(put(&out, "\n    ]\n  }\n}\n"));
    LT_TRY_DONE(lt_file_write_atomic(path, out.data, out.n));
done:
    lt_text_free(&out);
    return err;
}

static void trainer_free(trainer *t) {
    for (size_t i = 0; t->pairs != NULL && i <= t->mask; i++) {
        free(t->pairs[i].words);
    }
    for (size_t i = 0; i < t->n_heap; i++) {
        free(t->heap[i].words);
    }
    free(t->pairs);
    free(t->heap);
    free(t->touched);
    free(t->words);
    free(t->symbols);
    lt_vocab_free(&t->vocab);
    lt_ids_free(&t->merges);
}

/* Set the pattern's scanner or regular expression; *regex is its text in tokenizer.json (NULL:
 * ByteLevel's own). */
static lt_err set_pattern(const lt_bpe_train_options *o, lt_pretok *pretok, const char **regex) {
    const char *pattern = o->pattern != NULL ? o->pattern : "gpt2";
    for (int k = 0; k < LT_SCAN_COUNT; k++) {
        if (strcmp(pattern, lt_scan_name((lt_scan_kind)k)) == 0 &&
            lt_scan_regex((lt_scan_kind)k) != NULL &&
            k != LT_SCAN_CL100K_TAIL) { /* Readers of a tokenizer.json read it in another way. */
            *regex = k == LT_SCAN_GPT2 ? NULL : lt_scan_regex((lt_scan_kind)k);
            pretok->scan = lt_scan_function((lt_scan_kind)k);
            return LT_OK;
        }
    }
    if (strpbrk(pattern, "\\[]()|+*?^$ ") == NULL) {
        LT_FAIL(LT_ERR_ARG,
                "unknown pattern '%s'; known are gpt2, cl100k, qwen2, o200k, tekken and any "
                "regular expression",
                pattern);
    }
    *regex = pattern;
    LT_TRY(lt_pretok_add_regex(pretok, pattern, strlen(pattern), LT_REGEX_ONIGURUMA,
                               LT_CUT_ISOLATED, false, "--pattern"));
    lt_pretok_optimise(pretok);
    return LT_OK;
}

lt_err lt_bpe_train(const lt_bpe_train_options *o, const char *out, lt_bpe_train_stats *stats) {
    lt_err err = LT_OK;
    lt_pretok pretok = {0};
    lt_word_map words = {0};
    trainer t = {0};
    uint32_t byte_id[256];
    const char *regex = NULL;
    double start = lt_clock_s();

    LT_ASSERT(o != NULL && out != NULL && stats != NULL);
    *stats = (lt_bpe_train_stats){0};
    if (o->vocab_size < 256 + o->n_special || o->vocab_size >= LT_VOCAB_MAX) {
        LT_FAIL_DONE(
            LT_ERR_ARG,
            "a vocabulary of %u ids: 256 bytes and %zu special tokens need %zu, and %u is the most",
            o->vocab_size, o->n_special, 256 + o->n_special, LT_VOCAB_MAX - 1);
    }
    LT_TRY_DONE(set_pattern(o, &pretok, &regex));
    LT_TRY_DONE(lt_word_count(o, &pretok, &words, stats));
    if (stats->words == 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s%s: nothing to train on: none of %llu documents has text",
                     o->inputs[0], o->n_inputs > 1 ? " and the other files" : "",
                     (unsigned long long)stats->documents);
    }
    stats->read_s = lt_clock_s() - start;
    start = lt_clock_s();
    LT_TRY_DONE(start_vocab(&t, o, byte_id));
    LT_TRY_DONE(load_words(&t, &words, byte_id));
    lt_word_map_free(&words);
    LT_TRY_DONE(merge_all(&t, o));
    stats->n_ids = t.vocab.n;
    LT_TRY_DONE(write_json(&t, o, regex, out));
    stats->merge_s = lt_clock_s() - start;
done:
    lt_word_map_free(&words);
    lt_pretok_free(&pretok);
    trainer_free(&t);
    return err;
}
