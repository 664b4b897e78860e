/* Meshes of two to four axes, drawn by a seed, train as one rank does: pp, dp, cp, tp and ep of
 * at most 8 ranks, with ZeRO, every schedule and way of attention, recomputation and micro-
 * batches; for dense, GQA and MoE models, the first two in BF16 and with 8-bit products too.
 *   LATEEN_MESHES       how many (12)
 *   LATEEN_MESH_SEED    which (1); a failure prints the mesh, which ranks_compare takes by itself
 *   LATEEN_MESH_STEPS   steps of each run (4)
 *   LATEEN_MESHES_LORA  how many more train adapters beside dense models, which some keep as their
 *                       files have them (0) */
#include "unit/parallel/adapters.h"

#include "base/rng.h"

static uint64_t number(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static int one_of(lt_rng *r, const int *from, int n) {
    return from[lt_rng_u64(r) % (uint64_t)n];
}

static const char *word_of(lt_rng *r, const char *const *from, int n) {
    return from[lt_rng_u64(r) % (uint64_t)n];
}

/* The first AdamW steps of a bias that begins at 0 have the signs of its gradients, and those of
 * the keys' biases are nothing but rounding. So in BF16 weights prove little, gradients and
 * losses much. */
static const ranks_bound drawn_bf16 = {3e-2, 5e-3, 3e-2, 2.0};
/* If ranks of tp sum in BF16, some values of the next product round to a different 8-bit
 * number. */
static const ranks_bound drawn_eight = {2e-1, 5e-3, 5e-2, 2.0};
/* In dozens of steps there will be a token whose next two experts are equal except for rounding:
 * with seed 1234 and pp=2,dp=2,ep=2 at step 19, while eight other seeds and each of its axes
 * alone stay within ranks_f32. */
static const ranks_bound drawn_experts = {1e-3, 1e-4, 1e-3, 2e-2};
#define FEW_STEPS 4

/* A mesh, and the options that are set with it. */
typedef struct {
    int pp, dp, cp, tp, ep, zero;
    const char *context, *schedule, *recompute, *dtype, *fp8;
    int micro;
    bool experts, tied;
} drawn;

static int n_axes(const drawn *d) {
    return (d->pp > 1) + (d->dp > 1) + (d->cp > 1) + (d->tp > 1) + (d->ep > 1);
}

static int n_ranks(const drawn *d) {
    return d->pp * d->dp * d->cp * d->tp;
}

/* 8-bit products with BF16. A scale depends on a micro-batch's tokens on a rank, so each rank has
 * one whole row on any mesh; all weights in 8 bits are kept whole. */
static void draw_eight(drawn *d, lt_rng *r) {
    static const char *const kinds[] = {"none", "tensorwise model.fp8_wgrad=false",
                                        "tensorwise model.fp8_wgrad=true"};
    d->fp8 = word_of(r, kinds, 3);
    if (strcmp(d->dtype, "bf16") != 0 || d->cp > 1 || strcmp(d->fp8, "none") == 0) {
        d->fp8 = "none";
        return;
    }
    d->micro = 1;
    d->zero = d->zero == 3 ? 2 : d->zero;
}

/* The schedule with one chunk in place of one with two chunks of layers per rank, of which there
 * are four. */
static const char *fewer_chunks(const char *schedule) {
    const bool v = strcmp(schedule, "zbv") == 0 || strcmp(schedule, "v-half") == 0;
    return v ? "zb-h1" : strcmp(schedule, "interleaved") == 0 ? "gpipe" : schedule;
}

/* What is refused is not drawn: ZeRO if no two ranks have the same experts, an all-to-all of
 * fewer heads than ranks, two chunks of layers if there is only one layer. */
static drawn draw(lt_rng *r) {
    static const int sizes[] = {1, 1, 2, 2, 4}, levels[] = {0, 1, 2, 3}, micros[] = {0, 1, 2};
    static const char *const contexts[] = {"gather", "ulysses", "ring"},
                             *const schedules[] = {"1f1b",  "gpipe", "interleaved",
                                                   "zb-h1", "zbv",   "v-half"},
                             *const recomputes[] = {"none", "selective", "full"},
                             *const dtypes[] = {"fp32", "fp32", "bf16"};
    drawn d;
    do {
        d = (drawn){one_of(r, sizes, 5),
                    one_of(r, sizes, 5),
                    one_of(r, sizes, 5),
                    one_of(r, sizes, 5),
                    one_of(r, sizes, 5),
                    one_of(r, levels, 4),
                    word_of(r, contexts, 3),
                    word_of(r, schedules, 6),
                    word_of(r, recomputes, 3),
                    word_of(r, dtypes, 3),
                    "none",
                    one_of(r, micros, 3),
                    lt_rng_u64(r) % 3 == 0,
                    lt_rng_u64(r) % 2 == 0};
        d.ep = d.experts ? d.ep : 1;
        /* Rounding to BF16 may change which expert is chosen. */
        d.dtype = d.experts ? "fp32" : d.dtype;
        d.context = 4 / d.tp % d.cp != 0 && strcmp(d.context, "ulysses") == 0 ? "ring" : d.context;
        d.schedule = d.pp == 4 ? fewer_chunks(d.schedule) : d.schedule;
        d.zero = d.ep == d.dp * d.cp ? 0 : d.zero;
        draw_eight(&d, r);
    } while (n_ranks(&d) < 2 || n_ranks(&d) > 8 || n_axes(&d) < 2 || d.dp * d.cp % d.ep != 0);
    return d;
}

/* The dense model has learned positions and a tied embedding. */
static bool takes_gqa(const drawn *d) {
    return d->cp > 1 || (d->pp > 1 && d->zero > 1);
}

static void compare(const drawn *d, const ranks_model *m, const char *more, uint64_t steps) {
    char mesh[64], options[384];
    (void)snprintf(mesh, sizeof mesh, "pp=%d,dp=%d,cp=%d,tp=%d,ep=%d", d->pp, d->dp, d->cp, d->tp,
                   d->ep);
    (void)snprintf(options, sizeof options,
                   "steps=%d batch.size=8 batch.micro=%d mesh.zero=%d mesh.context=%s "
                   "mesh.schedule=%s model.recompute=%s model.dtype=%s model.fp8=%s%s",
                   (int)steps, d->micro, d->zero, d->context, d->pp > 1 ? d->schedule : "1f1b",
                   d->recompute, d->dtype, d->fp8, more);
    const bool eight = strcmp(d->fp8, "none") != 0 && d->tp > 1;
    ranks_compare(m, options, mesh, n_ranks(d),
                  eight                                  ? &drawn_eight
                  : strcmp(d->dtype, "bf16") == 0        ? &drawn_bf16
                  : m == &ranks_moe && steps > FEW_STEPS ? &drawn_experts
                                                         : &ranks_f32);
}

static void meshes(void **state) {
    lt_rng r;
    (void)state;
    r = (lt_rng){.seed = number("LATEEN_MESH_SEED", 1)};
    for (uint64_t i = 0; i < number("LATEEN_MESHES", 12); i++) {
        const drawn d = draw(&r);
        const ranks_model *const m = d.experts       ? &ranks_moe
                                     : takes_gqa(&d) ? &ranks_gqa
                                                     : &ranks_dense;
        compare(&d, m,
                m != &ranks_dense && d.tied ? " model.layers=4 model.tied=true" : " model.layers=4",
                number("LATEEN_MESH_STEPS", 4));
    }
}

static void adapters(void **state) {
    static const lt_lora_options o = {
        .rank = 4, .alpha = 8, .targets = "all-linear,embed_tokens,lm_head"};
    static const ranks_model tied = {"tied", "model.width=32 model.heads=4 model.kv_heads=2 "
                                             "model.ffn=64 model.family=qwen3 model.tied=true"};
    lt_rng r = {.seed = number("LATEEN_MESH_SEED", 1) + 1};
    ranks_adapted models[3];
    (void)state;
    if (number("LATEEN_MESHES_LORA", 0) == 0) {
        skip();
    }
    ranks_adapt(&models[0], &ranks_dense, "model.layers=4",
                &(lt_lora_options){.rank = 4, .alpha = 8, .targets = LT_LORA_ALL});
    ranks_adapt(&models[1], &ranks_gqa, "", &o);
    ranks_adapt(&models[2], &tied, "model.layers=4", &o);
    for (uint64_t i = 0; i < number("LATEEN_MESHES_LORA", 0); i++) {
        drawn d = draw(&r);
        while (d.experts) {
            d = draw(&r);
        }
        d.fp8 = "none"; /* Not implemented for adapters. */
        const bool stored = strcmp(d.dtype, "fp32") == 0 && i % 2 == 1;
        compare(&d,
                &models[d.tied          ? 2
                        : takes_gqa(&d) ? 1
                                        : 0]
                     .model,
                stored ? " lora.base=as_stored" : "", number("LATEEN_MESH_STEPS", 4));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(meshes), cmocka_unit_test(adapters)};
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
