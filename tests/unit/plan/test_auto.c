/* The layouts of `layout: auto`: what each axis costs, worked out by hand; which meshes are
 * considered, and in which order. tests/e2e/plan_layouts.py compares predictions with measured
 * meshes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "plan/auto.h"

/* Four layers of width 64, MLP 128, 4 heads of 16, with 2 key heads; a vocabulary of 300. */
#define DENSE                                                                                      \
    "model.family=llama model.layers=4 model.width=64 model.heads=4 model.kv_heads=2 "             \
    "model.ffn=128 model.vocab=300 data.train=none data.seq=32 batch.size=8 device=cpu "           \
    "model.dtype=fp32 "
#define EMBED   (300.0 * 64)
#define A_LAYER (64.0 * (64 + 64 + 64) + 3 * 64 * 128 + 2 * 64)
#define PARAMS  (4 * A_LAYER + 64 + 2 * EMBED)
#define FLOPS   (6 * (PARAMS - EMBED) + 12 * 4 * 64 * 32) /* Per token, forward and backward. */
#define CORE    30e9                                      /* FLOP per second of a CPU rank. */
#define ROW_S   (32 * FLOPS / CORE)
#define UPDATE  (10 * PARAMS / CORE)
/* Shared memory: 3 GB/s, of which 78 % are reached, and 20 us. In a ring of n ranks each rank
 * sends (n - 1) / n of the bytes, in n - 1 steps. */
#define LINK       (0.78 * 3e9)
#define RING(b, n) ((n - 1.0) / (n) * (b) / LINK + ((n)-1) * 20e-6)
/* As a share of the usual link: more is sent than the passes can hide. */
#define SLOW         0.004
#define SLOW_RING(b) ((b) / 2 / (SLOW * LINK) + 20e-6)
/* Work of a layer as in stages.c, and of the head; the last of two stages has both for two
 * layers. */
#define LAYER_WORK  (64.0 * (128 + 64) + 16.0 * 4 * (16 + 16) + 64.0 * (2 * 128 + 128))
#define HEAD_WORK   (64.0 * 300)
#define SHARE_OF(n) ((2 * LAYER_WORK + HEAD_WORK) / ((n)*LAYER_WORK + HEAD_WORK))
#define STREAM      (32.0 * 64 * 4) /* Bytes of the residual stream of a row. */
/* Four transfers each way, each of which begins 80 us late. */
#define TP_LAYER(t) (4 * (2 * 80e-6 + 2 * (t)))
/* Eight layers over four ranks of pp, one row at a time: eight rows. */
#define P8       (8 * A_LAYER + 64 + 2 * EMBED)
#define ROW8_S   (32 * (6 * (P8 - EMBED) + 12 * 8 * 64 * 32) / CORE * SHARE_OF(8))
#define COMPUTE8 (8 * ROW8_S + 10 * P8 / CORE * SHARE_OF(8))
#define SENDS    (2 * 8 * (STREAM / LINK + 20e-6))

typedef struct {
    const char *options;
    lt_mesh_shape mesh; /* pp, dp, cp, tp, ep. */
    double link;        /* As a share of the usual link; 0: 1. */
    double compute_s, dp_s, tp_s, cp_s, ep_s, pp_s, bubble_s;
    int64_t micro;
} priced;

static void set_options(lt_recipe *r, const char *options) {
    char *copy = strdup(options), *next = NULL;
    lt_options_default(&lt_recipe_table, r);
    for (char *w = strtok_r(copy, " ", &next); w != NULL; w = strtok_r(NULL, " ", &next)) {
        char *equals = strchr(w, '=');
        *equals = '\0';
        if (lt_options_set(&lt_recipe_table, r, w, equals + 1, "test") != LT_OK) {
            fail_msg("%s", lt_error_message());
        }
    }
    free(copy);
}

static void near(double got, double want, const char *what, const char *row, const char *mesh) {
    if (!(fabs(got - want) <= 1e-9 * fabs(want))) {
        fail_msg("%s %s: %s is %.9g s, not %.9g", row, mesh, what, got, want);
    }
}

