/* Collectives against closed forms and measured bus bandwidths; the step against conservation; the
 * search against its promises of speed and order; contradictions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/thread.h"
#include "lateen/plan.h"

static void near(double got, double want, double share) {
    if (!(fabs(got - want) <= share * fabs(want) + 1e-300)) {
        fail_msg("got %.8g, want %.8g within %.2g", got, want, share);
    }
}

static lt_plan_cluster cluster(const char *name) {
    lt_plan_cluster c;
    if (lt_plan_cluster_load(&c, name) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    return c;
}

static lt_plan_model model(const char *name) {
    lt_plan_model m;
    if (lt_plan_model_load(&m, name) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    return m;
}

static void collectives_follow_their_closed_forms(void **state) {
    lt_plan_cluster c = cluster("dgx-h100");
    const double s = 1e9;
    (void)state;
    c.stack.network = 1.0;
    c.link_share = 1.0;
    c.latency_us = c.link_latency_us = 0;
    c.n_tiers = 0;
    near(lt_plan_collective_s(&c, LT_PLAN_ALL_REDUCE, s, 8, 1), 2.0 * 7 / 8 * s / 450e9, 1e-9);
    near(lt_plan_collective_s(&c, LT_PLAN_ALL_GATHER, s, 8, 1), 7.0 / 8 * s / 450e9, 1e-9);
    /* One rank per node: everything goes through NICs. */
    near(lt_plan_collective_s(&c, LT_PLAN_ALL_REDUCE, s, 64, 8), 2.0 * 63 / 64 * s / 50e9, 1e-9);
    near(lt_plan_collective_s(&c, LT_PLAN_ALL_REDUCE, s, 64, 1), 2.0 * 7 / 8 * (s / 8) / 50e9,
         0.15); /* The eight NICs of a node share it. */
    near(lt_plan_collective_s(&c, LT_PLAN_SEND, s, 2, 8), s / 50e9, 1e-9);
    assert_true(lt_plan_collective_s(&c, LT_PLAN_ALL_REDUCE, s, 1, 1) == 0);
    /* Measured: 8 x H100, ring, 370 GB/s of bus bandwidth (research/planner.md 7.2). */
    c = cluster("dgx-h100");
    near(2.0 * 7 / 8 * 4e9 / lt_plan_collective_s(&c, LT_PLAN_ALL_REDUCE, 4e9, 8, 1) / 1e9, 370,
         0.20);
}

/* An all-reduce of 8 GPUs of one node, with the bus bandwidth that nccl-tests measured (Bekman,
 * ML Engineering): most sizes in training are too small for the full rate of the links. */
static void messages_of_training_include_latency(void **state) {
    static const struct {
        const char *gpu;
        double mib, gbps;
    } rows[] = {{"h200", 1.0 / 32, 1.44}, {"h200", 4, 107},  {"h200", 16, 220}, {"h200", 64, 347},
                {"b200", 16, 255},        {"b200", 64, 401}, {"b200", 256, 646}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const lt_plan_cluster c = cluster(rows[i].gpu);
        const double bytes = rows[i].mib * 1048576.0;
        near(lt_plan_collective_s(&c, LT_PLAN_ALL_REDUCE, bytes, 8, 1),
             2.0 * 7 / 8 * bytes / (rows[i].gbps * 1e9), 0.28);
    }
}

static void oversubscription_hurts_all_to_all_most(void **state) {
    lt_plan_cluster flat = cluster("h100-100k-roce"), seven = cluster("h100-100k-roce-7");
    const double ring = lt_plan_collective_s(&seven, LT_PLAN_ALL_REDUCE, 1e9, 1024, 8) /
                        lt_plan_collective_s(&flat, LT_PLAN_ALL_REDUCE, 1e9, 1024, 8);
    const double spread = lt_plan_collective_s(&seven, LT_PLAN_ALL_TO_ALL, 1e9, 8192, 1) /
                          lt_plan_collective_s(&flat, LT_PLAN_ALL_TO_ALL, 1e9, 8192, 1);
    (void)state;
    /* 512 members are in a zone: the uplinks carry 1/512 of them at a time. */
    assert_true(ring < 1.1);
    assert_true(spread > 3.0); /* Half of 8,192 ranks are outside the zone of a rank: 7 / 2. */
}

