/* choose.cuh — a block's slice of a row of logits: the order of its elements, their weights, and
 * their adjustment by penalties and a mask. It is read from global memory, or kept in shared memory
 * (HELD).
 *
 * A row with penalties or a mask is adjusted: its adjusted logits count until the kernel says
 * otherwise. In a held slice, the few pieces with penalties are adjusted after all pieces have
 * arrived, so that their divisions do not need registers while the rest is loaded. */
#ifndef LT_CUDA_CHOOSE_CUH
#define LT_CUDA_CHOOSE_CUH

#include "common/hopper.cuh"
#include "common/late.cuh"
#include "common/reduce.cuh"
#include "kernels/cuda/ops/choose_args.h"

#define THREADS 512
#define WARPS   (THREADS / WARP)
#define PIECE   4
#define CHUNK   (THREADS * PIECE)
static_assert(CHUNK * CHUNKS * sizeof(float) == LT_CHOOSE_HELD_BYTES(CHUNKS), "held");
#define ONE      0x1p44f /* The weight of the likeliest id. */
#define NEGATIVE __uint_as_float(0xff800000u)
#define LOG2_E   1.4426950409f
#define NO_ID    0xffffffffu
enum {
    TEMPERATURE,
    TOP_K,
    TOP_P,
    MIN_P,
    DRAW,
    N_TOP,
    TYPICAL,
    REPETITION,
    FREQUENCY,
    PRESENCE,
    BANS,
    SLOT,
    NEW,
    MASK,
    FORCED,
    HOW_COUNT
};
/* ops.h */
enum {
    PENALTY_PROMPT = 1 << 31,
    PENALTY_END = 1 << 30,
    PENALTY_BIAS_SHIFT = 20,
    PENALTY_BIASES = 1 << 10,
    PENALTY_COUNT = (1 << 20) - 1
};
enum { NO_NEW = 1 << 31, SKIP = -2 };
/* The slice is copied to shared memory without registers. */
#define SENT (HELD && W == 4 && !SOFTCAP)
enum { LOADS = SENT ? 2 : 4 }; /* pieces per turn */

/* Elements up to here in the order (distance from the best, id). */
typedef struct {
    u32 dist, id;
} cut;

/* State of a pick, in shared memory, because registers are scarce. */
typedef struct {
    const int *penalties; /* NULL: none. */
    const u32 *mask;      /* NULL: all ids may be chosen. */
    const double *how;
    float mean;  /* Mean of -log2 w, weighted by w, */
    cut typical; /* and the elements that are near enough to it. */
} aside;

typedef struct {
    const float *row;
    int first, cols;           /* The slice's first id; V. */
    float softcap, rate, best; /* rate: log2(e) / temperature; best: the largest. */
    u32 best_key;
    /* The adjusted logits are read instead of the row; ids that are not typical are excluded. */
    bool adjusted, typical;
    const aside *also;
} slice;

