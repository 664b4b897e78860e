/* bwd_tiles.cuh: how the work of bwd_sm90.cu is divided: into tiles of TILE_KEYS keys of a key
 * head. For each tile, the blocks of a cluster (with BN keys each, every other 64) walk over the
 * queries in steps of BM. */
#ifndef LT_CUDA_ATTENTION_BWD_TILES_CUH
#define LT_CUDA_ATTENTION_BWD_TILES_CUH

#include "attention/bwd.cuh"
#include "attention/draw.cuh"

typedef struct {
    int b, kv_head, key, n_keys; /* key: the block's first */
    int m_begin, m_end;          /* steps of BM queries that see any of its keys */
    int n_heads;                 /* query heads in the group */
    int pair;                    /* b G + kv_head */
    /* where to begin: blocks of one pair begin at different places, so that their dQs do not
     * collide */
    int i, head;
} tile_pos;

/* First token of [0, T] whose range ends at or after `key`. */
INLINE int first_token(const lt_attn_args *a, int n_keys, int key) {
    return CAUSAL ? max_i(0, min_i(a->q_tokens, key - (n_keys - a->q_tokens))) : 0;
}
/* One past the last token whose range begins at or before `key`. */
INLINE int end_token(const lt_attn_args *a, int b, int n_keys, int key) {
    int end = a->q_tokens;
    if (WINDOW) {
        end = max_i(0, min_i(end, key + a->window - (n_keys - a->q_tokens)));
    }
    if (DOC) { /* doc_start is sorted: bisect. */
        int low = 0, high = end;
        while (low < high) {
            const int mid = (low + high) / 2;
            if (a->doc_start[b * a->q_tokens + mid] <= key) {
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        end = low;
    }
    return end;
}
/* The steps of queries that see any of a tile's keys. */
INLINE void tile_steps(tile_pos *p, const lt_attn_args *a) {
    p->m_begin = first_token(a, p->n_keys, p->key) / BM;
    p->m_end = div_up(end_token(a, p->b, p->n_keys, min_i(p->key + TILE_KEYS, p->n_keys) - 1), BM);
    if (p->key >= p->n_keys || p->m_end < p->m_begin) {
        p->m_end = p->m_begin;
    }
}
/* Tiles of one (batch, key head) stand together, for they read the same queries. Causal, there are
 * two orders. LONGEST_FIRST: tiles of a section of (batch, key head)s, whose queries and sums of dQ
 * fit the L2, the longest (first keys) first, so that no SM begins a long one when others run out
 * of work. Else, for short rows, of each (batch, key head) one from the front and one from the back
 * in turn: short tiles wait for memory, so long ones must run beside them. */
INLINE int tile_count(const lt_attn_bwd_args *w) {
    return div_up(w->a.kv_tokens, TILE_KEYS) * pairs_of(&w->a);
}
INLINE tile_pos tile_locate(const lt_attn_bwd_args *w, int t) {
    const lt_attn_args *a = &w->a;
    const int tiles = div_up(a->kv_tokens, TILE_KEYS);
    const turn at = turn_of(a, t, pairs_of(a), tiles);
    tile_pos p;
    p.pair = at.pair;
    p.b = at.pair / a->kv_heads;
    p.kv_head = at.pair % a->kv_heads;
    p.key = (LONGEST_FIRST     ? at.nth
             : at.nth % 2 == 0 ? at.nth / 2
                               : tiles - 1 - at.nth / 2) *
            TILE_KEYS;
    p.n_keys = keys_of(a, p.b);
    p.n_heads = a->q_heads / a->kv_heads;
    tile_steps(&p, a);
    const int steps = p.m_end - p.m_begin,
              begin = (int)((i64)(p.n_heads * steps) * (p.key / TILE_KEYS) / tiles);
    p.i = p.m_begin + (steps > 0 ? begin % steps : 0);
    p.head = steps > 0 ? begin / steps : 0;
    /* Both blocks walk over the same queries. */
    p.key += CLUSTER > 1 ? (int)cluster_cta_rank() * 64 : 0;
    return p;
}
/* The producer locates a tile for all warps; two places in shared memory are used in turn. */
#define TILE_BYTES 48
INLINE void tile_put(u32 at, const tile_pos *p) {
    st_shared_v4_s32(at, p->pair, p->b, p->kv_head, p->key);
    st_shared_v4_s32(at + 16, p->n_keys, p->n_heads, p->m_begin, p->m_end);
    st_shared_v2_s32(at + 32, p->head, p->i);
}
INLINE tile_pos tile_get(u32 at) {
    const uint4 x = ld_shared_v4(at), y = ld_shared_v4(at + 16);
    tile_pos p;
    p.pair = warp_uniform((int)x.x), p.b = warp_uniform((int)x.y),
    p.kv_head = warp_uniform((int)x.z), p.key = warp_uniform((int)x.w);
    p.n_keys = warp_uniform((int)y.x), p.n_heads = warp_uniform((int)y.y);
    p.m_begin = warp_uniform((int)y.z), p.m_end = warp_uniform((int)y.w);
    p.head = warp_uniform(ld_shared_s32(at + 32)), p.i = warp_uniform(ld_shared_s32(at + 36));
    return p;
}
/* The step after (head, i): all queries of a head, then the next head, then again the first. */
INLINE void step_next(const tile_pos *p, int *head, int *i) {
    if (++*i == p->m_end) {
        *i = p->m_begin;
        *head = *head + 1 == p->n_heads ? 0 : *head + 1;
    }
}

#endif
