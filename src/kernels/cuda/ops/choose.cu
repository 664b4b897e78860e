/* choose.cu — chooses a token for each of P picks from a row of fp32 logits: penalties and masks;
 * greedy, or temperature, top-k, typical, top-p, min-p and the draw; log-probabilities.
 *
 * SHAPES    logits (rows, V), ld apart, from which pick p reads row rows[p]; how (P, 15) fp64;
 *           results (P), (P, 20); penalties (S, V + 1024) and masks (M, ceil(V / 32)) int32. V <=
 *           PARTS * CHUNKS * 2048.
 * MAP       PARTS blocks of 512 threads a pick, each with its slice of CHUNKS chunks of 2048 ids;
 *           thread t has ids 4 t .. 4 t + 3 of each chunk. HELD: the slice lies in shared memory,
 *           64 KB at most, and the row is read once. Else it is read again in each pass, from the
 *           L2.
 * MOVEMENT
 *     1. slice HBM ──16 B/thread──▶ shared; best id of each slice ──┐
 *        ◀── words of all PARTS blocks: global memory, through L2 ◀─┴─ meet
 *     2. cut: at most 4 rounds of 8 bits of the distance from the best, in units in the last
 *        place (float bits made monotonic): a histogram of counts (top-k) or masses (top-p); ties,
 *        if some drop out, by the id's bits.
 *     3. masses left, by chunk and warp ── meet ─▶ the slice in which the draw lies finds chunk,
 *        warp, lane, id
 *     4. with log-probabilities: sum and rank ── meet; the most likely ids: as 2.
 *     At the first meeting each block sends words from its shared memory to that of all others
 *     (CLUSTER: sm_90). At the others, blocks meet by the cluster's barrier, or else by a counter
 *     in global memory, for which the launcher makes sure that all of a row's blocks run at once.
 *     Greedy picks meet once, a draw without cuts twice, with top-k 3 to 6 times, with top-p 4 to
 *     7, with typical 5 to 8 more.
 * ADJUSTED  A row with penalties or a mask is read with them, 1 to 4.1 bytes more per id, and its
 *           adjusted logits lie in shared memory. The model's own distribution is then needed only
 *           for log-probabilities: a second round, over the row as it is. The block whose slice has
 *           the newest id increments its count.
 * TYPICAL   -log2 w = (best - x) * rate; the information of an id lies as far above it as the
 *           entropy above its mean. So an id's key is the distance from that mean, which is a sum
 *           of masses times distances over a sum of masses; then as 2, over the bits of that key.
 * BOUND     4 V bytes a pick, once. One row of 128,256 in 8 slices: 64 KB a block at 50 GB/s an SM
 *           and more 1.3 us, a meeting 1 us, a pass over 32 elements a thread 0.3 to 0.7 us: 4 us
 *           greedy, 5 to 14 drawn. 256 rows: 131 MB are 44 us at 3.0 TB/s; passes of other blocks
 *           run beside (two an SM), about 10 instructions an element each, 12 us: 50 us greedy, 60
 *           to 90 drawn. PARTS 1 without HELD: 4 to 12 reads.
 * MEASURED  docs/speed/serving.md: one row of 128,256 greedy 3.3 us, drawn 12, top-p
 *           40; 256 rows 70, 173, 587.
 * NUMERICS  penalties are applied with the host's arithmetic (ops.h), operation by operation, none
 *           contracted. A weight is exp2 in fp32, then a multiple of 2^-44: sums are exact, so
 *           results do not depend on the order, PARTS or HELD. Weights below 2^-45 are 0. The error
 *           relative to double is 2^-22, as the host's (logits.h), whose order of cuts this is: ids
 *           differ only where rounding decides.
 * REFS      Holtzman et al. 2019, arXiv:1904.09751 (top-p); Nguyen et al. 2024, arXiv:2407.01082
 *           (min-p); Meister et al. 2023, arXiv:2202.00666 (typical). */
#include "common/early.cuh"
#include "common/hopper.cuh"
#include "common/reduce.cuh"
#include "ops/choose.cuh"

