/* check.c: optest --check. For every op, case, element type, and both contiguous and strided:
 * every implementation that accepts the arguments is run on poisoned buffers. It must give the
 * results of ref/ in F64 within the op's tolerance, touch nothing else, and give the same bits
 * with 1, 2 and 3 threads (on a device: in two runs). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/thread.h"
#include "ops/optest.h"

enum { DETAIL_BYTES = 512 };

/* Compare all results; if false, why has the reason. *worst gets the largest share of the
 * tolerance. */
static bool compare_results(const lt_world *w, const lt_op_cases *o, const lt_values *want,
                            double *worst, char why[DETAIL_BYTES]) {
    for (int i = 0; i < w->setup.n_tensors; i++) {
        const lt_case_tensor *t = &w->setup.tensors[i];
        const lt_tolerance tol = lt_tolerance_of(o, t, w->setup.act);
        double *got, ratio;
        int64_t at;

        if (t->role == LT_ROLE_IN || t->role == LT_ROLE_SCRATCH) {
            continue;
        }
        got = malloc((size_t)t->count * sizeof *got);
        LT_ASSERT(got != NULL);
        lt_world_get(w, i, got);
        ratio = lt_compare(got, want->values[i], t, tol, &at);
        *worst = fmax(*worst, ratio);
        if (ratio > 1.0) {
            snprintf(why, DETAIL_BYTES,
                     "%s[%lld of %lld] is %.9g, should be %.9g: %.3g times the tolerance (rtol "
                     "%.3g, atol %.3g of the "
                     "largest; %s)",
                     t->name, (long long)at, (long long)t->count, got[at], want->values[i][at],
                     ratio, tol.rtol, tol.atol, o->why);
        }
        free(got);
        if (ratio > 1.0) {
            return false;
        }
    }
    return true;
}

/* True: the bits of all results after a run with n threads equal those in `first` (filled by the
 * first call). */
static bool same_bits(const lt_world *w, unsigned char **first) {
    for (int i = 0; i < w->setup.n_tensors; i++) {
        const lt_world_block *b = &w->blocks[i];
        if (b->image == NULL || w->setup.tensors[i].role == LT_ROLE_SCRATCH) {
            continue;
        }
        if (first[i] == NULL) {
            first[i] = malloc(b->bytes);
            LT_ASSERT(first[i] != NULL);
            memcpy(first[i], b->image, b->bytes);
        } else if (memcmp(first[i], b->image, b->bytes) != 0) {
            return false;
        }
    }
    return true;
}

/* Run one implementation on a filled world with 1, 2 and 3 threads, or twice if the host's
 * threads do not compute. */
static bool run_variant(lt_world *w, const lt_op_cases *o, const lt_op_impl *impl,
                        const lt_values *want, double *worst, char why[DETAIL_BYTES]) {
    const int n_runs = w->backend->host_memory ? 3 : 2, n_default = lt_thread_count();
    unsigned char *first[LT_SETUP_MAX_TENSORS] = {NULL};
    bool ok = true;

    for (int run = 1; ok && run <= n_runs; run++) {
        const char *damaged;
        lt_thread_set_count(run);
        if (lt_world_run(w, impl) != LT_OK) {
            snprintf(why, DETAIL_BYTES, "%s", lt_error_message());
            ok = false;
            break;
        }
        ok = run > 1 || compare_results(w, o, want, worst, why);
        if (ok && !same_bits(w, first)) {
            snprintf(why, DETAIL_BYTES, "run %d, with so many threads, gives other bits than run 1",
                     run);
            ok = false;
        }
        damaged = ok ? lt_world_damage(w) : NULL;
        if (damaged != NULL) {
            snprintf(why, DETAIL_BYTES, "wrote outside its results: the block of %s changed",
                     damaged);
            ok = false;
        }
    }
    lt_thread_set_count(n_default);
    for (int i = 0; i < LT_SETUP_MAX_TENSORS; i++) {
        free(first[i]);
    }
    return ok;
}

typedef struct {
    int n_variants;
    bool has_type; /* It has run one of the types. */
    bool ok;
    double worst;
    char why[DETAIL_BYTES];
} verdict;

/* Check all implementations, or those that have run no other type (`rest`), with contiguous or
 * strided tensors; verdicts are indexed by place in the list. */
