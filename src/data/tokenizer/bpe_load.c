/* bpe_load.c: fills the pair table with merges.
 *
 * A vocabulary of 200,000 pieces has up to half a million merges, each with three lookups of a
 * piece and one insertion of a pair, all at random places of tables larger than the cache; one
 * after another, a merge takes 0.4 us. Here a batch of merges goes through the steps together, and
 * each step prefetches what the next one reads:
 *
 *     hash ──▶ slots ──▶ likely ids ──▶ their start, length ──▶ their text ──▶ compare
 *         ──▶ pair slots ──▶ insert
 *
 * RANKS belong to pieces, not to pairs, so each cut of a piece into two pieces could be a merge.
 * But only one of them ever is. When two neighbours in some word make a piece, no merge has crossed
 * the piece's ends, so the merges between these ends are those of the piece alone (best rank first,
 * leftmost of equals, in both cases): the pair is the last step of encoding the piece itself. The
 * halves of other cuts are never neighbours. So the table has only this pair: 200,000 pairs
 * instead of 600,000 for o200k, 4 MiB instead of 16, which matters because encoding spends its time
 * on cache misses to this table. The encoder finds the last step; for this it needs only the
 * pairs of lower ranks. If it does not come to two halves (with ranks that did not come from
 * training), all cuts are added, which is correct too. */
#include "data/tokenizer/bpe_load.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/bpe_merge.h"

lt_merge_batch lt_merge_batch_open(lt_bpe *b, const char *name) {
    return (lt_merge_batch){.bpe = b, .name = name, .skip = strlen(b->prefix)};
}

void lt_merge_batch_close(lt_merge_batch *m) {
    lt_text_free(&m->text);
    lt_text_free(&m->both);
}

static lt_err grow_merges(lt_merge_batch *m, size_t need) {
    size_t room = m->merge_room == 0 ? 65536 : m->merge_room;
    uint32_t *grown;
    if (need <= m->merge_room) {
        return LT_OK;
    }
    while (room < need) {
        room *= 2;
    }
    grown = realloc(m->bpe->merge_to, room * sizeof *grown);
    if (grown == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: %zu merges", m->name, room);
    }
    m->bpe->merge_to = grown;
    m->merge_room = room;
    return LT_OK;
}

static const char *left_of(const lt_merge_batch *m, const lt_merge_job *j) {
    return m->text.data + j->start;
}

static const char *right_of(const lt_merge_batch *m, const lt_merge_job *j) {
    return m->text.data + j->start + j->left_n;
}

/* The result of the merge: the halves joined, without the continuing prefix between them. */
static lt_err product(lt_merge_batch *m, const lt_merge_job *j, const char **s, size_t *n) {
    const size_t skip = m->skip <= j->right_n ? m->skip : 0;
    *s = left_of(m, j);
    *n = j->left_n + j->right_n;
    if (skip > 0) {
        m->both.n = 0;
        LT_TRY(lt_text_put(&m->both, *s, j->left_n));
        LT_TRY(lt_text_put(&m->both, right_of(m, j) + skip, j->right_n - skip));
        *s = m->both.data;
        *n = m->both.n;
    }
    return LT_OK;
}

static lt_err hash_jobs(lt_merge_batch *m) {
    const lt_vocab *v = m->bpe->vocab;
    for (size_t i = 0; i < m->n; i++) {
        lt_merge_job *j = &m->jobs[i];
        const char *both;
        size_t n;
        LT_TRY(product(m, j, &both, &n));
        j->left_hash = lt_vocab_hash(left_of(m, j), j->left_n);
        j->right_hash = lt_vocab_hash(right_of(m, j), j->right_n);
        j->both_hash = lt_vocab_hash(both, n);
        lt_vocab_prefetch_slot(v, j->left_hash);
        lt_vocab_prefetch_slot(v, j->right_hash);
        lt_vocab_prefetch_slot(v, j->both_hash);
    }
    return LT_OK;
}

static void prefetch_piece(const lt_vocab *v, uint32_t id) {
    if (id != LT_NO_ID) {
        lt_vocab_prefetch_piece(v, id);
    }
}

static void prefetch_text(const lt_vocab *v, uint32_t id) {
    if (id != LT_NO_ID) {
        __builtin_prefetch(lt_vocab_text(v, id));
    }
}

static void touch_jobs(lt_merge_batch *m) {
    const lt_vocab *v = m->bpe->vocab;
    for (size_t i = 0; i < m->n; i++) {
        lt_merge_job *j = &m->jobs[i];
        j->left = lt_vocab_likely(v, j->left_hash);
        j->right = lt_vocab_likely(v, j->right_hash);
        j->both = lt_vocab_likely(v, j->both_hash);
        prefetch_piece(v, j->left);
        prefetch_piece(v, j->right);
        prefetch_piece(v, j->both);
    }
    for (size_t i = 0; i < m->n; i++) {
        prefetch_text(v, m->jobs[i].left);
        prefetch_text(v, m->jobs[i].right);
        prefetch_text(v, m->jobs[i].both);
    }
}