#define BITS    8 /* Bits that are decided per round. */
#define BUCKETS (1 << BITS)
/* Most words that a block sends to the others: counts, low and high halves of masses. */
#define WORDS      (3 * BUCKETS)
#define TOP        20
#define FLOAT_BITS 31 /* Bits of a float that is not negative. */
enum { CUT_TOP_K, MOMENT, CUT_TYPICAL, CUT_TOP_P, DRAW_ONE, REPORT };
/* What a cut counts, and whether its keys are distances from the best or from the mean. */
enum { BY_NUMBER, BY_MASS, BY_MASS_TYPICAL };

static_assert(PARTS <= 16 && THREADS >= PARTS * TOP && THREADS >= BUCKETS && WARPS <= WARP,
              "a thread for each");
static_assert(CHUNKS <= 256 && (!HELD || CHUNKS <= 8),
              "48 KB of static shared memory; 64 KB of logits");

typedef struct {
    u32 histogram[WORDS], words[2][PARTS == 1 ? WORDS : 1];
    u64 sums[CHUNKS * WARPS]; /* Masses by chunk and warp, in ascending order of id. */
    u64 by_warp[WARPS], more_by_warp[WARPS], before, measure;
    u32 bucket, count, n_listed, round;
    u32 bound_n[WARPS]; /* All warps have a copy: each reads its own, without a barrier. */
    u64 moment;         /* Sum of w times -log2 w. */
    aside also;
    double how[HOW_COUNT];
#if CLUSTER
    uint4 told[2][PARTS];
    u64 told_all[2]; /* mbarriers */
#endif
} shared;

/* The blocks of a row: a block's words are visible to all at their next meeting. Two sets are used
 * in turn, since all have read the earlier set before the next meeting. */
typedef struct {
    u32 *words; /* (2, PARTS, WORDS) */
    int *met;
    int part, turn;
} group;

INLINE u32 *group_mine(const group *g) {
    return g->words + ((g->turn & 1) * PARTS + g->part) * WORDS;
}
INLINE void group_meet(group *g) {
    g->turn++;
#if CLUSTER
    __syncwarp(); /* The instructions need all lanes of the warp. */
    cluster_sync();
#else
    __syncthreads();
    if (PARTS > 1) {
        if (threadIdx.x == 0) {
            int met = 0;
            __threadfence();
            atomicAdd(g->met, 1);
            while (met < PARTS * g->turn) {
                asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                             : "=r"(met)
                             : "l"(g->met)
                             : "memory");
            }
        }
        __syncthreads();
    }
#endif
}
/* Word i of a block, as of the last meeting. */
INLINE u32 group_word(const group *g, int part, int i) {
    const u32 *at = g->words + ((~g->turn & 1) * PARTS + part) * WORDS + i;
    return PARTS > 1 ? __ldcg(at) : *at;
}
INLINE u64 group_pair(const group *g, int part, int i) {
    return (u64)group_word(g, part, i + 1) << 32 | group_word(g, part, i);
}
INLINE void put_pair(u32 *words, int i, u64 x) {
    words[i] = (u32)x;
    words[i + 1] = (u32)(x >> 32);
}
/* After the last meeting: the last block to leave resets the counter. */
INLINE void group_leave(const group *g) {
    if (PARTS > 1 && !CLUSTER && threadIdx.x == 0 &&
        atomicAdd(g->met, 1) == PARTS * g->turn + PARTS - 1) {
        *g->met = 0;
    }
}

INLINE u64 warp_sum_u64(u64 x) {
#pragma unroll
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, lanes);
    }
    return x;
}
/* Sum over the lanes up to this one. */
INLINE u64 warp_scan_u64(u64 x) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int by = 1; by < WARP; by *= 2) {
        const u64 below = __shfl_up_sync(ALL_LANES, x, by);
        x += lane >= by ? below : 0;
    }
    return x;
}
/* Needs one barrier; slots as in block_sum. */
INLINE u64 block_sum_u64(u64 x, u64 *slots) {
    u64 sum = 0;
    x = warp_sum_u64(x);
    if (threadIdx.x % WARP == 0) {
        slots[threadIdx.x / WARP] = x;
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < WARPS; i++) {
        sum += slots[i];
    }
    return sum;
}

