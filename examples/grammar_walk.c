/* grammar_walk.c: compile grammars, and walk along them.
 *
 *     build/examples/grammar_walk TOKENIZER < requests
 *
 * Each line of standard input is {"kind": "schema" | "regex" | "gbnf" | "choice" | "json", "text":
 * ..., "accept": [texts], "walks": N, "seed": S, "tokens": true}. Each line of standard output
 * says which of the texts the grammar accepts, gives N texts drawn by random walks under its masks,
 * and the time of compiling and of masks, in microseconds of one core (masks_over: how many masks
 * took over 0.5, 1, 2, 5, 10 ms). tools/check_grammar.py checks the results. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/json.h"
#include "serve/grammar/grammar.h"

typedef struct {
    lt_tokenizer *t;
    lt_tokenizer_scratch *scratch;
    lt_grammar_vocab *v;
    int64_t n_ids;
    uint32_t *bits;
    int32_t end;
    uint64_t random;
    double mask_us, mask_us_max;
    int64_t n_masks, n_over[5]; /* Of over[i] microseconds. */
} walker;

static const double over[5] = {500, 1000, 2000, 5000, 10000};

static double now_us(void) {
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec * 1e-3;
}

static uint32_t draw(walker *w, uint32_t n) {
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((w->random >> 33) % n);
}

static lt_err timed_mask(walker *w, lt_grammar_state *s) {
    const double start = now_us();
    double took;
    LT_TRY(lt_grammar_mask(s, w->bits, w->n_ids));
    took = now_us() - start;
    w->mask_us += took;
    w->mask_us_max = took > w->mask_us_max ? took : w->mask_us_max;
    w->n_masks++;
    for (size_t i = 0; i < 5; i++) {
        w->n_over[i] += took > over[i];
    }
    return LT_OK;
}

/* Does the grammar accept the text? It is fed the tokenizer's own tokens, each of which must be in
 * the mask. */
static bool accepts(walker *w, const lt_grammar *g, const char *text, size_t bytes) {
    lt_grammar_state *s = NULL;
    lt_ids ids = {0};
    bool ok = lt_grammar_state_open(&s, g) == LT_OK &&
              lt_tokenizer_encode(w->t, w->scratch, text, bytes, LT_ENCODE_PLAIN, &ids) == LT_OK;
    for (size_t i = 0; ok && i < ids.n; i++) {
        bool in_mask;
        if (timed_mask(w, s) != LT_OK) {
            ok = false;
            break;
        }
        in_mask = (w->bits[ids.data[i] / 32] >> (ids.data[i] % 32) & 1) != 0;
        ok = lt_grammar_accept(s, (int32_t)ids.data[i]) == LT_OK;
        if (ok != in_mask) {
            fprintf(stderr, "mask and accept disagree on token %u\n", ids.data[i]);
            exit(1);
        }
    }
    ok = ok && lt_grammar_accepting(s);
    lt_ids_free(&ids);
    lt_grammar_state_close(s);
    return ok;
}

static bool is_end(const walker *w, int64_t id) {
    const lt_tokenizer_info info = lt_tokenizer_describe(w->t);
    bool is = id == w->end;
    for (size_t i = 0; i < info.n_ends; i++) {
        is = is || info.ends[i] == id;
    }
    return is;
}

/* One text by a random walk: each id is an allowed one at random, and the walk ends at random where
 * the grammar allows it. */
static json_t *walk(walker *w, const lt_grammar *g) {
    lt_grammar_state *s = NULL;
    uint32_t *ids = malloc(4000 * sizeof *ids);
    size_t n = 0, bytes = 0;
    char *text = NULL;
    json_t *out = NULL;
    if (ids == NULL || lt_grammar_state_open(&s, g) != LT_OK) {
        free(ids);
        return NULL;
    }
    while (n < 4000) {
        const uint32_t first = draw(w, (uint32_t)w->n_ids);
        int32_t id = -1;
        if (timed_mask(w, s) != LT_OK) {
            break;
        }
        if (lt_grammar_accepting(s) && (draw(w, 4) == 0 || lt_grammar_done(s))) {
            id = w->end;
        }
        for (int k = 0; n > 40 && id < 0 && k < 4; k++) { /* Long enough: close what is open. */
            const uint32_t closing = lt_tokenizer_find(w->t, &"\"}]0"[k], 1);
            if (closing != LT_TOKEN_NONE && (w->bits[closing / 32] >> (closing % 32) & 1) != 0 &&
                draw(w, 4) > 0) {
                id = (int32_t)closing;
            }
        }
        for (int64_t k = 0; id < 0 && k < w->n_ids; k++) {
            const int64_t i = (first + k) % w->n_ids;
            if ((w->bits[i / 32] >> (i % 32) & 1) != 0 && !is_end(w, i)) {
                id = (int32_t)i;
            }
        }
        if (id < 0 && lt_grammar_accepting(s)) {
            id = w->end;
        }
        if (id < 0 || lt_grammar_accept(s, id) != LT_OK) {
            break;
        }
        if (id == w->end) {
            if (lt_tokenizer_decode(w->t, ids, n, false, &text, &bytes) == LT_OK) {
                out = json_stringn(text, bytes);
            }
            break;
        }
        ids[n++] = (uint32_t)id;
    }
    free(text);
    free(ids);
    lt_grammar_state_close(s);
    return out != NULL ? out : n == 4000 ? json_integer(4000) : json_null();
}