static lt_err check_variant(optest *t, const lt_op_cases *o, const lt_case *c, lt_dtype act,
                            bool strided, bool rest, const lt_values *v, const lt_values *want,
                            verdict *verdicts) {
    const lt_op_list list = lt_registry_list(t->device->backend, o->op);
    lt_world w = {0};
    lt_err err = LT_OK;

    LT_TRY_DONE(lt_world_open(&w, t->device, o, c, act, false, strided));
    lt_world_fill(&w, v);
    for (int i = 0; i < list.n_impls; i++) {
        const lt_op_impl *impl = &list.impls[i];
        char why[DETAIL_BYTES] = "";
        if ((t->impl[0] != '\0' && strcmp(t->impl, impl->name) != 0) ||
            (rest && verdicts[i].has_type) ||
            (impl->refuse != NULL && impl->refuse(w.setup.args, t->device) != NULL)) {
            continue;
        }
        verdicts[i].n_variants++;
        if (!run_variant(&w, o, impl, want, &verdicts[i].worst, why) && verdicts[i].ok) {
            verdicts[i].ok = false;
            snprintf(verdicts[i].why, DETAIL_BYTES, "%s%s: %.400s", lt_dtype_name(act),
                     strided ? ", strided" : "", why);
        }
    }
done:
    lt_world_close(&w);
    return err;
}

/* Check one element type, with tensors of these strides; `rest`: only implementations that have
 * run nothing before. Inputs and reference do not depend on strides, so they are computed once
 * for both. */
static void check_dtype(optest *t, const lt_op_cases *o, const lt_case *c, lt_dtype act,
                        int strides, bool rest, verdict *verdicts) {
    static lt_setup s; /* Too large for the stack. */
    lt_values v = {0}, want = {0};
    lt_err err = LT_OK;

    lt_setup_build(&s, o, c, act, false);
    LT_TRY_DONE(lt_values_make(&v, &s, o, lt_values_fill, NULL));
    LT_TRY_DONE(lt_values_want(&want, o, c, &v));
    for (int i = 0; o->exact && i < s.n_tensors; i++) {
        if (want.values[i] != NULL) {
            lt_round_to(s.tensors[i].dtype, want.values[i], s.tensors[i].count);
        }
    }
    for (int strided = 0; strided < 2; strided++) {
        if (strides >> strided & 1) {
            LT_TRY_DONE(check_variant(t, o, c, act, strided, rest, &v, &want, verdicts));
        }
    }
    for (int i = 0; i < LT_REGISTRY_MAX_IMPLS; i++) {
        verdicts[i].has_type = verdicts[i].n_variants > 0;
    }
done:
    if (err != LT_OK) {
        verdicts[0].ok = false;
        verdicts[0].n_variants++;
        snprintf(verdicts[0].why, DETAIL_BYTES, "%s", lt_error_message());
    }
    lt_values_free(&v);
    lt_values_free(&want);
}

/* A bit for each type, and one each for contiguous and strided tensors. With --core the cases of
 * an op take F32 and the other types in turn, and of each pair of them one takes contiguous and
 * one strided tensors. On an emulated GPU each kernel is compiled for these, which takes much
 * longer than the case. */
enum { ALL_TYPES = -1, NOT_F32 = ~(1 << LT_F32), CONTIGUOUS = 1, STRIDED = 2 };
enum { FEW_CASES = 8 }; /* An op with fewer cases takes both strides in each. */

/* Check a case in those of its types and strides that `of` has, and each implementation that
 * accepts it in none of these with all others. */
static void check_case(optest *t, const lt_op_cases *o, const lt_case *c, int of, int strides) {
    enum { BOTH = CONTIGUOUS | STRIDED };
    const lt_op_list list = lt_registry_list(t->device->backend, o->op);
    const int dtypes = c->dtypes != 0 ? c->dtypes : 1 << LT_F32 | 1 << LT_BF16;
    verdict verdicts[LT_REGISTRY_MAX_IMPLS] = {0};

    for (int i = 0; i < list.n_impls; i++) {
        verdicts[i].ok = true;
    }
    for (int dtype = 0; dtype < 2 * LT_DTYPE_COUNT; dtype++) {
        const bool rest = dtype >= LT_DTYPE_COUNT;
        const lt_dtype act = (lt_dtype)(dtype % LT_DTYPE_COUNT);
        const int now = of >> act & 1 ? (rest ? BOTH & ~strides : strides) : rest ? BOTH : 0;
        if ((dtypes >> act & 1) && now != 0) {
            check_dtype(t, o, c, act, now, rest, verdicts);
        }
    }
    for (int i = 0; i < list.n_impls; i++) {
        char name[160], detail[DETAIL_BYTES + 32];
        if (verdicts[i].n_variants == 0) {
            continue;
        }
        snprintf(name, sizeof name, "%s/%s: %s", lt_op_name(o->op), list.impls[i].name, c->name);
        snprintf(detail, sizeof detail, "%d variants, %.0f %% of the tolerance",
                 verdicts[i].n_variants, 100.0 * verdicts[i].worst);
        optest_report(t, verdicts[i].ok, name, verdicts[i].ok ? detail : verdicts[i].why);
    }
}