/* A key that at least k of the block's threads reach, and therefore also the k likeliest of the
 * row. */
INLINE u32 bound_of(u32 mine, int k) {
    u32 low = 0, high = NO_ID;
    if (k <= 0 || k > THREADS) {
        return 0;
    }
#pragma unroll 1
    for (int i = 0; i < 24; i++) { /* To within 256 units in the last place. */
        const u32 middle = low + (high - low) / 2;
        if (__syncthreads_count(mine >= middle) >= k) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The bucket in which the sum of the buckets' counts or masses, over all blocks, reaches target. */
INLINE void bucket_find(shared *m, const group *g, bool by_mass, u64 target) {
    const int t = threadIdx.x, warp = t / WARP;
    u64 count = 0, mass = 0;
#pragma unroll 4
    for (int part = 0; part < PARTS && t < BUCKETS; part++) {
        count += group_word(g, part, t);
        mass += by_mass ? (u64)group_word(g, part, 2 * BUCKETS + t) << 32 |
                              group_word(g, part, BUCKETS + t)
                        : 0;
    }
    const u64 mine = by_mass ? mass : count;
    u64 sum = warp_scan_u64(mine);
    if (t % WARP == WARP - 1) {
        m->by_warp[warp] = sum;
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < warp; i++) {
        sum += m->by_warp[i];
    }
    if (sum >= target && sum - mine < target && mine > 0) {
        m->bucket = t;
        m->count = (u32)count;
        m->measure = mine;
        m->before = sum - mine;
    }
    __syncthreads();
}

/* This block's histogram of the keys of live elements: within limit, equal to base above `bits`; by
 * id: at distance dist. */
INLINE void histogram_fill(shared *m, const slice *s, int by, bool by_id, cut limit,
                           u32 dist_wanted, u32 base, int bits, int shift) {
#pragma unroll 1
    for (int i = threadIdx.x; i < WORDS; i += THREADS) {
        m->histogram[i] = 0;
    }
    __syncthreads();
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        float x[PIECE];
        const int first = piece_at(x, s, chunk, threadIdx.x);
#pragma unroll
        for (int i = 0; i < PIECE; i++) {
            const u32 dist = s->best_key - order_key(x[i]), id = first + i,
                      far = by == BY_MASS_TYPICAL ? mean_dist(s, x[i]) : dist;
            const u32 key = by_id ? id : far;
            if (!stays(s, limit, x[i], dist, id) || (by_id && far != dist_wanted) ||
                (u64)(key ^ base) >> bits) {
                continue;
            }
            const int bucket = (key - base) >> shift;
            atomicAdd(&m->histogram[bucket], 1u);
            if (by != BY_NUMBER) {
                const u64 mass = mass_of(s, x[i], s->rate);
                const u32 low = (u32)mass, old = atomicAdd(&m->histogram[BUCKETS + bucket], low);
                atomicAdd(&m->histogram[2 * BUCKETS + bucket],
                          (u32)(mass >> 32) + (old + low < old));
            }
        }
    }
    __syncthreads();
}

/* The fewest elements within limit that reach the target, in number or mass; more may lie between
 * the two. base: known bits of the key; `bits`: how many are unknown. */
INLINE cut cut_at(shared *m, group *g, const slice *s, int by, u64 target, cut limit) {
    cut at = {0, NO_ID};
#pragma unroll 1
    for (int by_id = 0; by_id < 2; by_id++) {
        u32 base = 0;
        int bits = by_id                   ? WARP - __clz(s->cols - 1)
                   : by == BY_MASS_TYPICAL ? FLOAT_BITS
                                           : WARP - __clz((int)limit.dist);
        while (bits > 0) {
            const int shift = bits > BITS ? bits - BITS : 0;
            histogram_fill(m, s, by, by_id, limit, at.dist, base, bits, shift);
            u32 *words = group_mine(g);
#pragma unroll 1
            for (int i = threadIdx.x; i < (by != BY_NUMBER ? WORDS : BUCKETS); i += THREADS) {
                words[i] = m->histogram[i];
            }
            group_meet(g);
            bucket_find(m, g, by != BY_NUMBER, target);
            base += m->bucket << shift;
            bits = shift;
            target -= m->before;
            if (m->count == 1 || m->measure == target) { /* All of the bucket is in. */
                const u32 last = base + ((1u << shift) - 1);
                return by_id ? cut_to(at.dist, last) : cut_to(last, NO_ID);
            }
        }
        at.dist = base;
    }
    return cut_to(at.dist, 0); /* The row has a single id. */
}

/* Weights of the elements within c that weigh least or more: of the whole row, of the slices before
 * this one, of this slice; and up to the end of a lane's entries of sums (warp 0). */
typedef struct {
    u64 all, before, here, lane;
} masses;
#define LANE_SUMS ((CHUNKS * WARPS + WARP - 1) / WARP) /* Entries of sums per lane. */

/* moment: sum their moments instead. */
INLINE masses weigh(shared *m, group *g, const slice *s, cut c, u64 least, bool moment) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    masses w = {0, 0, 0, 0};
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        float x[PIECE];
        u64 sum = 0;
        const int first = piece_at(x, s, chunk, threadIdx.x);
#pragma unroll
        for (int i = 0; i < PIECE; i++) {
            const u64 mass = mass_kept(s, x[i], first + i, c, least);
            sum += moment && mass > 0 ? moment_of(s, x[i]) : mass;
        }
        sum = warp_sum_u64(sum);
        if (lane == 0) {
            m->sums[chunk * WARPS + warp] = sum;
        }
    }
    __syncthreads();
    if (warp == 0) {
#pragma unroll 1
        for (int i = lane * LANE_SUMS; i < (lane + 1) * LANE_SUMS && i < CHUNKS * WARPS; i++) {
            w.lane += m->sums[i];
        }
        w.lane = warp_scan_u64(w.lane);
        if (lane == WARP - 1) {
            put_pair(group_mine(g), 0, w.lane);
        }
    }
    group_meet(g);