/* Gradients in F32 are summed, and weights gathered in their own type. Nine tenths of the
 * concurrent passes hide transfers, except for the part of one layer, or of the embedding. */
static void each_axis_costs_its_transfers(void **state) {
#define HALF_PASS  (4 * ROW_S) /* Two ranks with four rows each. */
#define DP_COMPUTE (HALF_PASS + UPDATE)
#define SPLIT      (HALF_PASS + UPDATE / 2)
#define BIG_PARAMS (PARAMS + 2 * 64 * 2700.0)
    static const priced rows[] = {
        {DENSE, {1, 1, 1, 1, 1}, 0, 8 * ROW_S + UPDATE, 0, 0, 0, 0, 0, 0, 8},
        {DENSE "batch.micro=3", {1, 1, 1, 1, 1}, 0, 9 * ROW_S + UPDATE, .micro = 3},
        {DENSE "batch.micro=6",
         {1, 2, 1, 1, 1},
         0,
         DP_COMPUTE,
         RING(4 * PARAMS, 2) / 2,
         .micro = 4},
        {DENSE "model.vocab=3000",
         {1, 2, 1, 1, 1},
         0,
         4 * 32 * (FLOPS + 6 * 64 * 2700) / CORE + 10 * BIG_PARAMS / CORE,
         2 * RING(4 * BIG_PARAMS, 2) * (3000 * 64 / BIG_PARAMS),
         .micro = 4},
        {DENSE,
         {1, 2, 1, 1, 1},
         SLOW,
         DP_COMPUTE,
         2 * SLOW_RING(4 * PARAMS) - 0.9 * HALF_PASS * 2 / 3,
         .micro = 4},
        {DENSE "batch.micro=2 mesh.zero=1 model.dtype=bf16",
         {1, 2, 1, 1, 1},
         SLOW,
         HALF_PASS + UPDATE / 2,
         SLOW_RING(4 * PARAMS) - 0.9 * HALF_PASS / 3 + SLOW_RING(2 * PARAMS) - 0.9 * HALF_PASS / 6,
         .micro = 2},
        {DENSE "batch.micro=2 mesh.zero=2 model.dtype=bf16",
         {1, 2, 1, 1, 1},
         SLOW,
         HALF_PASS + UPDATE / 2,
         2 * SLOW_RING(4 * PARAMS) - 0.9 * HALF_PASS * 2 / 3 + SLOW_RING(2 * PARAMS) -
             0.9 * HALF_PASS / 6,
         .micro = 2},
        {DENSE "batch.micro=2 mesh.zero=3 model.dtype=bf16",
         {1, 2, 1, 1, 1},
         SLOW,
         HALF_PASS + UPDATE / 2,
         2 * SLOW_RING(2 * PARAMS) - 0.9 * HALF_PASS / 3 +
             2 * (SLOW_RING(2 * PARAMS) + SLOW_RING(4 * PARAMS)) - 0.9 * HALF_PASS * 2 / 3,
         .micro = 2},
        {DENSE, {1, 1, 1, 2, 1}, 0, SPLIT, 0, 4 * TP_LAYER(RING(8 * STREAM, 2)), .micro = 8},
        {DENSE "model.recompute=selective",
         {1, 1, 1, 2, 1},
         0,
         SPLIT,
         0,
         4 * (TP_LAYER(RING(8 * STREAM, 2)) + 2 * RING(8 * STREAM, 2)),
         .micro = 8},
        {DENSE "model.recompute=full batch.micro=4",
         {1, 1, 1, 2, 1},
         0,
         HALF_PASS * 4 / 3 + UPDATE / 2,
         0,
         2 * 4 * (TP_LAYER(RING(4 * STREAM, 2)) + 4 * RING(4 * STREAM, 2)),
         .micro = 4},
        /* Keys and values: 2 heads of 16 columns each, in three passes of four layers. */
        {DENSE,
         {1, 1, 2, 1, 1},
         0,
         HALF_PASS + UPDATE,
         RING(4 * PARAMS, 2) / 2,
         0,
         4 * 3 * RING(8 * STREAM, 2),
         .micro = 8},
        {DENSE "mesh.context=ring batch.micro=4",
         {1, 1, 2, 1, 1},
         0,
         HALF_PASS + UPDATE,
         RING(4 * PARAMS, 2) / 2,
         0,
         0.3 * 2 * 4 * 3 * RING(4 * STREAM, 2),
         .micro = 4},
        {DENSE,
         {1, 1, 2, 2, 1},
         0,
         2 * ROW_S + UPDATE / 2,
         RING(2 * PARAMS, 2) / 2,
         4 * TP_LAYER(RING(4 * STREAM, 2)),
         4 * 3 * RING(4 * STREAM, 2),
         .micro = 8},
        {DENSE,
         {2, 1, 1, 1, 1},
         0,
         (8 * ROW_S + UPDATE) * SHARE_OF(4),
         0,
         0,
         0,
         0,
         SENDS,
         ROW_S * SHARE_OF(4),
         1},
        {DENSE "model.layers=8", {4, 1, 1, 1, 1}, 0, COMPUTE8, 0, 0, 0, 0, SENDS, 3 * ROW8_S, 1},
        {DENSE "model.layers=8 mesh.schedule=interleaved",
         {4, 1, 1, 1, 1},
         0,
         COMPUTE8,
         0,
         0,
         0,
         0,
         2 * SENDS,
         1.5 * ROW8_S,
         1},
        {DENSE "model.layers=8 mesh.schedule=zb-h1",
         {4, 1, 1, 1, 1},
         0,
         COMPUTE8,
         0,
         0,
         0,
         0,
         SENDS,
         ROW8_S,
         1},
        {DENSE "model.layers=8 mesh.schedule=zbv",
         {4, 1, 1, 1, 1},
         0,
         COMPUTE8,
         0,
         0,
         0,
         0,
         2 * SENDS,
         0.5 * ROW8_S,
         1},
        {DENSE "model.layers=8 mesh.schedule=v-half",
         {4, 1, 1, 1, 1},
         0,
         COMPUTE8,
         0,
         0,
         0,
         0,
         2 * SENDS,
         1.5 * ROW8_S,
         1},
        /* The bubble also includes the time a rank waits within a micro-batch. */
        {DENSE "batch.micro=2",
         {2, 1, 1, 2, 1},
         0,
         (8 * ROW_S + UPDATE) * SHARE_OF(4) / 2,
         0,
         4 * 2 * TP_LAYER(RING(2 * STREAM, 2)),
         0,
         0,
         8 * (STREAM / LINK + 20e-6),
         ROW_S * SHARE_OF(4) + 2 * TP_LAYER(RING(2 * STREAM, 2)),
         2}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const priced *p = &rows[i];
        const int ranks = p->mesh.pp * p->mesh.dp * p->mesh.cp * p->mesh.tp;
        static lt_recipe r;
        lt_auto_machine m;
        lt_auto_layout l;
        char mesh[LT_AUTO_MESH_BYTES];
        set_options(&r, p->options);
        lt_auto_machine_cpu(&m, ranks, ranks);
        m.cluster.gpu.link_gbps *= p->link > 0.0 ? p->link : 1.0;
        if (lt_auto_price(&l, &r, &p->mesh, &m) != LT_OK) {
            fail_msg("%s: %s", p->options, lt_error_message());
        }
        lt_auto_mesh_text(mesh, &p->mesh);
        near(l.compute_s, p->compute_s, "computing", p->options, mesh);
        near(l.dp_s, p->dp_s, "dp", p->options, mesh);
        near(l.tp_s, p->tp_s, "tp", p->options, mesh);
        near(l.cp_s, p->cp_s, "cp", p->options, mesh);
        near(l.ep_s, p->ep_s, "ep", p->options, mesh);
        near(l.pp_s, p->pp_s, "pp", p->options, mesh);
        near(l.bubble_s, p->bubble_s, "the bubble", p->options, mesh);
        near(l.step_s, p->compute_s + p->dp_s + p->tp_s + p->cp_s + p->ep_s + p->pp_s + p->bubble_s,
             "a step", p->options, mesh);
        assert_int_equal(l.micro, p->micro);
        assert_true(l.fits); /* CPU ranks take what they need. */
    }
}