/* Rises with x; NaN is above all. */
INLINE u32 order_key(float x) {
    const u32 bits = __float_as_uint(x);
    return x != x ? NO_ID : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
INLINE float key_value(u32 key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}
INLINE u64 mass_of(const slice *s, float x, float rate) {
    return __float2ull_rn(exp2_fast((x - s->best) * rate) * ONE);
}
/* The mass times the distance from the best, in bits. */
INLINE u64 moment_of(const slice *s, float x) {
    const float bits = (s->best - x) * s->rate;
    return mass_of(s, x, s->rate) > 0 ? __float2ull_rn(exp2_fast(-bits) * bits * ONE) : 0;
}
INLINE u32 mean_dist(const slice *s, float x) {
    return __float_as_uint(fabsf(__fmaf_rn(s->best - x, s->rate, -s->also->mean)));
}
INLINE cut cut_to(u32 dist, u32 id) {
    const cut c = {dist, id};
    return c;
}
INLINE bool keeps(cut c, u32 dist, u32 id) {
    return dist < c.dist || (dist == c.dist && id <= c.id);
}
/* Whether an element is within c, and typical if that is required. */
INLINE bool stays(const slice *s, cut c, float x, u32 dist, u32 id) {
    return keeps(c, dist, id) && (!s->typical || keeps(s->also->typical, mean_dist(s, x), id));
}
/* The weight of an element; 0 beyond c and below least. */
INLINE u64 mass_kept(const slice *s, float x, u32 id, cut c, u64 least) {
    const u64 mass = stays(s, c, x, s->best_key - order_key(x), id) ? mass_of(s, x, s->rate) : 0;
    return mass >= least ? mass : 0;
}
INLINE cut cut_least(cut a, cut b) {
    return keeps(b, a.dist, a.id) ? a : b;
}

/* Adjust a logit by its penalty word and its bit of the mask, as ops.h says. NaN stays NaN. */
INLINE float wanted(const slice *s, float x, int penalty, bool allowed) {
    const int bias = penalty >> PENALTY_BIAS_SHIFT & (PENALTY_BIASES - 1);
    if (bias > 0) {
        x = __fadd_rn(x, __int_as_float(s->also->penalties[s->cols + bias]));
    }
    if ((!allowed || ((penalty & PENALTY_END) && s->also->how[BANS] != 0.0)) && x == x) {
        x = NEGATIVE;
    }
    if (penalty & (PENALTY_PROMPT | PENALTY_COUNT)) {
        const double times = (double)(penalty & PENALTY_COUNT),
                     repetition = s->also->how[REPETITION];
        double y = (double)x;
        y = y > 0.0 ? __ddiv_rn(y, repetition) : __dmul_rn(y, repetition);
        y = __dsub_rn(y, __dmul_rn(s->also->how[FREQUENCY], times));
        y = __dsub_rn(y, times > 0.0 ? s->also->how[PRESENCE] : 0.0);
        x = __double2float_rn(y);
    }
    return x;
}
INLINE int4 piece_penalties(const slice *s, int id) {
    int4 v = make_int4(0, 0, 0, 0);
    if (s->also->penalties && id < s->cols) {
#if W == 4
        v = *(const int4 *)(s->also->penalties + id);
#else
        const int *penalties = s->also->penalties + id;
        const int left = s->cols - id;
        v = make_int4(penalties[0], left > 1 ? penalties[1] : 0, left > 2 ? penalties[2] : 0,
                      left > 3 ? penalties[3] : 0);
#endif
    }
    return v;
}
/* Bit i: x[i] may be chosen. */
INLINE u32 piece_allowed(const slice *s, int id) {
    return s->also->mask && id < s->cols ? s->also->mask[id / WARP] >> id % WARP & 15 : 15;
}
INLINE void piece_want(float *x, const slice *s, int id) {
    const int4 penalty = piece_penalties(s, id);
    const u32 allowed = piece_allowed(s, id);
    x[0] = wanted(s, x[0], penalty.x, allowed & 1);
    x[1] = wanted(s, x[1], penalty.y, allowed & 2);
    x[2] = wanted(s, x[2], penalty.z, allowed & 4);
    x[3] = wanted(s, x[3], penalty.w, allowed & 8);
}
/* Whether neither penalties nor a mask change the piece. */
INLINE bool piece_is_plain(const slice *s, int id) {
    const int4 penalty = piece_penalties(s, id);
    return (penalty.x | penalty.y | penalty.z | penalty.w) == 0 && piece_allowed(s, id) == 15;
}

/* Four logits from memory; -inf beyond the row. */
INLINE void piece_load_row(float *x, const slice *s, int id) {
#if W == 4
    float4 v = make_float4(NEGATIVE, NEGATIVE, NEGATIVE, NEGATIVE);
    if (id < s->cols) {
        v = *(const float4 *)(s->row + id);
    }
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
#else
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        x[i] = id + i < s->cols ? s->row[id + i] : NEGATIVE;
    }
#endif
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        x[i] = SOFTCAP && id + i < s->cols ? s->softcap * tanhf(x[i] / s->softcap) : x[i];
    }
}
/* The same, or the adjusted logits. + 0 turns -0, which would differ, into 0. */
INLINE void piece_read(float *x, const slice *s, int id) {
    piece_load_row(x, s, id);
    if (!HELD && s->adjusted) { /* Otherwise slice_load has adjusted it. */
        piece_want(x, s, id);
    }
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        x[i] += 0.0f;
    }
}
/* A thread's logits in a chunk of the slice; returns the first's id. */
INLINE int piece_at(float *x, const slice *s, int chunk, int thread) {
    const int at = chunk * CHUNK + thread * PIECE;
    if (HELD) {
        extern __shared__ float held[]; /* (CHUNKS, 2048) */
        const float4 v = *(const float4 *)&held[at];
        x[0] = v.x + 0.0f, x[1] = v.y + 0.0f, x[2] = v.z + 0.0f, x[3] = v.w + 0.0f;
    } else {
        piece_read(x, s, s->first + at);
    }
    return s->first + at;
}