static void parts_sum_to_the_step(void **state) {
    static const char *const models[] = {"llama3-70b", "deepseek-v3", "nemotron3-super",
                                         "gpt3-175b"};
    const lt_plan_cluster c = cluster("dgx-h100");
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        const lt_plan_model m = model(models[i]);
        lt_plan_query q = {.gpus = 1024,
                           .batch_seqs = 2048,
                           .seq = 4096,
                           .zero = -1,
                           .recompute = -1,
                           .precision = LT_PLAN_BF16,
                           .fp32_grads = true};
        lt_plan_found f;
        if (lt_plan_search(&m, &c, &q, &f) != LT_OK) {
            fail_msg("%s", lt_error_message());
        }
        assert_true(f.n_fit > 10);
        for (size_t k = 0; k < f.n_best; k++) {
            const lt_plan_time *t = &f.best[k].time;
            double sum = 0;
#define ADD_PART(field, key, text)                                                                 \
    sum += t->field;                                                                               \
    assert_true(t->field >= -1e-9);
            LT_PLAN_PART_MAP(ADD_PART)
            near(sum, t->step_s, 1e-9);
            assert_true(k == 0 || t->step_s >= f.best[k - 1].time.step_s);
            assert_true(f.best[k].memory.total <= c.gpu.memory_bytes);
            assert_int_equal(lt_plan_layout_gpus(&f.best[k].layout), 1024);
        }
        lt_plan_found_free(&f);
    }
}

static void the_search_finds_what_meta_ran(void **state) {
    const lt_plan_cluster c = cluster("h100-24k");
    const lt_plan_model m = model("llama3-405b");
    lt_plan_query q = {.gpus = 16384,
                       .batch_seqs = 2048,
                       .seq = 8192,
                       .zero = -1,
                       .recompute = -1,
                       .precision = LT_PLAN_BF16};
    lt_plan_found f;
    (void)state;
    assert_int_equal(lt_plan_search(&m, &c, &q, &f), LT_OK);
    assert_true(f.n_fit > 0);
    assert_int_equal(f.best[0].layout.tp, 8); /* Meta ran TP 8, PP 16. */
    lt_plan_found_free(&f);
}

static void trends_follow_the_papers(void **state) {
    const lt_plan_cluster c = cluster("dgx-h100");
    const lt_plan_model m = model("gpt3-175b");
    double before = 1;
    (void)state;
    /* MegaScale table 2: with a fixed batch, MFU falls with more GPUs. */
    for (int64_t gpus = 512; gpus <= 8192; gpus *= 2) {
        lt_plan_query q = {.gpus = gpus,
                           .batch_seqs = 6144,
                           .zero = 1,
                           .recompute = -1,
                           .precision = LT_PLAN_BF16,
                           .fp32_grads = true};
        lt_plan_found f;
        assert_int_equal(lt_plan_search(&m, &c, &q, &f), LT_OK);
        assert_true(f.best[0].time.mfu < before * 1.005 && f.best[0].time.mfu > 0.25);
        before = f.best[0].time.mfu;
        lt_plan_found_free(&f);
    }
}

static void contradictions_are_named(void **state) {
    lt_plan_cluster c = cluster("h100-node");
    const lt_plan_model m = model("llama3-70b");
    lt_plan_query q = {
        .gpus = 16, .batch_seqs = 8, .zero = -1, .recompute = -1, .precision = LT_PLAN_BF16};
    lt_plan_layout l = {.tp = 3,
                        .pp = 1,
                        .vpp = 1,
                        .cp = 1,
                        .ep = 1,
                        .dp = 1,
                        .micro = 1,
                        .accum = 1,
                        .precision = LT_PLAN_BF16};
    lt_plan_found f;
    (void)state;
    assert_int_equal(lt_plan_search(&m, &c, &q, &f), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "16 GPUs"));
    assert_non_null(strstr(lt_error_message(), "has 8"));
    assert_int_equal(lt_plan_layout_check(&l, &m, &c), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "64 attention heads"));
    l = (lt_plan_layout){.tp = 2,
                         .pp = 1,
                         .vpp = 2,
                         .cp = 1,
                         .ep = 1,
                         .dp = 1,
                         .micro = 1,
                         .accum = 1,
                         .precision = LT_PLAN_BF16};
    assert_int_equal(lt_plan_layout_check(&l, &m, &c), LT_ERR_ARG);
    l.vpp = 1;
    l.precision = LT_PLAN_NVFP4;
    assert_int_equal(lt_plan_layout_check(&l, &m, &c), LT_ERR_ARG);
}