/* Four experts, of which each token uses two. Two layers of width 32; each rank of ep keeps half
 * of the experts, and sends half of the chosen rows twice each way. */
#define EXPERTS                                                                                    \
    "model.family=mixtral model.layers=2 model.width=32 model.heads=4 model.kv_heads=2 "           \
    "model.experts=4 model.top_k=2 model.ffn=64 model.vocab=300 data.train=none data.seq=32 "      \
    "batch.size=8 device=cpu model.dtype=fp32 "
static void experts_cost_their_transfers(void **state) {
    const double attention = 32.0 * (32 + 32) + 32 * 32 + 2 * 32, expert = 3.0 * 32 * 64,
                 shared = 2 * attention + 32 + 2 * 300 * 32.0, router = 2 * 4 * 32,
                 held = 2 * 4 * expert, active = shared + router - 300 * 32 + 2 * 2 * expert,
                 flops = 6 * active + 12.0 * 2 * 32 * 32, rows_b = 4 * 32 * 32 * 4.0;
    static lt_recipe r;
    lt_auto_machine m;
    lt_auto_layout l;
    (void)state;
    set_options(&r, EXPERTS);
    lt_auto_machine_cpu(&m, 2, 2);
    assert_int_equal(lt_auto_price(&l, &r, &(lt_mesh_shape){1, 2, 1, 1, 2}, &m), LT_OK);
    near(l.compute_s, 4 * 32 * flops / CORE + 10 * (shared + router + held) / CORE, "computing",
         "ep", "");
    near(l.ep_s, 2 * 4 * (2 * rows_b / 2 / LINK + 20e-6), "ep", "ep", "");
    /* Half of it is that of one layer. Each rank of ep holds the whole router. */
    near(l.dp_s, RING(4 * (shared + router + held / 2), 2), "dp", "ep", "");
    assert_true(l.tp_s == 0.0 && l.cp_s == 0.0 && l.pp_s == 0.0 && l.bubble_s == 0.0);
}