static json_t *answer(walker *w, const json_t *line) {
    static const char *const kinds[] = {"gbnf", "regex", "schema", "json", "choice"};
    const char *kind = json_string_value(json_object_get(line, "kind"));
    const json_t *text = json_object_get(line, "text"), *list = json_object_get(line, "accept"),
                 *item;
    const int64_t n_walks = json_integer_value(json_object_get(line, "walks"));
    json_t *accepted = json_array(), *walked = json_array(), *reply;
    lt_grammar *g = NULL;
    size_t i;
    int k = 0;
    double start = now_us();

    while (k < 4 && kind != NULL && strcmp(kinds[k], kind) != 0) {
        k++;
    }
    w->mask_us = w->mask_us_max = 0;
    w->n_masks = 0;
    memset(w->n_over, 0, sizeof w->n_over);
    w->random = (uint64_t)json_integer_value(json_object_get(line, "seed")) * 2 + 1;
    if (lt_grammar_open(&g, w->v, (lt_grammar_kind)k, json_string_value(text),
                        json_string_length(text)) != LT_OK) {
        json_decref(accepted);
        json_decref(walked);
        return json_pack("{s:s}", "error", lt_error_message());
    }
    start = now_us() - start;
    json_array_foreach(list, i, item) {
        json_array_append_new(accepted, json_boolean(accepts(w, g, json_string_value(item),
                                                             json_string_length(item))));
    }
    for (int64_t n = 0; n < n_walks; n++) {
        json_array_append_new(walked, walk(w, g));
    }
    reply = json_pack("{s:o,s:o,s:f,s:f,s:f,s:I,s:[I,I,I,I,I]}", "accept", accepted, "walks",
                      walked, "compile_us", start, "mask_us",
                      w->n_masks > 0 ? w->mask_us / (double)w->n_masks : 0.0, "mask_us_max",
                      w->mask_us_max, "masks", (json_int_t)w->n_masks, "masks_over",
                      (json_int_t)w->n_over[0], (json_int_t)w->n_over[1], (json_int_t)w->n_over[2],
                      (json_int_t)w->n_over[3], (json_int_t)w->n_over[4]);
    lt_grammar_close(g);
    return reply;
}

int main(int argc, char **argv) {
    walker w = {0};
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    lt_tokenizer_info info;
    if (argc != 2 || lt_tokenizer_open(&w.t, argv[1], NULL) != LT_OK ||
        lt_tokenizer_scratch_open(&w.scratch, w.t) != LT_OK) {
        fprintf(stderr, "usage: grammar_walk TOKENIZER; %s\n", lt_error_message());
        return 1;
    }
    info = lt_tokenizer_describe(w.t);
    w.n_ids = info.n_ids;
    w.end = info.eos != LT_TOKEN_NONE ? (int32_t)info.eos : (int32_t)info.n_ids - 1;
    w.bits = calloc((size_t)w.n_ids / 32 + 1, sizeof *w.bits);
    if (w.bits == NULL || lt_grammar_vocab_open(&w.v, w.t, &w.end, 1) != LT_OK) {
        fprintf(stderr, "%s\n", lt_error_message());
        return 1;
    }
    while ((n = getline(&line, &room, stdin)) > 0) {
        json_t *j = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        json_t *reply = answer(&w, j);
        char *text = reply != NULL ? json_dumps(reply, JSON_COMPACT) : NULL;
        puts(text != NULL ? text : "{}");
        free(text);
        json_decref(reply);
        json_decref(j);
    }
    free(line);
    free(w.bits);
    lt_grammar_vocab_close(w.v);
    lt_tokenizer_scratch_close(w.scratch);
    lt_tokenizer_close(w.t);
    return 0;
}