static void requested_degrees_that_contradict_are_named(void **state) {
    static const struct {
        lt_plan_query q;
        const char *word; /* NULL: they contradict nothing. */
        const char *model;
        int64_t gpus;
    } bad[] = {
        {{.tp = 3}, "tp 3 x pp 1 x cp 1 does not divide 8 GPUs", "llama3-70b", 8},
        {{.pp = 8, .vpp = 3}, "10 layers of a stage", "llama3-70b", 8},
        {{.pp = 8, .vpp = 5}, NULL, "llama3-70b", 8},
        {{.pp = 96}, "pp 96 is more than the 80 layers", "llama3-70b", 96},
        {{.tp = 3}, "tp 3 does not divide the 64 attention heads", "llama3-70b", 96},
        {{.ep = 8}, "no experts", "llama3-70b", 8},
        {{.ep = 3}, "ep 3 does not divide the 8 experts", "mixtral-8x7b", 96},
        {{.ep = 4}, NULL, "mixtral-8x7b", 8},
        {{.pp = 1, .vpp = 2}, "pp is 1", "llama3-70b", 8},
        {{.cp = 8, .seq = 8200}, "a multiple of 16 tokens; these have 8200", "llama3-70b", 8},
        {{.cp = 8, .seq = 8208}, NULL, "llama3-70b", 8},
        {{.cp = 1, .seq = 8207}, NULL, "llama3-70b", 8}};
    const lt_plan_cluster c = cluster("dgx-h100");
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const lt_plan_model m = model(bad[i].model);
        lt_plan_query q = bad[i].q;
        lt_plan_found f;
        q.gpus = bad[i].gpus;
        q.batch_seqs = 64;
        q.zero = q.recompute = -1;
        q.precision = LT_PLAN_BF16;
        q.exact = true;
        if (bad[i].word == NULL) {
            if (lt_plan_search(&m, &c, &q, &f) != LT_OK) {
                fail_msg("row %zu: %s", i, lt_error_message());
            }
            lt_plan_found_free(&f);
            continue;
        }
        assert_int_equal(lt_plan_search(&m, &c, &q, &f), LT_ERR_ARG);
        if (strstr(lt_error_message(), bad[i].word) == NULL) {
            fail_msg("'%s' does not name '%s'", lt_error_message(), bad[i].word);
        }
    }
}

static void bad_clusters_are_refused(void **state) {
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"gpus: 8\n", "'gpu' is missing"},
        {"gpu: h1000-sxm\n", "h100-sxm"},
        {"gpu: h100-sxm\ngpus: many\n", "not a number"},
        {"gpu: h100-sxm\ngpus: -4\n", "outside"},
        {"gpu: h100-sxm\ncolour: red\n", "unknown key 'colour'"},
        {"gpu: h100-sxm\nnetwork: {topology: ring}\n", "unknown 'ring'"},
        {"gpu: h100-sxm\nnetwork: {tiers: [{gpus: 64}, {gpus: 32}]}\n", "the tier below it 64"},
        {"gpu: h100-sxm\nnetwork: {tiers: [{gpus: 64}, {gpus: 64}]}\n", "the tier below it 64"},
        {"gpu: h100-sxm\ngpu_spec: {memry_gib: 80}\n", "did you mean 'gpu_spec.memory_gib'"},
        {"gpu: h100-sxm\nnetwork: {tiers: [{gpus: 64, oversub: 3}]}\n", "network.tiers.0.oversub"},
        {"gpu: h100-sxm\nstack: megatroncore\n", "megatron-core"},
        {"gpu: [\n", ""}};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char path[] = "/tmp/lateen_clusterXXXXXX";
        const int fd = mkstemp(path);
        lt_plan_cluster c;
        assert_int_equal(write(fd, bad[i].text, strlen(bad[i].text)), (ssize_t)strlen(bad[i].text));
        close(fd);
        assert_int_not_equal(lt_plan_cluster_load(&c, path), LT_OK);
        if (strstr(lt_error_message(), bad[i].word) == NULL) {
            fail_msg("'%s' does not name '%s'", lt_error_message(), bad[i].word);
        }
        unlink(path);
    }
}