/* H200s of one machine copy to each other at 84 % of 450 GB/s, in pieces that lose 20 us each.
 * With n ranks a piece is 192 MiB / (n - 1) / 2 slots * 4 / 7, rounded down to 64 KiB, at most 16
 * MiB. During a transfer, products of other ranks' rows run: one each in the forward pass; in the
 * backward pass two, or one and the whole gradient of the weight; with a GELU only those around
 * the op that contains it. */
static void gpus_of_a_machine_copy_to_each_other(void **state) {
#define LLAMA_B                                                                                    \
    "model.family=llama model.layers=16 model.width=2048 model.heads=32 model.kv_heads=8 "         \
    "model.ffn=8192 model.vocab=128256 model.tied=true data.train=none data.seq=4096 "             \
    "batch.size=16 device=cuda model.dtype=bf16 data.mask_documents=false "                        \
    "data.reset_positions=false "
    static const struct {
        const char *options;
        int tp;
        /* q, k, v; output of attention; output of up, with gate; down. */
        double piece, columns[4];
        bool forward[4], backward[4];
    } rows[] = {
#define ALL {true, true, true, true}
        {LLAMA_B "batch.micro=4", 2, 0x1p24, {3072, 2048, 16384, 8192}, ALL, ALL},
        {LLAMA_B "batch.micro=4", 4, 0x1p24, {3072, 2048, 16384, 8192}, ALL, ALL},
        {LLAMA_B "batch.micro=4", 8, 125 * 65536.0, {3072, 2048, 16384, 8192}, ALL, ALL},
        {LLAMA_B "batch.micro=4 model.family=gpt2 model.kv_heads=0",
         4,
         0x1p24,
         {6144, 2048, 8192, 8192},
         {true, true, false, true},
         {true, true, true, false}},
        {LLAMA_B
         "batch.micro=4 model.family=mixtral model.tied=false model.experts=8 model.top_k=2",
         4,
         0x1p24,
         {3072, 2048, 16384, 8192},
         {true, true, false, false},
         {true, true, false, false}}};
    const double rate = 0.84 * 450e9, stream = 4096.0 * 2048 * 2, gib = 1073741824.0;
    static lt_recipe r;
    lt_auto_machine m;
    lt_auto_layout l;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const double n = rows[i].tp, shard = 4 * stream / n,
                     move = (n - 1) * (shard / rate + ceil(shard / rows[i].piece) * 20e-6);
        double layer = 0.0, column_s;
        set_options(&r, rows[i].options);
        assert_int_equal(lt_auto_machine_gpu(&m, "h200", 8), LT_OK);
        near(m.memory_bytes, 0.92 * 141 * gib, "memory", "h200", "");
        column_s = 2 * (4 * 4096 / n) * 2048 / n / (989e12 * m.rates.gemm);
        for (int k = 0; k < 4; k++) {
            const double one = rows[i].columns[k] * column_s, last = k % 2 == 0 ? n : n - 1;
            layer += 160e-6 + fmax(0.0, move - (rows[i].forward[k] ? n - 1 : 0) * one) +
                     fmax(0.0, move - (rows[i].backward[k] ? n - 1 + last : 0) * one);
        }
        if (lt_auto_price(&l, &r, &(lt_mesh_shape){1, 1, 1, rows[i].tp, 1}, &m) != LT_OK) {
            fail_msg("%s: %s", rows[i].options, lt_error_message());
        }
        near(l.tp_s, 4 * 16 * layer, "tp", rows[i].options, "");
    }
}