#pragma unroll 1
    for (int part = 0; part < PARTS; part++) {
        const u64 there = group_pair(g, part, 0);
        w.all += there;
        w.before += part < g->part ? there : 0;
        w.here = part == g->part ? there : w.here;
    }
    return w;
}

INLINE u64 warp_best(u64 x) {
    const u32 high = warp_max_u32((u32)(x >> 32));
    return (u64)high << 32 | warp_max_u32((u32)(x >> 32) == high ? (u32)x : 0);
}
INLINE u64 block_best(u64 x, u64 *slots) {
    x = warp_best(x);
    if (threadIdx.x % WARP == 0) {
        slots[threadIdx.x / WARP] = x;
    }
    __syncthreads();
    return warp_best(slots[threadIdx.x % WARPS]);
}

/* The largest mass of the elements within c, over the whole row. */
INLINE u64 heaviest(shared *m, group *g, const slice *s, cut c) {
    u64 most = 0;
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        float x[PIECE];
        const int first = piece_at(x, s, chunk, threadIdx.x);
#pragma unroll
        for (int i = 0; i < PIECE; i++) {
            const u64 mass = mass_kept(s, x[i], first + i, c, 0);
            most = mass > most ? mass : most;
        }
    }
    most = block_best(most, m->by_warp);
    if (threadIdx.x == 0) {
        put_pair(group_mine(g), 0, most);
    }
    group_meet(g);
#pragma unroll 1
    for (int part = 0; part < PARTS; part++) {
        const u64 there = group_pair(g, part, 0);
        most = there > most ? there : most;
    }
    return most;
}

/* In warp 0 of its slice: the id at which the sum of masses exceeds target, and its key; NO_ID on
 * all lanes but one. */