static lt_err find_jobs(lt_merge_batch *m) {
    const lt_vocab *v = m->bpe->vocab;
    for (size_t i = 0; i < m->n; i++) {
        lt_merge_job *j = &m->jobs[i];
        const char *both;
        size_t n;
        LT_TRY(product(m, j, &both, &n));
        j->left = lt_vocab_find_hashed(v, j->left_hash, left_of(m, j), j->left_n);
        j->right = lt_vocab_find_hashed(v, j->right_hash, right_of(m, j), j->right_n);
        j->both = lt_vocab_find_hashed(v, j->both_hash, both, n);
        if (j->left == LT_NO_ID || j->right == LT_NO_ID || j->both == LT_NO_ID) {
            LT_FAIL(LT_ERR_FORMAT,
                    "%s: merge %u ('%.*s' '%.*s') names a piece that the vocabulary lacks", m->name,
                    j->merge, (int)(j->left_n < 64 ? j->left_n : 64), left_of(m, j),
                    (int)(j->right_n < 64 ? j->right_n : 64), right_of(m, j));
        }
        lt_bpe_fetch_pair(m->bpe, j->left, j->right);
    }
    return LT_OK;
}

lt_err lt_merge_batch_flush(lt_merge_batch *m) {
    /* The array must not be NULL even without merges, because NULL means ranks. */
    LT_TRY(grow_merges(m, (size_t)m->bpe->n_merges + 1));
    if (m->n == 0) {
        return LT_OK;
    }
    if (m->bpe->vocab->slots == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "%s: merges without a vocabulary", m->name);
    }
    LT_TRY(lt_bpe_reserve_pairs(m->bpe, m->bpe->n_pairs + m->n));
    LT_TRY(hash_jobs(m));
    touch_jobs(m);
    LT_TRY(find_jobs(m));
    for (size_t i = 0; i < m->n; i++) {
        const lt_merge_job *j = &m->jobs[i];
        LT_TRY(lt_bpe_add_pair(m->bpe, j->left, j->right, j->merge));
        m->bpe->merge_to[j->merge] = j->both;
    }
    m->n = 0;
    m->text.n = 0;
    return LT_OK;
}

lt_err lt_merge_batch_skip(lt_merge_batch *m) {
    LT_TRY(grow_merges(m, (size_t)m->bpe->n_merges + 1));
    m->bpe->merge_to[m->bpe->n_merges++] = LT_NO_ID;
    return LT_OK;
}

lt_err lt_merge_batch_put(lt_merge_batch *m, size_t left_n, size_t right_n) {
    LT_ASSERT(m->text.n >= left_n + right_n);
    if (left_n > LT_PIECE_MAX || right_n > LT_PIECE_MAX) {
        LT_FAIL(LT_ERR_LIMIT, "%s: merge %u of %zu and %zu bytes", m->name, m->bpe->n_merges,
                left_n, right_n);
    }
    m->jobs[m->n++] = (lt_merge_job){.start = m->text.n - left_n - right_n,
                                     .left_n = (uint32_t)left_n,
                                     .right_n = (uint32_t)right_n,
                                     .merge = m->bpe->n_merges++};
    return m->n == LT_MERGE_BATCH ? lt_merge_batch_flush(m) : LT_OK;
}

/* A cut of a ranked piece. Both halves must be pieces; they seldom are. */
typedef struct {
    const char *s;
    uint32_t cut, n, rank;
    uint64_t left_hash, right_hash;
    uint32_t left, right;
} cut_job;

static size_t likely_cuts(const lt_vocab *v, cut_job *jobs, size_t n) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        cut_job *j = &jobs[i];
        j->left = lt_vocab_likely(v, j->left_hash);
        j->right = j->left == LT_NO_ID ? LT_NO_ID : lt_vocab_likely(v, j->right_hash);
        if (j->right != LT_NO_ID) {
            lt_vocab_prefetch_piece(v, j->left);
            lt_vocab_prefetch_piece(v, j->right);
            jobs[kept++] = *j;
        }
    }
    for (size_t i = 0; i < kept; i++) {
        prefetch_text(v, jobs[i].left);
        prefetch_text(v, jobs[i].right);
    }
    return kept;
}

/* The state of deriving pairs from ranks. */
typedef struct {
    lt_bpe *b;
    lt_bpe_list list; /* For long pieces. */
    /* (n_ids, 2) the halves of a piece: the piece itself if it is a byte, LT_NO_ID if no merge
     * makes it. */
    uint32_t *halves;
    /* So far every piece that merges can make has a higher rank than its halves. */
    bool monotone;
    cut_job jobs[LT_MERGE_BATCH];
    size_t n_jobs;
} deriver;