static lt_plan_cluster cluster_from(const char *text) {
    char path[] = "/tmp/lateen-cluster-XXXXXX.yaml";
    const int fd = mkstemps(path, 5);
    lt_plan_cluster c;
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    c = cluster(path);
    unlink(path);
    return c;
}

static void rails_keep_traffic_on_one_hop(void **state) {
    static const char plain[] = "gpu: h100-sxm\ngpus: 4096\nnetwork:\n  nic_gbps: 50\n  tiers:\n"
                                "    - {gpus: 32, oversubscription: 4, latency_us: 6}\n";
    static const char rails[] =
        "gpu: h100-sxm\ngpus: 4096\nnetwork:\n  rails: true\n  nic_gbps: 50\n  tiers:\n"
        "    - {gpus: 32, oversubscription: 4, latency_us: 6}\n";
    const lt_plan_cluster a = cluster_from(plain), b = cluster_from(rails);
    (void)state;
    /* 32 nodes are connected to the same eight rail switches, so an all-to-all of 256 GPUs does
     * not use what is above them. */
    near(lt_plan_collective_s(&a, LT_PLAN_ALL_TO_ALL, 1e9, 256, 1) /
             lt_plan_collective_s(&b, LT_PLAN_ALL_TO_ALL, 1e9, 256, 1),
         4.0 * 224 / 255, 0.01);
    assert_true(lt_plan_collective_s(&b, LT_PLAN_ALL_TO_ALL, 1e9, 512, 1) >
                1.5 * lt_plan_collective_s(&b, LT_PLAN_ALL_TO_ALL, 1e9, 256, 1));
}

static void schedules_are_searched_as_asked(void **state) {
    const lt_plan_cluster c = cluster("dgx-h100");
    const lt_plan_model m = model("llama3-70b");
    double step_s[LT_PLAN_SCHEDULE_COUNT + 1];
    (void)state;
    for (int s = 0; s <= LT_PLAN_SCHEDULE_COUNT; s++) {
        const lt_plan_query q = {.gpus = 256,
                                 .batch_seqs = 256,
                                 .seq = 4096,
                                 .tp = 8,
                                 .pp = 8,
                                 .zero = -1,
                                 .recompute = -1,
                                 .schedule = s,
                                 .precision = LT_PLAN_BF16};
        lt_plan_found f;
        assert_int_equal(lt_plan_search(&m, &c, &q, &f), LT_OK);
        assert_true(f.n_fit > 0);
        for (size_t i = 0; i < f.n_best; i++) {
            assert_true(s == 0 ? f.best[i].layout.schedule == LT_PLAN_ONE_F_ONE_B ||
                                     f.best[i].layout.schedule == LT_PLAN_INTERLEAVED
                               : (int)f.best[i].layout.schedule == s - 1);
        }
        step_s[s] = f.best[0].time.step_s;
        lt_plan_found_free(&f);
    }
    assert_true(step_s[1 + LT_PLAN_ZERO_BUBBLE] < step_s[1 + LT_PLAN_ONE_F_ONE_B]);
    assert_true(step_s[1 + LT_PLAN_INTERLEAVED] < step_s[1 + LT_PLAN_ONE_F_ONE_B]);
    assert_true(step_s[0] <= 1.001 * step_s[1 + LT_PLAN_INTERLEAVED]);
}

/* Closed form and simulation agree on uniform stages; slow storage is seen as waiting for data,
 * to the byte. */