INLINE cut find_drawn(const shared *m, const slice *s, const masses *w, u64 target, cut c,
                      u64 least) {
    const int lane = threadIdx.x;
    u64 below = __shfl_up_sync(ALL_LANES, w->lane, 1), rest = target - w->before, mass[PIECE],
        sum = 0;
    below = lane == 0 ? 0 : below;
    const bool here = below <= rest && rest < w->lane;
    int entry = lane * LANE_SUMS;
    rest -= below;
#pragma unroll 1
    while (here && rest >= m->sums[entry]) {
        rest -= m->sums[entry++];
    }
    const int finder = __ffs(__ballot_sync(ALL_LANES, here)) - 1;
    entry = __shfl_sync(ALL_LANES, entry, finder);
    rest = __shfl_sync(ALL_LANES, rest, finder);
    float x[PIECE];
    const int first = piece_at(x, s, entry / WARPS, entry % WARPS * WARP + lane);
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        mass[i] = mass_kept(s, x[i], first + i, c, least);
        sum += mass[i];
    }
    cut found = {0, NO_ID};
    rest -= warp_scan_u64(sum) - sum; /* It wraps on later lanes, to above all masses. */
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        if (rest < mass[i]) {
            found = cut_to(order_key(x[i]), (u32)(first + i));
        }
        rest -= mass[i];
    }
    return found;
}

/* The smallest mass that is this share of all, and not 0. */
INLINE u64 share_of(double share, u64 all) {
    const u64 enough = (u64)ceil(share * (double)all);
    return enough < 1 ? 1 : enough > all ? all : enough;
}
/* Target of top-p among elements that weigh `all`; *limit: the elements that may belong to it. */
INLINE u64 nucleus_of(const slice *s, double top_p, u64 all, cut *limit) {
    const u64 target = share_of(top_p, all);
    /* An id that weighs less than this is not in the nucleus, because all such ids together weigh
     * less than the nucleus leaves out. It is lowered slightly for rounding. */
    const float low = (float)((double)(all - target) / ((double)ONE * s->cols));
    if (low > 0.0f) {
        *limit = cut_least(
            *limit,
            cut_to(s->best_key - order_key(s->best + (log2f(low) - 0.01f) / s->rate), NO_ID));
    }
    return target;
}

/* The block in whose slice the draw lies stores it to *id. told: one more meeting tells all blocks
 * its key and id. */
INLINE cut draw(const shared *m, group *g, const slice *s, const masses *w, double uniform, cut c,
                u64 least, bool told, int *id) {
    const u64 drawn = (u64)(uniform * (double)w->all), target = drawn < w->all ? drawn : w->all - 1;
    u32 *words = group_mine(g);
    cut found = cut_to(0, NO_ID);
    if (threadIdx.x == 0 && told) {
        words[1] = NO_ID;
    }
    __syncwarp();
    if (threadIdx.x < WARP && target >= w->before && target - w->before < w->here) {
        found = find_drawn(m, s, w, target, c, least);
        if (found.id != NO_ID) {
            *id = (int)found.id;
        }
        if (found.id != NO_ID && told) {
            words[0] = found.dist;
            words[1] = found.id;
        }
    }
    if (!told) {
        return found;
    }
    group_meet(g);
#pragma unroll 1
    for (int part = 0; part < PARTS; part++) {
        const u32 id = group_word(g, part, 1);
        found = id != NO_ID ? cut_to(group_word(g, part, 0), id) : found;
    }
    return found;
}