/* Find where the last merge joins the piece when it is encoded with the pairs of all lower ranks;
 * *cut 0: encoding does not come to two halves. */
static lt_err last_cut(deriver *d, const char *s, uint32_t n, uint32_t *cut) {
    const lt_bpe *b = d->b;
    const uint8_t *p = (const uint8_t *)s;
    uint32_t small[LT_BPE_SMALL], merge[LT_BPE_SMALL], *ids = small;
    size_t left;

    if (n > LT_BPE_SMALL) {
        LT_TRY(lt_bpe_list_reserve(&d->list, n));
        ids = d->list.ids;
    }
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = b->byte_id[p[i]];
    }
    if (n > LT_BPE_SMALL) {
        LT_TRY(lt_bpe_merge_list(b, &d->list, n, &left));
    } else {
        for (uint32_t i = 0; i + 1 < n; i++) {
            merge[i] = b->byte_pair[p[i] << 8 | p[i + 1]];
        }
        left = lt_bpe_merge_small(b, ids, merge, n);
    }
    *cut = left == 2 ? b->vocab->bytes[ids[0]] : 0;
    return LT_OK;
}

/* Whether left and right, both complete, can become neighbours. Undo their last steps, latest
 * first, down to the bytes at the cut: at no time may the two symbols at the cut have been a
 * better merge than the step that is undone (of equal ranks the left one comes first). As in
 * GitHub's crate bpe. */
static bool can_touch(const deriver *d, uint32_t left, uint32_t right) {
    uint32_t limit = UINT32_MAX;
    for (;;) {
        const uint32_t l = d->halves[2 * left + 1], r = d->halves[2 * right];
        if (l == LT_NO_ID || r == LT_NO_ID || lt_bpe_find_pair(d->b, left, right) < limit) {
            return false;
        }
        if (l == left && r == right) {
            return true;
        }
        if (l != left && (left > right || r == right)) {
            limit = left;
            left = l;
        } else {
            limit = right + 1;
            right = r;
        }
    }
}

static uint32_t later_half(const cut_job *j) {
    return j->left > j->right ? j->left : j->right;
}

/* The cut to which encoding the piece comes; 0: none. The cut whose halves were made first is
 * tried first, because it usually is the one. */
static uint32_t touching_cut(const deriver *d, const cut_job *jobs, size_t n) {
    /* The later half of the cut that was tried last; the next one is above it. */
    uint32_t tried = 0;
    for (size_t k = 0; k < n; k++) {
        const cut_job *best = NULL;
        for (size_t i = 0; i < n; i++) {
            const uint32_t later = later_half(&jobs[i]);
            if (later < jobs->rank && (k == 0 || later > tried) &&
                (best == NULL || later < later_half(best))) {
                best = &jobs[i];
            }
        }
        if (best == NULL) {
            return 0;
        }
        tried = later_half(best);
        /* Two cuts, (a, b) and (b, a), may have the same later half: both are tried. */
        for (size_t i = 0; i < n; i++) {
            if (later_half(&jobs[i]) == tried && can_touch(d, jobs[i].left, jobs[i].right)) {
                return jobs[i].cut;
            }
        }
    }
    return 0;
}

/* Add the pairs of one piece, from its n cuts. If merges of lower ranks cannot make it, none can,
 * unless a half has a higher rank. */
static lt_err add_cuts(deriver *d, const cut_job *jobs, size_t n) {
    uint32_t only = d->monotone ? touching_cut(d, jobs, n) : 0;
    if (!d->monotone) {
        LT_TRY(last_cut(d, jobs->s, jobs->n, &only));
    }
    for (size_t i = 0; i < n; i++) {
        if (only == 0 || jobs[i].cut == only) {
            d->monotone &= jobs[i].left < jobs[i].rank && jobs[i].right < jobs[i].rank;
            LT_TRY(lt_bpe_add_pair(d->b, jobs[i].left, jobs[i].right, jobs[i].rank));
        }
        if (jobs[i].cut == only) {
            d->halves[2 * jobs[i].rank] = jobs[i].left;
            d->halves[2 * jobs[i].rank + 1] = jobs[i].right;
        }
    }
    if (jobs->n == 2) {
        d->b->byte_pair[(uint8_t)jobs->s[0] << 8 | (uint8_t)jobs->s[1]] = jobs->rank;
    }
    return LT_OK;
}