static void simulated_steps_and_slow_storage(void **state) {
    lt_plan_cluster c = cluster("dgx-h100");
    const lt_plan_model m = model("llama3-70b");
    const lt_plan_layout l = {.tp = 8,
                              .pp = 8,
                              .vpp = 1,
                              .cp = 1,
                              .ep = 1,
                              .dp = 4,
                              .sp = true,
                              .zero = 1,
                              .micro = 1,
                              .accum = 64,
                              .precision = LT_PLAN_BF16,
                              .schedule = LT_PLAN_ONE_F_ONE_B};
    const lt_plan_time closed = lt_plan_step_estimate(&m, &c, &l),
                       run = lt_plan_step_simulate(&m, &c, &l);
    lt_plan_time slow;
    (void)state;
    near(run.step_s, closed.step_s, 0.03);
    assert_true(closed.data == 0);
    c.storage_read_gbps = 1e-6;
    slow = lt_plan_step_estimate(&m, &c, &l);
    near(slow.step_s - slow.straggler, 64.0 * 4 * (double)m.max_seq * 4.0 / 1e3, 1e-9);
}

static void serving_is_near_published_figures(void **state) {
    /* TensorRT-LLM 1.0, Llama 3.1 8B FP8 on one H100, 1000/1000: 15,220 output tokens/s. vLLM
     * 0.19, BF16, one stream: 6.44 ms. */
    const lt_plan_cluster c = cluster("h100-node");
    const lt_plan_model m = model("llama3-8b");
    const lt_plan_serve full = lt_plan_serve_estimate(
        &m, &c,
        &(lt_plan_serve_query){
            .tp = 1, .prompt = 1000, .output = 1000, .precision = LT_PLAN_FP8, .kv_bytes = 1});
    const lt_plan_serve one = lt_plan_serve_estimate(
        &m, &c,
        &(lt_plan_serve_query){.tp = 1,
                               .prompt = 32,
                               .output = 128,
                               .batch = 1,
                               .precision = LT_PLAN_BF16,
                               .kv_bytes = 2});
    (void)state;
    near(full.output_tokens_s, 15220, 0.35);
    near(1.0 / one.stream_tokens_s, 6.44e-3, 0.20);
    assert_false(
        lt_plan_serve_estimate(
            &m, &c,
            &(lt_plan_serve_query){
                .tp = 1, .prompt = 1, .output = 1, .precision = LT_PLAN_FP32, .kv_bytes = 2})
            .batch > 1024);
}

/* 24 of 32 layers keep only the last 500 tokens: of 1,500 they keep a third, so a sequence takes
 * (8 + 24 / 3) / 32 of its memory. */
static void layers_with_windows_keep_fewer_tokens(void **state) {
    const lt_plan_cluster c = cluster("h100-node");
    const lt_plan_serve_query q = {
        .tp = 1, .prompt = 1000, .output = 1000, .precision = LT_PLAN_BF16, .kv_bytes = 2};
    lt_plan_model m = model("llama3-8b");
    const lt_plan_serve all = lt_plan_serve_estimate(&m, &c, &q);
    (void)state;
    near(all.kv_bytes_token, 32 * 2 * 8 * 128 * 2, 1e-12);
    m.window = 500, m.n_windowed = 24;
    const lt_plan_serve some = lt_plan_serve_estimate(&m, &c, &q);
    near(some.kv_bytes_token, all.kv_bytes_token / 2, 1e-12);
    near(some.kv_tokens, all.kv_tokens * 2, 1e-12);
    assert_true(some.batch >= 2 * all.batch && some.batch <= 2 * all.batch + 1);
    m.window = 5000; /* Longer than the sequence. */
    near(lt_plan_serve_estimate(&m, &c, &q).kv_bytes_token, all.kv_bytes_token, 1e-12);
}

/* ---- The space of the search ---- */

/* 8 GPUs whose memory holds everything. */
static lt_plan_cluster roomy(void) {
    lt_plan_cluster c = cluster("dgx-h100");
    c.gpu.memory_bytes = 1e15;
    return c;
}