/* A search gives each layout the time that it has alone. On a GPU the passes and the update are
 * those of a dry step (own.h) with the rows of a micro-batch. */
static void a_search_times_each_layout_as_alone(void **state) {
    static lt_recipe r;
    static lt_own_run run;
    static const lt_op updates[] = {LT_OP_adamw, LT_OP_sumsq};
    lt_auto_machine m;
    lt_auto_layout *all = NULL, alone;
    lt_dry_step step;
    double update = 0.0;
    size_t n = 0;
    (void)state;
    set_options(&r, LLAMA_B);
    assert_int_equal(lt_auto_machine_gpu(&m, "h200", 4), LT_OK);
    assert_int_equal(lt_auto_find(&all, &n, &r, 4, &m), LT_OK);
    assert_true(n > 10);
    for (size_t i = 0; i < n; i++) {
        r.zero = all[i].zero;
        assert_int_equal(lt_auto_price(&alone, &r, &all[i].mesh, &m), LT_OK);
        near(all[i].step_s, alone.step_s, "a step", "of a search", "");
        assert_true(all[i].micro == alone.micro && all[i].bytes == alone.bytes);
    }
    free(all);
    r.zero = 1;
    r.micro = 2;
    assert_int_equal(lt_auto_price(&alone, &r, &(lt_mesh_shape){1, 2, 1, 1, 1}, &m), LT_OK);
    assert_int_equal(lt_own_run_open(&run, &r, true), LT_OK);
    run.micros = 1;
    assert_int_equal(lt_own_step(&step, &run, &m.cluster.gpu, &m.rates), LT_OK);
    for (int i = 0; i < 2; i++) {
        assert_true(step.ops_s[updates[i]] > 0.0);
        update += step.ops_s[updates[i]];
    }
    assert_int_equal(alone.micro, 2);
    near(alone.compute_s, 4 * (step.step_s - update) + update / 2, "computing", "by itself", "");
}