static lt_err flush_cuts(deriver *d) {
    lt_bpe *b = d->b;
    const lt_vocab *v = b->vocab;
    cut_job *jobs = d->jobs;
    const size_t likely = likely_cuts(v, jobs, d->n_jobs);
    size_t kept = 0;
    d->n_jobs = 0;
    LT_TRY(lt_bpe_reserve_pairs(b, b->n_pairs + likely));
    for (size_t i = 0; i < likely; i++) {
        cut_job *j = &jobs[i];
        j->left = lt_vocab_find_hashed(v, j->left_hash, j->s, j->cut);
        j->right = lt_vocab_find_hashed(v, j->right_hash, j->s + j->cut, j->n - j->cut);
        if (j->left != LT_NO_ID && j->right != LT_NO_ID) {
            lt_bpe_fetch_pair(b, j->left, j->right);
            jobs[kept++] = *j;
        }
    }
    for (size_t i = 0, end; i < kept; i = end) {
        for (end = i + 1; end < kept && jobs[end].rank == jobs[i].rank; end++) {}
        LT_TRY(add_cuts(d, jobs + i, end - i));
    }
    return LT_OK;
}

/* Make the tables of single bytes, which last_cut needs from the beginning. */
static lt_err start_bytes(lt_bpe *b) {
    for (int i = 0; i < 256; i++) {
        const char byte = (char)i;
        b->byte_id[i] = lt_vocab_find(b->vocab, &byte, 1);
    }
    b->byte_pair = malloc(65536 * sizeof *b->byte_pair);
    if (b->byte_pair == NULL) {
        LT_FAIL(LT_ERR_OOM, "table of BPE byte pairs");
    }
    memset(b->byte_pair, 0xFF, 65536 * sizeof *b->byte_pair);
    return LT_OK;
}

static lt_err derive_all(deriver *d) {
    const lt_vocab *v = d->b->vocab;
    for (uint32_t id = 0; id < v->n; id++) {
        const char *s = lt_vocab_text(v, id);
        const uint32_t n = (v->flags[id] & LT_PIECE_TEXT) != 0 ? v->bytes[id] : 0;
        if (d->n_jobs + n > LT_MERGE_BATCH) { /* A piece's cuts stay together. */
            LT_TRY(flush_cuts(d));
        }
        d->monotone &= n <= LT_MERGE_BATCH; /* This piece's cuts do not fit one batch. */
        for (uint32_t cut = 1; cut < n; cut++) {
            cut_job *j = &d->jobs[d->n_jobs++];
            *j = (cut_job){.s = s, .cut = cut, .n = n, .rank = id};
            j->left_hash = lt_vocab_hash(s, cut);
            j->right_hash = lt_vocab_hash(s + cut, n - cut);
            lt_vocab_prefetch_slot(v, j->left_hash);
            lt_vocab_prefetch_slot(v, j->right_hash);
            LT_TRY(d->n_jobs == LT_MERGE_BATCH ? flush_cuts(d) : LT_OK);
        }
    }
    return flush_cuts(d);
}

/* Whether encoding a piece always gives that piece. Then the encoder need not look up whether a
 * word is a piece. */
static bool merges_reach_all(const deriver *d) {
    const lt_vocab *v = d->b->vocab;
    for (uint32_t id = 0; id < v->n; id++) {
        if ((v->flags[id] & LT_PIECE_TEXT) != 0 && d->halves[2 * id] == LT_NO_ID) {
            return false;
        }
    }
    return true;
}

lt_err lt_bpe_derive_ranks(lt_bpe *b) {
    lt_err err = LT_OK;
    deriver *d = calloc(1, sizeof *d);
    if (d == NULL) {
        LT_FAIL(LT_ERR_OOM, "BPE pairs");
    }
    d->b = b;
    d->monotone = true;
    b->phantom_base = b->vocab->n;
    b->n_merges = b->vocab->n;
    d->halves = malloc(((size_t)b->vocab->n + 1) * 2 * sizeof *d->halves);
    if (d->halves == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "halves of %u pieces", b->vocab->n);
    }
    memset(d->halves, 0xFF, (size_t)b->vocab->n * 2 * sizeof *d->halves);
    LT_TRY_DONE(start_bytes(b));
    for (int i = 0; i < 256; i++) {
        const uint32_t id = b->byte_id[i];
        if (id != LT_NO_ID) {
            d->halves[2 * id] = d->halves[2 * id + 1] = id;
        }
    }
    LT_TRY_DONE(lt_bpe_reserve_pairs(b, b->vocab->n));
    LT_TRY_DONE(derive_all(d));
    LT_TRY_DONE(d->monotone ? lt_bpe_find_chars(b) : LT_OK);
    b->ignore_merges = b->ignore_merges && !(d->monotone && merges_reach_all(d));
done:
    lt_bpe_list_free(&d->list);
    free(d->halves);
    free(d);
    return err;
}