/* Among the layouts that a query leaves open, the values of each degree that occur. */
static void the_whole_space_is_searched(void **state) {
    static const struct {
        lt_plan_query q;
        int zeros, recomputes, pps; /* Bit i: the value i occurs. */
        int64_t micro_max;
        int sp; /* Bit 0: without, bit 1: with sequence parallelism. */
    } rows[] = {
        /* One GPU shards nothing; micro-batches go up to 64. */
        {{.gpus = 1, .batch_seqs = 128, .zero = -1, .recompute = -1}, 1, 7, 2, 64, 1},
        {{.gpus = 8, .batch_seqs = 16, .zero = -1, .recompute = -1, .tp = 1, .pp = 1, .cp = 1},
         1 << 1 | 1 << 3,
         7,
         2,
         2,
         1},
        /* FSDP only works without a pipeline. */
        {{.gpus = 8, .batch_seqs = 16, .zero = -1, .recompute = -2, .tp = 1, .pp = 2, .cp = 1},
         1 << 1,
         3,
         4,
         4,
         1},
        {{.gpus = 8, .batch_seqs = 16, .zero = 2, .recompute = 2, .tp = 1, .pp = 1, .cp = 1},
         1 << 2,
         4,
         2,
         2,
         1},
        {{.gpus = 8, .batch_seqs = 8, .zero = 0, .recompute = 0, .tp = 8, .pp = 1, .cp = 1},
         1,
         1,
         2,
         8,
         2},
        {{.gpus = 8,
          .batch_seqs = 8,
          .zero = 0,
          .recompute = 0,
          .tp = 8,
          .pp = 1,
          .cp = 1,
          .sp_off = true},
         1,
         1,
         2,
         8,
         1},
        {{.gpus = 8, .batch_seqs = 8, .zero = 0, .recompute = 0, .tp = 1, .cp = 1},
         1,
         1,
         1 << 1 | 1 << 2 | 1 << 4 | 1 << 8,
         8,
         1}};
    const lt_plan_cluster c = roomy();
    const lt_plan_model m = model("llama3-8b");
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_plan_query q = rows[i].q;
        lt_plan_found f;
        int zeros = 0, recomputes = 0, pps = 0, sp = 0;
        int64_t micro = 0;
        q.seq = 8192;
        q.precision = LT_PLAN_BF16;
        assert_int_equal(lt_plan_search(&m, &c, &q, &f), LT_OK);
        for (size_t k = 0; k < f.n_best; k++) {
            const lt_plan_layout *l = &f.best[k].layout;
            zeros |= 1 << l->zero;
            recomputes |= 1 << l->recompute;
            pps |= 1 << l->pp;
            sp |= 1 << l->sp;
            micro = l->micro > micro ? l->micro : micro;
        }
        if (zeros != rows[i].zeros || recomputes != rows[i].recomputes || pps != rows[i].pps ||
            micro != rows[i].micro_max || sp != rows[i].sp) {
            fail_msg("row %zu: zero %d recompute %d pp %d micro %d sp %d", i, zeros, recomputes,
                     pps, (int)micro, sp);
        }
        lt_plan_found_free(&f);
        assert_true(f.best == NULL && f.n_best == 0);
    }
}

/* A sequence is split if each rank keeps 8,192 tokens. */
static void long_sequences_are_split(void **state) {
    static const struct {
        int64_t seq;
        int cps;
    } rows[] = {{8192, 1 << 1}, {16384, 1 << 1 | 1 << 2}, {32768, 1 << 1 | 1 << 2 | 1 << 4}};
    const lt_plan_cluster c = roomy();
    const lt_plan_model m = model("llama3-8b");
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const lt_plan_query q = {.gpus = 8,
                                 .batch_seqs = 8,
                                 .seq = rows[i].seq,
                                 .tp = 1,
                                 .pp = 1,
                                 .precision = LT_PLAN_BF16};
        lt_plan_found f;
        int cps = 0;
        assert_int_equal(lt_plan_search(&m, &c, &q, &f), LT_OK);
        for (size_t k = 0; k < f.n_best; k++) {
            cps |= 1 << f.best[k].layout.cp;
        }
        assert_int_equal(cps, rows[i].cps);
        lt_plan_found_free(&f);
    }
}