/* Block 0 stores the elements above -inf within c, at most TOP, as log-probabilities. */
INLINE void report_top(shared *m, group *g, const slice *s, cut c, double lse, int *top_id,
                       float *top_logprob) {
    u32 *words = group_mine(g);
    if (threadIdx.x == 0) {
        m->n_listed = 0;
    }
    __syncthreads();
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        float x[PIECE];
        const int first = piece_at(x, s, chunk, threadIdx.x);
#pragma unroll
        for (int i = 0; i < PIECE; i++) {
            const u32 dist = s->best_key - order_key(x[i]);
            if (x[i] > NEGATIVE && keeps(c, dist, first + i)) {
                const u32 at = atomicAdd(&m->n_listed, 1u);
                words[1 + 2 * at] = dist;
                words[2 + 2 * at] = first + i;
            }
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        words[0] = m->n_listed;
    }
    group_meet(g);
    const int part = threadIdx.x / TOP, at = threadIdx.x % TOP;
    if (g->part == 0 && part < PARTS && at < (int)group_word(g, part, 0)) {
        const u32 dist = group_word(g, part, 1 + 2 * at), id = group_word(g, part, 2 + 2 * at);
        int place = 0; /* The order in which they were listed does not matter. */
#pragma unroll 1
        for (int p = 0; p < PARTS; p++) {
#pragma unroll 1
            for (int i = 0; i < (int)group_word(g, p, 0); i++) {
                const cut other = {group_word(g, p, 1 + 2 * i), group_word(g, p, 2 + 2 * i)};
                place += keeps(cut_to(dist, id), other.dist, other.id) && other.id != id;
            }
        }
        top_id[place] = (int)id;
        top_logprob[place] = (float)((double)key_value(s->best_key - dist) - lse);
    }
}

/* Rank and log-probability of the chosen id under the row's own distribution; returns the log of
 * the sum of exponentials. */
INLINE double report_chosen(shared *m, group *g, const slice *s, u32 chosen_key, float *logprob,
                            int *rank) {
    u64 above = 0, mass = 0;
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        float x[PIECE];
        (void)piece_at(x, s, chunk, threadIdx.x);
#pragma unroll
        for (int i = 0; i < PIECE; i++) {
            above += order_key(x[i]) > chosen_key;
            mass += mass_of(s, x[i], LOG2_E);
        }
    }
    above = block_sum_u64(above, m->by_warp);
    mass = block_sum_u64(mass, m->more_by_warp);
    if (threadIdx.x == 0) {
        put_pair(group_mine(g), 0, above);
        put_pair(group_mine(g), 2, mass);
    }
    group_meet(g);
    above = mass = 0;
#pragma unroll 1
    for (int part = 0; part < PARTS; part++) {
        above += group_pair(g, part, 0);
        mass += group_pair(g, part, 2);
    }
    const double lse = (double)s->best + log((double)mass / (double)ONE);
    if (g->part == 0 && threadIdx.x == 0) {
        *rank = (int)above;
        *logprob = (float)((double)key_value(chosen_key) - lse);
    }
    return lse;
}

/* A block's message in the first meeting of a round: key and id of its best, and two bounds. */
typedef struct {
    u64 best;
    u32 bound_k, bound_n;
} word;
#if CLUSTER
/* Before other kernels are done: initialise barriers for at most two rounds, each for the words of
 * all blocks. */
INLINE void tell_begin(shared *m) {
    if (threadIdx.x == 0) {
        mbarrier_init(smem_addr(&m->told_all[0]), 1);
        mbarrier_init(smem_addr(&m->told_all[1]), 1);
        mbarrier_init_fence();
        mbarrier_expect(smem_addr(&m->told_all[0]), PARTS * sizeof(uint4));
        mbarrier_expect(smem_addr(&m->told_all[1]), PARTS * sizeof(uint4));
    }
    __syncwarp();
    cluster_sync();
}
/* Words are sent from block to block, so that nothing waits for memory. */
INLINE uint4 tell(shared *m, group *g, word w, int round) {
    const u32 bar = smem_addr(&m->told_all[round]);
    if (threadIdx.x < PARTS) {
        st_async_v4(remote_address(smem_addr(&m->told[round][g->part]), (int)threadIdx.x),
                    __uint_as_float((u32)w.best), __uint_as_float((u32)(w.best >> 32)),
                    __uint_as_float(w.bound_k), __uint_as_float(w.bound_n),
                    remote_address(bar, (int)threadIdx.x));
    }
    mbarrier_wait(bar, 0);
    return m->told[round][threadIdx.x % PARTS];
}
#else
INLINE void tell_begin(shared *m) {
    (void)m;
}
INLINE uint4 tell(shared *m, group *g, word w, int round) {
    u32 *words = group_mine(g);
    const int part = threadIdx.x % PARTS;
    if (threadIdx.x == 0) {
        put_pair(words, 0, w.best);
        words[2] = w.bound_k;
        words[3] = w.bound_n;
    }
    group_meet(g);
    (void)m, (void)round;
    return make_uint4(group_word(g, part, 0), group_word(g, part, 1), group_word(g, part, 2),
                      group_word(g, part, 3));
}
#endif
/* The largest of all blocks' words. */
INLINE word tell_all(shared *m, group *g, word w, int round) {
    const uint4 v = tell(m, g, w, round);
    w.best = warp_best((u64)v.y << 32 | v.x);
    w.bound_k = warp_max_u32(v.z);
    w.bound_n = warp_max_u32(v.w);
    __syncthreads(); /* The slots of block_best may be written again. */
    return w;
}