/* Update the largest key so far, and its id. */
INLINE void best_of(u32 *most, u32 *where, const float *x, int first) {
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        const u32 key = order_key(x[i]);
        *where = key > *most ? first + i : *where;
        *most = key > *most ? key : *most;
    }
}

/* Start to copy the whole slice. */
INLINE void slice_send(const slice *s) {
#if SENT
    extern __shared__ float held[];
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const int at = chunk * CHUNK + (int)threadIdx.x * PIECE;
        if (s->first + at < s->cols) {
            cp_async_16(smem_addr(&held[at]), s->row + s->first + at);
        } else {
            *(float4 *)&held[at] = make_float4(NEGATIVE, NEGATIVE, NEGATIVE, NEGATIVE);
        }
        if (chunk == CHUNKS / 2 - 1) {
            cp_async_commit();
        }
    }
    cp_async_commit();
#else
    (void)s;
#endif
}

/* Wait for the slice that was sent. Returns the key and lowest id of the largest element as one
 * number, larger is better; *top: the thread's largest key. */
INLINE u64 slice_load(const slice *s, u32 *top) {
    u32 most = 0, where = 0, more = 0;
    float x[PIECE];
#if SENT
    cp_async_wait(1);
#endif
#pragma unroll LOADS
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        const int at = chunk * CHUNK + threadIdx.x * PIECE;
#if SENT
        if (chunk == CHUNKS / 2) {
            cp_async_wait(0);
        }
        (void)piece_at(x, s, chunk, threadIdx.x); /* A thread's own pieces. */
#else
        piece_read(x, s, s->first + at);
#endif
        if (HELD) {
#if !SENT
            extern __shared__ float held[];
            *(float4 *)&held[at] = make_float4(x[0], x[1], x[2], x[3]);
#endif
            more |= s->adjusted && !piece_is_plain(s, s->first + at) ? 1u << chunk : 0;
        }
        if (!HELD || !s->adjusted) {
            best_of(&most, &where, x, s->first + at);
        }
    }
    /* Adjust the few pieces with penalties, then all of them for the mask. */
    if (HELD && s->adjusted) {
        extern __shared__ float held[];
#pragma unroll 1
        for (; more; more &= more - 1) {
            const int at = (__ffs(more) - 1) * CHUNK + threadIdx.x * PIECE;
            const u32 allowed = piece_allowed(s, s->first + at);
#pragma unroll 1
            for (int i = 0; i < PIECE && s->first + at + i < s->cols; i++) {
                const int penalty = s->also->penalties ? s->also->penalties[s->first + at + i] : 0;
                held[at + i] = wanted(s, held[at + i], penalty, allowed >> i & 1) + 0.0f;
            }
        }
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const int first = piece_at(x, s, chunk, threadIdx.x);
            best_of(&most, &where, x, first);
        }
    }
    *top = most;
    return (u64)most << 32 | (NO_ID - where);
}

/* The key of an id's logit. */
INLINE u32 key_at(const slice *s, u32 id) {
    float x[PIECE];
    u32 key = 0;
    piece_load_row(x, s, (int)(id & ~(u32)(PIECE - 1)));
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        key = i == (int)(id & (PIECE - 1)) ? order_key(x[i] + 0.0f) : key;
    }
    return key;
}

/* Count the newest id as output, in the block that will read its penalty word. */
INLINE void count_new(int *penalties, const slice *s, const double *how, const int *late) {
    const int named = (int)how[NEW];
    if (threadIdx.x == 0 && named != NO_NEW) {
        const int id = late_id(named, late);
        if (id >= s->first && id < s->first + CHUNKS * CHUNK) {
            penalties[id]++;
        }
    }
    __syncthreads();
}

#endif