/* ---- Random sizes, to find what no case covers. They replace the sizes of cases with aligned
 * rows, which the kernels with rings, copies and tiles take; strides, masks and everything else
 * stay as in the case. ---- */

static int64_t up_to(lt_rng *r, int64_t n) {
    return 1 + (int64_t)lt_rng_below(r, (uint64_t)n);
}
/* A multiple of 8 in three of four cases. */
static int64_t mostly_eights(lt_rng *r, int64_t n) {
    const int64_t x = up_to(r, n);
    return lt_rng_below(r, 4) == 0 ? x : (x + 7) / 8 * 8;
}
static void product_vary(lt_case *c, lt_rng *r) {
    c->M = mostly_eights(r, 300);
    c->N = mostly_eights(r, 300);
    c->K = mostly_eights(r, lt_rng_below(r, 6) == 0 ? 1200 : 300);
}
static void attention_vary(lt_case *c, lt_rng *r) {
    static const int64_t widths[] = {64, 72, 96, 128, 128, 128, 192, 256};
    /* Many keys, so that the backward pass runs once. */
    const bool many = lt_rng_below(r, 6) == 0;
    c->B = up_to(r, 3);
    c->G = up_to(r, 3);
    c->H = many ? c->G : c->G * up_to(r, 3);
    c->D = widths[lt_rng_below(r, sizeof widths / sizeof *widths)];
    c->T = up_to(r, many ? 150 : 250);
    c->S = c->doc_start ? 0 : many ? 900 + up_to(r, 300) : up_to(r, 350);
    if (c->causal && !many && lt_rng_below(r, 3) == 0) {
        c->window = up_to(r, 150);
    }
}
static const struct {
    lt_op op;
    void (*vary)(lt_case *c, lt_rng *r);
} varied[] = {{LT_OP_matmul, product_vary},
              {LT_OP_matmul_act, product_vary},
              {LT_OP_matmul_scaled, product_vary},
              {LT_OP_attention_fwd, attention_vary},
              {LT_OP_attention_bwd, attention_vary}};

/* Check all aligned cases of an op, each with sizes of its own. */
static void check_varied(optest *t, const lt_op_cases *o, void (*vary)(lt_case *c, lt_rng *r),
                         lt_rng *r) {
    for (int i = 0; i < o->n_cases; i++) {
        lt_case c = o->cases[i];
        char name[160];
        if (!optest_wants(t, o, &c, LT_CASE_CHECK) || !c.aligned || c.b_type != 0) {
            continue;
        }
        vary(&c, r);
        if (c.T > 0) {
            snprintf(name, sizeof name, "%s: B%d T%d S%d H%d G%d D%d window %d", c.name, (int)c.B,
                     (int)c.T, (int)c.S, (int)c.H, (int)c.G, (int)c.D, (int)c.window);
        } else {
            snprintf(name, sizeof name, "%s: M%d N%d K%d", c.name, (int)c.M, (int)c.N, (int)c.K);
        }
        c.name = name;
        check_case(t, o, &c, ALL_TYPES, CONTIGUOUS | STRIDED);
    }
}

static bool is_light(const optest *t, const lt_op_cases *o, const lt_case *c) {
    static lt_setup s;
    if (t->mflop <= 0) {
        return true;
    }
    lt_setup_build(&s, o, c, LT_F32, false);
    lt_setup_place_dummy(&s);
    return lt_op_cost(o->op, s.args).flops <= 1e6 * t->mflop;
}

void optest_check(optest *t) {
    lt_rng r = {.seed = t->seed};
    for (int round = 0; round < t->rounds; round++) {
        for (size_t i = 0; i < sizeof varied / sizeof *varied; i++) {
            check_varied(t, lt_all_op_cases[varied[i].op], varied[i].vary, &r);
        }
    }
    for (int op = 0; op < LT_OP_COUNT && t->rounds == 0; op++) {
        const lt_op_cases *o = lt_all_op_cases[op];
        for (int i = 0; i < o->n_cases; i++) {
            if (optest_wants(t, o, &o->cases[i], LT_CASE_CHECK) && is_light(t, o, &o->cases[i])) {
                const int in_turn = i % 2 == 0 ? NOT_F32 : ~NOT_F32;
                const bool one = t->core && o->n_cases >= FEW_CASES;
                const int strides = i / 2 % 2 == 0 ? CONTIGUOUS : STRIDED;
                check_case(t, o, &o->cases[i], t->core ? in_turn : ALL_TYPES,
                           one ? strides : CONTIGUOUS | STRIDED);
            }
        }
    }
}