INLINE void results_clear(int pick, float *logprobs, int *ranks, int *top_ids,
                          float *top_logprobs) {
    if (threadIdx.x < TOP) {
        top_ids[pick * TOP + threadIdx.x] = -1;
        top_logprobs[pick * TOP + threadIdx.x] = 0.0f;
    }
    if (threadIdx.x == 0) {
        logprobs[pick] = 0.0f;
        ranks[pick] = 0;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, HELD ? 2 : 1)
    choose(const lt_cuda_choose_args a) {
    __shared__ shared m;
    tell_begin(&m);
    wait_for_others();
    const int pick = blockIdx.y, row = a.rows[pick];
    const double *const how = m.how;
    m.round = 0; /* All threads write the same value. */
    if (threadIdx.x < HOW_COUNT) {
        m.how[threadIdx.x] = a.hows[pick * HOW_COUNT + threadIdx.x];
    }
    group g = {PARTS == 1 ? m.words[0] : a.words + (i64)pick * 2 * PARTS * WORDS, a.met + pick,
               (int)blockIdx.x, 0};
    slice s = {a.logits + (row < 0 ? 0 : row) * a.ld, (int)blockIdx.x * CHUNKS * CHUNK, a.cols,
               a.softcap};
    if (row == SKIP) {
        return;
    }
    if (g.part == 0 && a.logprobs) {
        results_clear(pick, a.logprobs, a.ranks, a.top_ids, a.top_logprobs);
    }
    if (row < 0) {
        if (g.part == 0 && threadIdx.x == 0) {
            a.ids[pick] = -1;
        }
        return;
    }
    slice_send(&s);
    __syncthreads();
    const int n_top = how[N_TOP] < (double)TOP ? (int)how[N_TOP] : TOP;
    cut chosen = {0, how[FORCED] >= 0.0 ? (u32)how[FORCED] : NO_ID};
    if (how[SLOT] >= 0.0) {
        count_new(a.penalties + (i64)how[SLOT] * a.ld_penalties, &s, how, a.late);
    }
    if (threadIdx.x == 0) {
        m.also.penalties = how[SLOT] >= 0.0 ? a.penalties + (i64)how[SLOT] * a.ld_penalties : 0;
        m.also.mask = how[MASK] >= 0.0 ? a.masks + (i64)how[MASK] * a.ld_masks : 0;
        m.also.how = how;
    }
    __syncthreads();
    s.also = &m.also;
    /* In the first round. */
    s.adjusted = chosen.id == NO_ID && (how[SLOT] >= 0.0 || how[MASK] >= 0.0);
    for (bool more = true; more;) {
        u32 top; /* 1. */
        word told;
        told.best = block_best(slice_load(&s, &top), m.by_warp);
        const bool picks = chosen.id == NO_ID, reports = n_top >= 0 && !s.adjusted;
        told.bound_k = picks && how[TEMPERATURE] > 0.0 && how[TOP_K] <= THREADS
                           ? bound_of(top, (int)how[TOP_K])
                           : 0;
        told.bound_n = reports ? bound_of(top, n_top) : 0;
        told = tell_all(&m, &g, told, (int)m.round);
        s.best_key = (u32)(told.best >> 32);
        s.best = key_value(s.best_key);
        const bool none = s.best_key == NO_ID || s.best == NEGATIVE;
        const bool draws = picks && !none && how[TEMPERATURE] > 0.0 && s.best < -NEGATIVE;
        cut c = cut_to(s.best_key - told.bound_k, NO_ID);
        if (threadIdx.x % WARP == 0) {
            m.bound_n[threadIdx.x / WARP] = told.bound_n;
        }
        __syncwarp();
        chosen = picks ? cut_to(s.best_key, NO_ID - (u32)told.best)
                       : cut_to(key_at(&s, chosen.id), chosen.id);
        s.typical = false;
        s.rate = draws ? (float)fmin(fmax((double)LOG2_E / how[TEMPERATURE], 1e-30), 1e30) : 0.0f;
#pragma unroll 1
        /* A loop, so that each large function is inlined only once. */
        for (int stage = draws ? CUT_TOP_K : REPORT; stage <= REPORT && !none; stage++) {
            u64 target = stage == CUT_TOP_K ? (u64)how[TOP_K] : stage == REPORT ? (u64)n_top : 0;
            const bool typical = stage == MOMENT || stage == CUT_TYPICAL,
                       by_number = stage == CUT_TOP_K || stage == REPORT;
            /* The best id has the mass ONE, but typical may have cut it. */
            const u64 most = stage == DRAW_ONE && s.typical && how[MIN_P] > 0.0
                                 ? heaviest(&m, &g, &s, c)
                                 : ONE;
            const u64 least = stage == DRAW_ONE ? (u64)(fmin(how[MIN_P], 1.0) * (double)most) : 0;
            masses w;
            if (stage == REPORT ? !reports
                                : (typical && how[TYPICAL] >= 1.0) ||
                                      (stage == CUT_TOP_P && how[TOP_P] >= 1.0)) {
                continue;
            }
            if (!by_number) {
                w = weigh(&m, &g, &s, c, least, stage == MOMENT);
            }
            if (stage == MOMENT) {
                if (threadIdx.x == 0) { /* Tell who will read it. */
                    m.moment = w.all;
                }
                continue;
            }
            if (stage == DRAW_ONE) { /* 3. */
                chosen = draw(&m, &g, &s, &w, how[DRAW], c, least, n_top >= 0, a.ids + pick);
                continue;
            }
            if (stage == CUT_TOP_P) {
                target = nucleus_of(&s, how[TOP_P], w.all, &c);
            } else if (stage == CUT_TYPICAL) {
                target = share_of(how[TYPICAL], w.all);
                if (threadIdx.x == 0) {
                    m.also.mean = (float)((double)m.moment / (double)w.all);
                }
                __syncthreads();
            }
            double lse = 0.0;
            if (stage == REPORT) { /* 4. */
                c = cut_to(s.best_key - m.bound_n[threadIdx.x / WARP], NO_ID);
                s.typical = false;
                lse = report_chosen(&m, &g, &s, chosen.dist, a.logprobs + pick, a.ranks + pick);
            }
            if (!by_number || (target > 0 && target < (u64)a.cols)) { /* 2. */
                const cut found = cut_at(&m, &g, &s,
                                         by_number ? BY_NUMBER
                                         : typical ? BY_MASS_TYPICAL
                                                   : BY_MASS,
                                         target, c);
                if (typical) {
                    if (threadIdx.x == 0) {
                        m.also.typical = found;
                    }
                    __syncthreads();
                    s.typical = true;
                } else {
                    c = cut_least(c, found);
                }
            } else {
                c = cut_to(NO_ID, NO_ID);
            }
            if (stage == REPORT && n_top > 0) {
                report_top(&m, &g, &s, c, lse, a.top_ids + pick * TOP, a.top_logprobs + pick * TOP);
            }
        }
        if (!draws && g.part == 0 && threadIdx.x == 0) {
            a.ids[pick] = s.best_key == NO_ID ? -3 : none ? -2 : (int)chosen.id;
        }
        /* A second round is needed for what the model itself says. */
        more = !none && n_top >= 0 && s.adjusted;
        s.adjusted = false;
        m.round = 1;
        __syncthreads();
        if (more) {
            slice_send(&s);
        }
    }
    group_leave(&g);
}