/* 1.24 billion parameters, a quarter of them in the tied embedding, whose sum no pass hides.
 * Eight ranks copy to each other; sixteen use the network, each with a sixteenth of the
 * parameters in the rings of eight of each of the two machines; seventeen ranks of one machine
 * are too many to copy. */
static void gradients_of_gpus(void **state) {
    const double embed = 128256.0 * 2048,
                 params = embed + 2048 +
                          16 * (2048.0 * (2048 + 1024) + 2048 * 2048 + 3 * 2048.0 * 8192 + 4096),
                 bytes = 4 * params;
    static lt_recipe r;
    lt_auto_machine m;
    lt_auto_layout l;
    double shard, sum;
    (void)state;
    set_options(&r, LLAMA_B);
    assert_int_equal(lt_auto_machine_gpu(&m, "h200", 8), LT_OK);
    assert_int_equal(m.cluster.gpus, 8);
    assert_int_equal(lt_auto_price(&l, &r, &(lt_mesh_shape){1, 8, 1, 1, 1}, &m), LT_OK);
    shard = bytes / 8;
    sum = 7 * (shard / (0.84 * 450e9) + ceil(shard / (125 * 65536.0)) * 20e-6);
    near(l.dp_s, 2 * sum * embed / params, "dp", "8 H200", "");
    assert_true(l.fits && l.micro == 2);
    assert_int_equal(lt_auto_machine_gpu(&m, "h200", 16), LT_OK);
    assert_int_equal(m.cluster.gpus, 16);
    assert_int_equal(lt_auto_price(&l, &r, &(lt_mesh_shape){1, 16, 1, 1, 1}, &m), LT_OK);
    sum = fmax(7.0 / 8 * bytes / (0.78 * 450e9), bytes / 2 / 8 / (50e9 * m.cluster.stack.network)) +
          6 * 4e-6 + 6e-6; /* A tree of eight: two times three steps. */
    near(l.dp_s, 2 * sum * embed / params, "dp", "16 H200", "");
    set_options(&r, LLAMA_B "batch.size=17");
    m.cluster.gpu.node_gpus = m.cluster.gpu.domain_gpus = 17;
    assert_int_equal(lt_auto_price(&l, &r, &(lt_mesh_shape){1, 17, 1, 1, 1}, &m), LT_OK);
    sum = 16.0 / 17 * bytes / (0.78 * 450e9) + 10 * 4e-6;
    near(l.dp_s, 2 * sum * embed / params, "dp", "17 H200", "");
    m.memory_bytes = l.bytes;
    assert_int_equal(lt_auto_price(&l, &r, &(lt_mesh_shape){1, 17, 1, 1, 1}, &m), LT_OK);
    assert_true(l.fits);
    m.memory_bytes = l.bytes - 1;
    assert_int_equal(lt_auto_price(&l, &r, &(lt_mesh_shape){1, 17, 1, 1, 1}, &m), LT_OK);
    assert_false(l.fits);
}

/* For one rank: the buffers of the recipe by itself, with its rows of a micro-batch. */
static void bytes_of_one_rank(void **state) {
    for (int64_t micro = 1; micro <= 8; micro *= 2) {
        static lt_recipe r;
        static lt_own_run run;
        lt_auto_machine m;
        lt_auto_layout l;
        lt_memory_plan p;
        set_options(&r, DENSE);
        r.micro = micro;
        lt_auto_machine_cpu(&m, 1, 1);
        assert_int_equal(lt_auto_price(&l, &r, &(lt_mesh_shape){1, 1, 1, 1, 1}, &m), LT_OK);
        assert_int_equal(lt_own_run_open(&run, &r, false), LT_OK);
        assert_int_equal(
            lt_memory_buffers(&p, &run.recipe, &run.spec, run.dtype, &run.pass, NULL, NULL), LT_OK);
        near(l.bytes, (double)p.buffers_bytes, "bytes", DENSE, "");
    }
    (void)state;
}

