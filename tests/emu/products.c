/* products.c: Hopper's warpgroup products, D (64 x N) += A (64 x K) B (K x N), K of 32 bytes. See
 * inside.h.
 *
 * The four warps of a warpgroup request the same products in the same order; a product begins
 * when all four have. It is computed then or, as often, only when a warp waits for its group:
 * then it uses what its operands in shared memory have become, and accumulators that no thread
 * may have touched. It is complete for all four warps at once, so that the wait of one warp
 * counts for the others. Pipelines in which one thread of a consumer releases a place rely on
 * this.
 *
 * Layouts: PTX ISA, "asynchronous warpgroup level matrix"; common/wgmma.cuh describes them. Only
 * tiles with 128-byte swizzle are supported. */
#include <stdlib.h>
#include <string.h>

#include "inside.h"

#define ROWS  16
#define MAX_K 32
#define MAX_N 256
#define FULL  0xffffffffu

typedef struct emu_product {
    emu_wgmma what; /* d, a: of the first lane; those of all lanes are below. */
    float *d[4][EMU_WARP];
    uint32_t a[4][EMU_WARP][4];
    int group;
    unsigned asked; /* One bit per warp. */
} product;

static float element(emu_type16 type, const unsigned char *p) {
    uint16_t h;
    if (type == EMU_E4M3 || type == EMU_E5M2) {
        return emu_f8_to_f32(*p, type == EMU_E5M2);
    }
    memcpy(&h, p, sizeof h);
    if (type == EMU_F16) {
        return emu_f16_to_f32(h);
    }
    const uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Read rows [first, first + n) of M or N of a matrix in shared memory, all of K, to
 * out[row][k]. */
static void matrix_read(uint64_t place, bool transposed, emu_type16 type, int first, int n,
                        float out[][MAX_K]) {
    const int bytes = type == EMU_E4M3 || type == EMU_E5M2 ? 1 : 2, wide = 16 / bytes,
              depth = 32 / bytes;
    const uint32_t start = (uint32_t)(place & 0x3fff) << 4,
                   leading = (uint32_t)(place >> 16 & 0x3fff) << 4,
                   stride = (uint32_t)(place >> 32 & 0x3fff) << 4;
    if (place >> 62 != 1 || (place >> 49 & 7) != 0) {
        emu_trap("matrix descriptor %#llx: only 128-byte swizzle is emulated",
                 (unsigned long long)place);
    }
    for (int outer = transposed ? 0 : first, end = transposed ? depth : first + n; outer < end;
         outer++) {
        for (int inner = transposed ? first : 0; inner < (transposed ? first + n : depth);
             inner += wide) {
            const uint32_t column = (uint32_t)(inner * bytes);
            const uint32_t at = start + (uint32_t)(outer / 8) * stride +
                                (uint32_t)(outer % 8) * 128 + column / 128 * leading + column % 128;
            const unsigned char *const p = emu_shared_of((int)emu_self->cluster_rank,
                                                         at ^ (at >> 7 & 7) << 4, 16);
            for (int i = 0; i < wide; i++) {
                float *const to = transposed ? &out[inner + i - first][outer]
                                             : &out[outer - first][inner + i];
                *to = element(type, p + i * bytes);
            }
        }
    }
}

static void held_read(const product *p, int warp, float out[][MAX_K]) {
    /* Elements per word. */
    const int each = p->what.a_type == EMU_E4M3 || p->what.a_type == EMU_E5M2 ? 4 : 2;
    for (int lane = 0; lane < EMU_WARP; lane++) {
        for (int i = 0; i < 4; i++) {
            for (int e = 0; e < each; e++) {
                out[lane / 4 + i % 2 * 8][lane % 4 * each + i / 2 * 4 * each + e] = element(
                    p->what.a_type, (const unsigned char *)&p->a[warp][lane][i] + e * 4 / each);
            }
        }
    }
}

static void rows_make(const product *p, int warp, const float by_k[MAX_K][MAX_N], int depth) {
    float a[ROWS][MAX_K], sum[MAX_N];
    const int n = p->what.n;
    if (p->what.a_held) {
        held_read(p, warp, a);
    } else {
        matrix_read(p->what.a_place, p->what.a_transposed, p->what.a_type, warp * ROWS, ROWS, a);
    }
    for (int row = 0; row < ROWS; row++) {
        memset(sum, 0, sizeof sum);
        for (int k = 0; k < depth; k++) {
            const float x = a[row][k];
            for (int j = 0; j < n; j++) {
                sum[j] += x * by_k[k][j];
            }
        }
        for (int j = 0; j < n; j++) {
            float *const d = &p->d[warp][row % 8 * 4 + j % 8 / 2][j / 8 * 4 + row / 8 * 2 + j % 2];
            *d = p->what.adds ? *d + sum[j] : sum[j];
        }
    }
}

static void make(const product *p) {
    float b[MAX_N][MAX_K], by_k[MAX_K][MAX_N];
    const int n = p->what.n,
              depth = p->what.b_type == EMU_E4M3 || p->what.b_type == EMU_E5M2 ? 32 : 16;
    matrix_read(p->what.b_place, p->what.b_transposed, p->what.b_type, 0, n, b);
    for (int k = 0; k < depth; k++) {
        for (int j = 0; j < n; j++) {
            by_k[k][j] = b[j][k];
        }
    }
    for (int warp = 0; warp < 4; warp++) {
        rows_make(p, warp, by_k, depth);
    }
}

/* Complete the products of groups before `group`, which are in order, up to the first that not
 * all warps have requested. */
static void make_until(emu_products *all, int group) {
    int done = 0;
    for (; done < all->n && all->list[done].group < group && all->list[done].asked == 15; done++) {
        make(&all->list[done]);
    }
    all->n -= done;
    all->first += done;
    memmove(all->list, all->list + done, (size_t)all->n * sizeof *all->list);
}

static void whole(unsigned mask, const char *what) {
    if (mask != FULL) {
        emu_trap("%s with lanes %08x only", what, mask);
    }
}

/* The next product of the warp: the first warp to arrive creates its entry. */
static product *next_of(emu_products *all, int warp, const emu_wgmma *one) {
    const int at = all->asked[warp]++ - all->first;
    if (at == all->n) {
        if (all->n == all->most) {
            all->most = 2 * all->most + 16;
            all->list = realloc(all->list, (size_t)all->most * sizeof *all->list);
            if (all->list == NULL) {
                emu_trap("no memory for %d products", all->most);
            }
        }
        product *const p = &all->list[all->n++];
        p->what = *one;
        p->group = all->group[warp];
        p->asked = 0;
    }
    return &all->list[at];
}

static void issue_all(void *const lanes[EMU_WARP], unsigned mask) {
    const int warp = (int)(emu_self->warp % 4);
    emu_products *const all = emu_products_here();
    whole(mask, "wgmma");
    product *const p = next_of(all, warp, lanes[0]);
    const emu_wgmma *const one = &p->what;
    if (p->group != all->group[warp]) {
        emu_trap("wgmma: of group %d for this warp, of group %d for another", all->group[warp],
                 p->group);
    }
    for (int lane = 0; lane < EMU_WARP; lane++) {
        const emu_wgmma *const w = lanes[lane];
        if (w->n != one->n || w->adds != one->adds || w->a_place != one->a_place ||
            w->b_place != one->b_place) {
            emu_trap("wgmma: the warpgroup's threads have different operands");
        }
        p->d[warp][lane] = w->d;
        memcpy(p->a[warp][lane], w->a, sizeof w->a);
    }
    p->asked |= 1u << warp;
    all->last[warp] = all->group[warp] + 1;
    if (p->asked == 15) {
        emu_wake(all);
        if (emu_random(2) == 0) {
            make_until(all, p->group + 1);
        }
    }
}

void emu_wgmma_issue(emu_wgmma *mine) {
    if (mine->n % 8 != 0 || mine->n < 8 || mine->n > MAX_N) {
        emu_trap("wgmma of %d columns", mine->n);
    }
    emu_warp(FULL, issue_all, mine, "wgmma");
}

static void commit_all(void *const lanes[EMU_WARP], unsigned mask) {
    (void)lanes;
    whole(mask, "wgmma.commit_group");
    emu_products_here()->group[emu_self->warp % 4]++;
}
void emu_wgmma_commit(void) {
    emu_warp(FULL, commit_all, NULL, "wgmma.commit_group");
}

void emu_wgmma_wait(int groups) {
    emu_products *const all = emu_products_here();
    const int until = all->group[emu_self->warp % 4] - groups;
    emu_warp(FULL, NULL, NULL, "wgmma.wait_group");
    all->waited[emu_self->warp % 4] = until;
    for (make_until(all, until); all->n > 0 && all->list[0].group < until; make_until(all, until)) {
        emu_sleep(all, "a product that other warps of the group have not asked for");
    }
}

void emu_products_begin(emu_products *all) {
    *all = (emu_products){.list = all->list, .most = all->most};
}
void emu_products_end(const emu_products *all) {
    const int warp = (int)(emu_self->warp % 4);
    if (all->last[warp] > all->waited[warp]) {
        emu_trap("a warp ends with products that it never waited for");
    }
}
void emu_products_free(emu_products *all) {
    free(all->list);
}