static void the_nearest_layout_is_named(void **state) {
    const lt_plan_model m = model("llama3-8b");
    lt_plan_cluster c = roomy();
    const lt_plan_query q = {.gpus = 8,
                             .batch_seqs = 16,
                             .seq = 8192,
                             .zero = -1,
                             .recompute = -1,
                             .precision = LT_PLAN_BF16};
    lt_plan_found f;
    double least = INFINITY;
    (void)state;
    assert_int_equal(lt_plan_search(&m, &c, &q, &f), LT_OK);
    for (size_t k = 0; k < f.n_best; k++) {
        least = fmin(least, f.best[k].memory.total);
    }
    near(f.nearest_bytes, least, 1e-12);
    lt_plan_found_free(&f);
    c.gpu.memory_bytes = 1;
    assert_int_equal(lt_plan_search(&m, &c, &q, &f), LT_OK);
    assert_true(f.n_fit == 0 && f.n_best == 0);
    near(f.nearest_bytes, least, 1e-12);
    lt_plan_found_free(&f);
}

static void queries_that_contradict_are_refused(void **state) {
    static const struct {
        lt_plan_query q;
        const char *word;
    } rows[] = {
        {{.gpus = 0, .batch_seqs = 8}, "search: 0 GPUs"},
        {{.gpus = 8, .batch_seqs = 0}, "batch of 0 sequences"},
        {{.gpus = 8, .batch_seqs = 8, .pp = 1, .schedule = 1 + LT_PLAN_INTERLEAVED},
         "an interleaved schedule needs a pipeline, and pp is 1"},
        {{.gpus = 8, .batch_seqs = 8, .pp = 2, .vpp = 2, .schedule = 1 + LT_PLAN_ONE_F_ONE_B},
         "2 virtual stages need the interleaved schedule"},
        {{.gpus = 8, .batch_seqs = 8, .tp = 3, .pp = 1}, "tp 3 x pp 1 does not divide 8 GPUs"},
        {{.gpus = 8, .batch_seqs = 8, .pp = 1, .vpp = 2, .exact = true},
         "2 virtual stages need a pipeline, and pp is 1"}};
    const lt_plan_cluster c = roomy();
    lt_plan_model m = model("llama3-8b");
    lt_plan_found f;
    lt_plan_query q;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        q = rows[i].q;
        q.seq = 8192;
        q.precision = LT_PLAN_BF16;
        assert_int_equal(lt_plan_search(&m, &c, &q, &f), LT_ERR_ARG);
        if (strstr(lt_error_message(), rows[i].word) == NULL) {
            fail_msg("'%s' does not say '%s'", lt_error_message(), rows[i].word);
        }
    }
    q = (lt_plan_query){.gpus = 8,
                        .batch_seqs = 8,
                        .seq = 8192,
                        .precision = LT_PLAN_BF16,
                        .pp = 2,
                        .vpp = 2,
                        .schedule = 1 + LT_PLAN_INTERLEAVED};
    assert_int_equal(lt_plan_search(&m, &c, &q, &f), LT_OK);
    lt_plan_found_free(&f);
    m.width = 0;
    assert_int_equal(lt_plan_search(&m, &c, &q, &f), LT_ERR_ARG);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_follow_their_closed_forms),
        cmocka_unit_test(messages_of_training_include_latency),
        cmocka_unit_test(oversubscription_hurts_all_to_all_most),
        cmocka_unit_test(parts_sum_to_the_step),
        cmocka_unit_test(the_search_finds_what_meta_ran),
        cmocka_unit_test(trends_follow_the_papers),
        cmocka_unit_test(contradictions_are_named),
        cmocka_unit_test(requested_degrees_that_contradict_are_named),
        cmocka_unit_test(bad_clusters_are_refused),
        cmocka_unit_test(rails_keep_traffic_on_one_hop),
        cmocka_unit_test(schedules_are_searched_as_asked),
        cmocka_unit_test(simulated_steps_and_slow_storage),
        cmocka_unit_test(serving_is_near_published_figures),
        cmocka_unit_test(layers_with_windows_keep_fewer_tokens),
        cmocka_unit_test(the_whole_space_is_searched),
        cmocka_unit_test(long_sequences_are_split),
        cmocka_unit_test(the_nearest_layout_is_named),
        cmocka_unit_test(queries_that_contradict_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