/* What training refuses (docs/parallel.md) is refused here, too. */
static void meshes_that_train(void **state) {
#define GPU  "device=cuda model.dtype=bf16 model.width=128 "
#define GPT2 "model.family=gpt2 model.kv_heads=0 mesh.zero=2 "
    static const struct {
        const char *options;
        lt_mesh_shape mesh;
        bool trains;
    } rows[] = {{DENSE, {1, 3, 1, 1, 1}, false},
                {DENSE "batch.size=9", {1, 3, 1, 1, 1}, true},
                {DENSE, {1, 1, 1, 3, 1}, false},
                {DENSE "mesh.zero=1", {1, 1, 1, 2, 1}, false},
                {DENSE "mesh.zero=1", {1, 2, 1, 2, 1}, true},
                {DENSE "mesh.zero=1", {1, 1, 2, 1, 1}, true},
                {DENSE "mesh.zero=1 mesh.shard=2", {1, 4, 1, 1, 1}, true},
                {DENSE "mesh.zero=1 mesh.shard=3", {1, 4, 1, 1, 1}, false},
                {DENSE "mesh.zero=1 mesh.shard=4", {1, 2, 2, 1, 1}, true},
                {EXPERTS "mesh.zero=1", {1, 2, 1, 1, 2}, false},
                {EXPERTS "mesh.zero=1", {1, 4, 1, 1, 2}, true},
                {EXPERTS "mesh.zero=1 mesh.shard=2", {1, 4, 1, 1, 2}, false},
                {DENSE GPT2, {2, 2, 1, 1, 1}, false},
                {DENSE GPT2 "mesh.schedule=zbv", {2, 2, 1, 1, 1}, true},
                {DENSE GPT2 "mesh.zero=1", {2, 2, 1, 1, 1}, true},
                {DENSE GPT2, {1, 2, 1, 1, 1}, true},
                {DENSE "mesh.zero=2", {2, 2, 1, 1, 1}, true},
                {DENSE GPU "model.fp8=tensorwise mesh.zero=3", {1, 2, 1, 1, 1}, false},
                {DENSE GPU "model.fp8=tensorwise mesh.zero=2", {1, 2, 1, 1, 1}, true},
                {DENSE GPU "mesh.zero=3", {1, 2, 1, 1, 1}, true},
                {DENSE GPU "model.fp8=blockwise", {1, 1, 1, 2, 1}, false},
                {DENSE GPU "model.fp8=blockwise", {1, 2, 1, 1, 1}, true},
                {DENSE GPU "model.fp8=tensorwise", {1, 1, 1, 2, 1}, true},
                {DENSE "deterministic=mesh-invariant", {1, 2, 1, 1, 1}, true},
                {DENSE "deterministic=mesh-invariant mesh.zero=1", {1, 2, 1, 1, 1}, false},
                {DENSE "deterministic=mesh-invariant", {1, 1, 1, 2, 1}, false},
                {DENSE "deterministic=mesh-invariant", {2, 1, 1, 1, 1}, false},
                {DENSE "optim.kind=muon", {1, 1, 1, 2, 1}, false},
                {DENSE "optim.kind=muon", {1, 2, 1, 1, 1}, true}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static lt_recipe r;
        const lt_mesh_shape *s = &rows[i].mesh;
        char mesh[LT_AUTO_MESH_BYTES];
        lt_auto_machine m;
        lt_auto_layout l;
        lt_err err;
        set_options(&r, rows[i].options);
        lt_auto_machine_cpu(&m, 1, 1);
        if (strstr(rows[i].options, "cuda") != NULL) {
            assert_int_equal(lt_auto_machine_gpu(&m, "h200", 8), LT_OK);
        }
        err = lt_auto_price(&l, &r, s, &m);
        if ((err == LT_OK) != rows[i].trains) {
            fail_msg("%s %s: %s", rows[i].options, lt_auto_mesh_text(mesh, s),
                     err == LT_OK ? "is considered" : lt_error_message());
        }
        assert_true(err == LT_OK || err == LT_ERR_ARG);
    }
}

/* Layouts that fit are ordered by time, then those that do not fit by memory; of equal ones the
 * lower level comes first. */
