/* packs.c: see packs.h. */
#include "model/infer/packs.h"

/* The number of equal pages, at most `most`, at the beginning of two sequences. */
static int64_t same_pages(const int32_t *a, const int32_t *b, int64_t most) {
    int64_t n = 0;
    while (n < most && a[n] == b[n]) {
        n++;
    }
    return n;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Number of pages that a sequence may have in common with others: whole pages before its new
 * token. */
static int64_t old_pages(int32_t kv_len, int64_t page_tokens) {
    return (kv_len - 1) / page_tokens;
}

/* Whether packs make a call faster in which n_seqs sequences have `keys` keys, the longest of them
 * `longest`, and `saved` keys are read together with those of another sequence. The limits come
 * from measurements on an H200 (docs/speed/attention.md, attempt 164). */
static bool packs_pay(int64_t saved, int64_t keys, int64_t n_seqs, int64_t longest) {
    if (saved < 24576) {
        return false;
    }
    return n_seqs >= 256 ? 4 * saved >= keys
                         : 4 * saved >= 3 * keys || (longest >= 4096 && 5 * saved >= 2 * keys);
}

bool lt_packs_find(int32_t *packs, int64_t n_seqs, const int32_t *q_start, const int32_t *kv_len,
                   const int32_t *table, int64_t max_pages, int64_t page_tokens, bool always) {
    int64_t saved = 0, keys = 0, longest_of_all = 0;
    for (int64_t first = 0, end; first < n_seqs; first = end) {
        int64_t pages = old_pages(kv_len[first], page_tokens), longest = kv_len[first];
        for (end = first + 1; end < n_seqs && q_start[end + 1] - q_start[first] == end + 1 - first;
             end++) {
            const int64_t most = least(pages, old_pages(kv_len[end], page_tokens)),
                          same = same_pages(table + first * max_pages, table + end * max_pages,
                                            most),
                          tokens = same * page_tokens,
                          most_keys = longest > kv_len[end] ? longest : kv_len[end];
            if (tokens < LT_PACK_LEAST_TOKENS || tokens * LT_PACK_PART < most_keys ||
                (end > first + 1 && 2 * same < pages)) {
                break;
            }
            pages = same, longest = most_keys;
        }
        for (int64_t n = first; n < end; n++) {
            packs[3 * n] = (int32_t)first;
            packs[3 * n + 1] = (int32_t)(end - first);
            packs[3 * n + 2] = end > first + 1 ? (int32_t)(pages * page_tokens) : 0;
            keys += kv_len[n];
            longest_of_all = kv_len[n] > longest_of_all ? kv_len[n] : longest_of_all;
        }
        saved += (end - first - 1) * packs[3 * first + 2];
    }
    return always ? saved > 0 : packs_pay(saved, keys, n_seqs, longest_of_all);
}

void lt_packs_order(int32_t *order, const int32_t *first_page, int64_t n, int32_t *scratch) {
    /* A hash table from a page to the first sequence that begins with it, and from there a list of
     * the others: next[i] follows sequence i, and last[i] is the end of the list that begins with
     * sequence i, or -1 if none does. */
    int64_t size = 1, at = 0;
    while (size < 2 * n) {
        size *= 2;
    }
    int32_t *const first = scratch, *const next = first + size, *const last = next + n;
    for (int64_t i = 0; i < size; i++) {
        first[i] = -1;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t h = (int64_t)((uint32_t)first_page[i] * 2654435769u) & (size - 1);
        while (first_page[i] >= 0 && first[h] >= 0 && first_page[first[h]] != first_page[i]) {
            h = (h + 1) & (size - 1);
        }
        next[i] = -1;
        if (first_page[i] >= 0 && first[h] >= 0) {
            next[last[first[h]]] = (int32_t)i;
            last[first[h]] = (int32_t)i;
            last[i] = -1;
        } else {
            first[h] = first_page[i] >= 0 ? (int32_t)i : first[h];
            last[i] = (int32_t)i;
        }
    }
    for (int64_t i = 0; i < n; i++) {
        for (int32_t k = last[i] >= 0 ? (int32_t)i : -1; k >= 0; k = next[k]) {
            order[at++] = k;
        }
    }
}