static void order_of_layouts(void **state) {
    static const char *const two[] = {"dp=2 0", "dp=2 1", "dp=2 2", "dp=2 3", "pp=2 0",
                                      "cp=2 0", "cp=2 1", "cp=2 2", "cp=2 3", "tp=2 0"};
    static lt_recipe r;
    lt_auto_machine m;
    lt_auto_layout *all = NULL;
    size_t n = 0, fit = 0;
    (void)state;
    set_options(&r, DENSE);
    lt_auto_machine_cpu(&m, 2, 2);
    for (int limited = 0; limited < 2; limited++) {
        assert_int_equal(lt_auto_find(&all, &n, &r, 2, &m), LT_OK);
        assert_int_equal(n, sizeof two / sizeof *two);
        for (size_t k = 0; k < n; k++) {
            size_t found = 0;
            for (size_t i = 0; i < n; i++) {
                char mesh[LT_AUTO_MESH_BYTES], text[LT_AUTO_MESH_BYTES + 16];
                snprintf(text, sizeof text, "%s %d", lt_auto_mesh_text(mesh, &all[i].mesh),
                         all[i].zero);
                found += strcmp(text, two[k]) == 0;
            }
            assert_int_equal(found, 1);
        }
        fit = 0;
        for (size_t i = 0; i < n; i++) {
            fit += all[i].fits;
            assert_true(all[i].fits == (m.memory_bytes == 0.0 || all[i].bytes <= m.memory_bytes));
            if (i > 0 && all[i].fits) {
                assert_true(all[i - 1].fits && all[i - 1].step_s <= all[i].step_s);
            } else if (i > 0 && !all[i - 1].fits) {
                assert_true(all[i - 1].bytes <= all[i].bytes);
            }
        }
        assert_true(limited ? fit > 1 && fit + 2 < n : fit == n);
        m.memory_bytes = (all[0].bytes + all[n - 1].bytes) / 2;
        free(all);
    }
    assert_int_equal(lt_auto_find(&all, &n, &r, 7, &m), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "no mesh of 7 ranks can train this recipe: "
                                               "batch.size = 8 rows, 4 layers, 4 heads"));
    set_options(&r, DENSE "model.heads=5");
    assert_int_equal(lt_auto_find(&all, &n, &r, 2, &m), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "heads"));
    set_options(&r, EXPERTS);
    assert_int_equal(lt_auto_find(&all, &n, &r, 4, &m), LT_OK);
    /* Four experts on two or four ranks. */
    for (size_t i = 0, with = 0; i < n || with == 0; i++) {
        assert_true(i < n);
        with += all[i].mesh.ep == 4 && all[i].mesh.dp == 4 && all[i].zero == 0;
        assert_true(all[i].mesh.ep != 3);
    }
    free(all);
}

static void names_of_meshes(void **state) {
    char text[LT_AUTO_MESH_BYTES];
    (void)state;
    assert_string_equal(lt_auto_mesh_text(text, &(lt_mesh_shape){1, 1, 1, 1, 1}), "dp=1");
    assert_string_equal(lt_auto_mesh_text(text, &(lt_mesh_shape){1, 1, 1, 2, 1}), "tp=2");
    assert_string_equal(lt_auto_mesh_text(text, &(lt_mesh_shape){3, 2, 4, 5, 6}),
                        "dp=2,pp=3,cp=4,tp=5,ep=6");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_axis_costs_its_transfers),
                                       cmocka_unit_test(experts_cost_their_transfers),
                                       cmocka_unit_test(gpus_of_a_machine_copy_to_each_other),
                                       cmocka_unit_test(a_search_times_each_layout_as_alone),
                                       cmocka_unit_test(gradients_of_gpus),
                                       cmocka_unit_test(bytes_of_one_rank),
                                       cmocka_unit_test(meshes_that_train),
                                       cmocka_unit_test(order_of_layouts),
                                       cmocka_unit_test(names_of_meshes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
