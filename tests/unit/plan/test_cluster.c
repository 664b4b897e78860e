/* Clusters, kinds of GPU and stacks as files describe them. The tables are the test's own: every
 * field has a unique number, so that a value in a wrong place is noticed. */
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "lateen/base.h"
#include "plan/plan.h"
#include "plan/points.h"

static char root[] = "/tmp/lateen_clustersXXXXXX";

static const char gpus_yaml[] =
    "alpha:    {match: [alpha, al], bf16_tflops: 101, fp32_tflops: 52, fp8_tflops: 203,"
    " fp4_tflops: 404, memory_gib: 5, memory_gbps: 606, link_gbps: 77, nic_gbps: 8.5,"
    " pcie_gbps: 9.5, power_w: 110, host_power_w: 120, sms: 13, node: 4, domain: 16,"
    " host_time: 1.25}\n"
    "alpha-xl: {match: [alpha-xl, alpha max], bf16_tflops: 201, memory_gib: 6, memory_gbps: 607,"
    " link_gbps: 78, nic_gbps: 18, pcie_gbps: 19, sms: 14, node: 8, domain: 8}\n"
    "beta:     {match: [beta, other], bf16_tflops: 301, memory_gib: 7, memory_gbps: 608, "
    "link_gbps: 79,"
    " nic_gbps: 28, pcie_gbps: 29, sms: 15, node: 2, domain: 2}\n";

static const char stacks_yaml[] =
    "stacks:\n"
    "  default: {attention: flash2, passes: 1.75, launch_us: 21, host_us: 22}\n"
    "  ship:    {attention: flash3, ep_copies: 0.11, quantised_gather: 0.12, split_products: 0.13,"
    " tp_overlap: 0.14, dp_overlap: 0.15, launch_blocking: 0.16, deepspeed_pipe: 0.17,"
    " op_selective: 0.18, logit_bytes: 19, moe_fused: 0.2, cp_balance: 0.21, ep_overlap: 0.23,"
    " early_stop: 0.24, quantised_params: 0.25}\n"
    "  ship-25: {moe_fused: 1.5}\n"
    "  boat:    {attention: unfused, launch_us: 31}\n"
    "  plain:   {}\n"
    "stackside: {x: 1}\n"
    "fits:\n"
    "  alpha:\n"
    "    default: {gemm: 0.41, memory: 0.42, network: 0.43}\n"
    "    ship:    {gemm: 0.51, launch_us: 52, anchors: [ship-001, ship-0022]}\n"
    "    ship-25: {memory: 0.62, anchors: [paper-3]}\n"
    "  beta:\n"
    "    boat:    {gemm: 0.71, network: 0.72, anchors: [boat-1, boat-12, boat-123]}\n"
    "    default: {gemm: 0.44}\n"
    "  gamma:\n    ship: {gemm: 0.5, anchors: [many-100";

static void put(const char *name, const char *text) {
    char path[128];
    FILE *f;
    (void)snprintf(path, sizeof path, "%s/clusters/%s", root, name);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

#define N_MANY 150 /* More than any list that is not one of anchors. */

static void put_tables(void) {
    char stacks[8192];
    (void)snprintf(stacks, sizeof stacks, "%s", stacks_yaml);
    for (int i = 1; i < N_MANY; i++) {
        const size_t at = strlen(stacks);
        (void)snprintf(stacks + at, sizeof stacks - at, ", many-%d", 100 + i);
    }
    strcat(stacks, "]}\n");
    put("gpus.yaml", gpus_yaml);
    put("stacks.yaml", stacks);
    put("runs.yaml", "here: {it: runs}\n");
}

/* In a separate process, because tables are read once: a table with this text is refused. */
static void damaged(const char *file, const char *text, const char *field, const char *range) {
    int status = 0;
    char words[64];
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        lt_plan_gpu g;
        lt_plan_stack s;
        put(file, text);
        if (lt_plan_gpu_find(&g, "alpha") == LT_OK &&
            lt_plan_stack_find(&s, "alpha", "ship-2") == LT_OK) {
            _exit(1);
        }
        (void)snprintf(words, sizeof words, "%s.yaml:1: ", file[0] == 'g' ? "gpus" : "stacks");
        _exit(range == NULL ? (strstr(lt_error_message(), "no GPU kind") == NULL ? 0 : 2)
              : strstr(lt_error_message(), words) != NULL &&
                      strstr(lt_error_message(), field) != NULL &&
                      strstr(lt_error_message(), range) != NULL
                  ? 0
                  : 2);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (status != 0) {
        fail_msg("%s of %s: %s", field, text, status == 256 ? "is not refused" : "another message");
    }
}

typedef struct {
    const char *field, *value, *range;
} bound;

static const bound gpu_bounds[] = {
    {"bf16_tflops", "0", "[0.001, 1e+06]"}, {"fp32_tflops", "-1", "[0, 1e+06]"},
    {"fp8_tflops", "-1", "[0, 1e+06]"},     {"fp4_tflops", "-1", "[0, 1e+06]"},
    {"memory_gib", "0", "[0.001, 1e+06]"},  {"memory_gbps", "0", "[0.001, 1e+06]"},
    {"link_gbps", "0", "[0.001, 1e+06]"},   {"nic_gbps", "0", "[0.0001, 1e+06]"},
    {"pcie_gbps", "0", "[0.1, 100000]"},    {"power_w", "-1", "[0, 1e+06]"},
    {"host_power_w", "-1", "[0, 1e+06]"},   {"sms", "0", "[1, 1e+06]"},
    {"node", "0", "[1, 100000]"},           {"domain", "0", "[1, 100000]"},
    {"host_time", "0", "[0.1, 10]"}};

static const bound stack_bounds[] = {
    {"passes", "0", "[0.1, 20]"},        {"launch_us", "-1", "[0, 10000]"},
    {"host_us", "-1", "[0, 10000]"},     {"ep_copies", "2", "[0, 1]"},
    {"quantised_gather", "2", "[0, 1]"}, {"split_products", "2", "[0, 1]"},
    {"tp_overlap", "2", "[0, 1]"},       {"dp_overlap", "2", "[0, 1]"},
    {"launch_blocking", "2", "[0, 1]"},  {"deepspeed_pipe", "2", "[0, 1]"},
    {"op_selective", "2", "[0, 1]"},     {"logit_bytes", "65", "[0, 64]"},
    {"moe_fused", "3", "[0, 2]"},        {"cp_balance", "2", "[0, 1]"},
    {"ep_overlap", "2", "[0, 1]"},       {"attention", "none", "unknown 'none'"},
    {"early_stop", "2", "[0, 1]"},       {"quantised_params", "2", "[0, 1]"}};

static const bound fit_bounds[] = {{"gemm", "0", "[0.01, 1.2]"},
                                   {"memory", "2", "[0.01, 1.2]"},
                                   {"launch_us", "-1", "[0, 10000]"},
                                   {"network", "0", "[0.01, 1.2]"}};

static void damaged_tables_are_refused(void) {
    static const char *const stacks[] = {"default", "ship", "ship-2"};
    char text[256];
    damaged("gpus.yaml", "[", "", NULL);
    damaged("stacks.yaml", "[", "", NULL);
    for (size_t i = 0; i < sizeof gpu_bounds / sizeof *gpu_bounds; i++) {
        const bound *b = &gpu_bounds[i];
        (void)snprintf(text, sizeof text, "alpha: {%s: %s}\n", b->field, b->value);
        damaged("gpus.yaml", text, b->field, b->range);
    }
    put("gpus.yaml", gpus_yaml);
    for (size_t k = 0; k < 3; k++) {
        for (size_t i = 0; i < sizeof stack_bounds / sizeof *stack_bounds; i++) {
            const bound *b = &stack_bounds[i];
            (void)snprintf(text, sizeof text, "stacks: {%s: {%s: %s}}\n", stacks[k], b->field,
                           b->value);
            damaged("stacks.yaml", text, b->field, b->range);
        }
        for (size_t i = 0; i < sizeof fit_bounds / sizeof *fit_bounds; i++) {
            const bound *b = &fit_bounds[i];
            (void)snprintf(text, sizeof text, "fits: {alpha: {%s: {%s: %s}}}\n", stacks[k],
                           b->field, b->value);
            damaged("stacks.yaml", text, b->field, b->range);
        }
    }
}

static int set_up(void **state) {
    char path[64];
    (void)state;
    /* A field that is not written is not zero. AddressSanitizer does not support this, but fills
     * memory itself. */
    (void)mallopt(M_PERTURB, 0x5a);
    assert_non_null(mkdtemp(root));
    (void)snprintf(path, sizeof path, "%s/clusters", root);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(setenv("LATEEN_RECIPES", root, 1), 0);
    damaged_tables_are_refused();
    put_tables();
    return 0;
}

static int tear_down(void **state) {
    static const char *const names[] = {"/clusters/gpus.yaml", "/clusters/stacks.yaml",
                                        "/clusters/here.yaml", "/clusters/runs.yaml",
                                        "/clusters",           ""};
    char path[128];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        (void)snprintf(path, sizeof path, "%s%s", root, names[i]);
        (void)remove(path);
    }
    return 0;
}

static void says(const char *words) {
    if (strstr(lt_error_message(), words) == NULL) {
        fail_msg("'%s' does not say '%s'", lt_error_message(), words);
    }
}

static lt_plan_cluster cluster_of(const char *text) {
    lt_plan_cluster c;
    memset(&c, 0xff, sizeof c);
    put("here.yaml", text);
    if (lt_plan_cluster_load(&c, "here") != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    return c;
}

static void refused(lt_err err, const char *text, const char *words) {
    lt_plan_cluster c;
    put("here.yaml", text);
    assert_int_equal(lt_plan_cluster_load(&c, "here"), err);
    says(words);
}

static void close_to(double got, double want, double tolerance, int line) {
    if (!(fabs(got - want) <= tolerance)) {
        fail_msg("line %d: got %.17g, want %.17g", line, got, want);
    }
}
#define SAME(got, want) close_to(got, want, 1e-9, __LINE__)

/* ---- Kinds of GPU ---- */

static void each_field_of_a_gpu_is_its_own(void **state) {
    lt_plan_gpu g;
    (void)state;
    assert_int_equal(lt_plan_gpu_find(&g, "alpha"), LT_OK);
    assert_string_equal(g.name, "alpha");
    SAME(g.peak_tflops[LT_PLAN_BF16], 101);
    SAME(g.peak_tflops[LT_PLAN_FP32], 52);
    SAME(g.peak_tflops[LT_PLAN_FP8], 203);
    SAME(g.peak_tflops[LT_PLAN_NVFP4], 404);
    SAME(g.peak_tflops[LT_PLAN_MXFP8], 203);  /* The fp8 units compute it. */
    SAME(g.peak_tflops[LT_PLAN_FP8ROW], 101); /* It is no faster than bf16. */
    SAME(g.memory_bytes, 5.0 * 1024 * 1024 * 1024);
    SAME(g.memory_gbps, 606);
    SAME(g.link_gbps, 77);
    SAME(g.nic_gbps, 8.5);
    SAME(g.pcie_gbps, 9.5);
    SAME(g.power_w, 110);
    SAME(g.host_power_w, 120);
    SAME(g.host_time, 1.25);
    assert_int_equal(g.sms, 13);
    assert_int_equal(g.node_gpus, 4);
    assert_int_equal(g.domain_gpus, 16);
}

static void a_gpu_without_units_of_eight_bits_has_no_peak_there(void **state) {
    lt_plan_gpu g;
    (void)state;
    assert_int_equal(lt_plan_gpu_find(&g, "beta"), LT_OK);
    SAME(g.peak_tflops[LT_PLAN_BF16], 301);
    SAME(g.peak_tflops[LT_PLAN_FP32], 0);
    SAME(g.peak_tflops[LT_PLAN_FP8], 0);
    SAME(g.peak_tflops[LT_PLAN_MXFP8], 0);
    SAME(g.peak_tflops[LT_PLAN_NVFP4], 0);
    SAME(g.peak_tflops[LT_PLAN_FP8ROW], 0);
}

static void the_longest_spelling_that_occurs_names_the_gpu(void **state) {
    static const struct {
        const char *text, *name;
    } of[] = {{"alpha", "alpha"},
              {"8x Alpha-80GB", "alpha"},
              {"ALPHA-XL", "alpha-xl"},
              {"Alpha Max (rev. B)", "alpha-xl"},
              {"al", "alpha"},
              {"one beta", "beta"},
              /* Of two that are equally long, the first in the table. */
              {"other alpha", "alpha"}};
    lt_plan_gpu g;
    char longer[512];
    (void)state;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        assert_int_equal(lt_plan_gpu_match(&g, of[i].text), LT_OK);
        assert_string_equal(g.name, of[i].name);
    }
    assert_int_equal(lt_plan_gpu_match(&g, "gamma"), LT_ERR_NOT_FOUND);
    says("unknown GPU kind 'gamma'");
    assert_int_equal(lt_plan_gpu_match(&g, ""), LT_ERR_NOT_FOUND);
    /* Text is read up to the size of its buffer: 255 bytes. */
    memset(longer, '.', sizeof longer);
    memcpy(longer + 251, "beta", 5);
    assert_int_equal(lt_plan_gpu_match(&g, longer), LT_OK);
    memset(longer, '.', sizeof longer);
    memcpy(longer + 252, "beta", 5);
    assert_int_equal(lt_plan_gpu_match(&g, longer), LT_ERR_NOT_FOUND);
}

static void an_unknown_gpu_is_refused_with_the_nearest_kind(void **state) {
    lt_plan_gpu g;
    (void)state;
    assert_int_equal(lt_plan_gpu_find(&g, "bet"), LT_ERR_NOT_FOUND);
    says("no GPU kind 'bet' in ");
    says("/clusters/gpus.yaml; did you mean 'beta'?");
    assert_int_equal(lt_plan_gpu_find(&g, "alph"), LT_ERR_NOT_FOUND);
    says("; did you mean 'alpha'?");
    assert_int_equal(lt_plan_gpu_find(&g, "alpha-x"), LT_ERR_NOT_FOUND);
    says("; did you mean 'alpha-xl'?");
    assert_int_equal(lt_plan_gpu_find(&g, "zzzzzzzzzzzz"), LT_ERR_NOT_FOUND);
    assert_null(strstr(lt_error_message(), "did you mean"));
}

/* ---- Stacks ---- */

static void a_stack_has_its_facts_and_its_fit(void **state) {
    lt_plan_stack s;
    (void)state;
    assert_int_equal(lt_plan_stack_find(&s, "alpha", "ship"), LT_OK);
    assert_string_equal(s.name, "ship");
    assert_string_equal(s.gpu, "alpha");
    assert_int_equal(s.attention, LT_PLAN_ATTENTION_FLASH3);
    SAME(s.passes, 1.75);  /* From the default. */
    SAME(s.launch_us, 52); /* From the fit, which is read last. */
    SAME(s.host_us, 22);
    SAME(s.ep_copies, 0.11);
    SAME(s.quantised_gather, 0.12);
    SAME(s.split_products, 0.13);
    SAME(s.tp_overlap, 0.14);
    SAME(s.dp_overlap, 0.15);
    SAME(s.launch_blocking, 0.16);
    SAME(s.deepspeed_pipe, 0.17);
    SAME(s.op_selective, 0.18);
    SAME(s.logit_bytes, 19);
    SAME(s.moe_fused, 0.2);
    SAME(s.cp_balance, 0.21);
    SAME(s.ep_overlap, 0.23);
    SAME(s.early_stop, 0.24);
    SAME(s.quantised_params, 0.25);
    SAME(s.gemm, 0.51);
    SAME(s.memory, 0.42); /* From the kind. */
    SAME(s.network, 0.43);
    assert_true(s.anchored);
}

static void a_release_takes_missing_values_from_its_family(void **state) {
    lt_plan_stack s;
    (void)state;
    assert_int_equal(lt_plan_stack_find(&s, "alpha", "ship-25"), LT_OK);
    assert_int_equal(s.attention, LT_PLAN_ATTENTION_FLASH3);
    SAME(s.moe_fused, 1.5);
    SAME(s.ep_overlap, 0.23);
    SAME(s.gemm, 0.51); /* From the family's fit. */
    SAME(s.memory, 0.62);
    SAME(s.network, 0.43);
    assert_false(s.anchored); /* Its fit has no value for gemm. */
    assert_int_equal(lt_plan_stack_find(&s, "alpha", "ship-eager"), LT_OK);
    SAME(s.moe_fused, 0.2);
    assert_int_equal(lt_plan_stack_find(&s, "alpha", "default"), LT_OK);
    assert_int_equal(s.attention, LT_PLAN_ATTENTION_FLASH2);
    SAME(s.gemm, 0.41);
    assert_false(s.anchored); /* The default of a kind is not a measurement. */
    assert_int_equal(lt_plan_stack_find(&s, "beta", "boat"), LT_OK);
    assert_int_equal(s.attention, LT_PLAN_ATTENTION_UNFUSED);
    SAME(s.launch_us, 31);
    SAME(s.gemm, 0.71);
    assert_true(s.anchored);
    assert_int_equal(lt_plan_stack_find(&s, "beta", "ship"), LT_OK);
    SAME(s.gemm, 0.44);
    assert_false(s.anchored);
}

static void an_unknown_stack_has_the_defaults(void **state) {
    lt_plan_stack s;
    (void)state;
    assert_int_equal(lt_plan_stack_find(&s, "alpha-xl", "other"), LT_OK);
    assert_string_equal(s.name, "other");
    assert_int_equal(s.attention, LT_PLAN_ATTENTION_FLASH2);
    SAME(s.gemm, 0.7);
    SAME(s.memory, 0.8);
    SAME(s.network, 0.75);
    SAME(s.passes, 1.75);
    SAME(s.launch_us, 21);
    SAME(s.dp_overlap, 0.9);
    SAME(s.tp_overlap, 0);
    SAME(s.ep_overlap, 0);
    SAME(s.cp_balance, 1);
    SAME(s.logit_bytes, 6);
    SAME(s.moe_fused, 0);
    assert_false(s.anchored);
}

static void families(void **state) {
    static const struct {
        const char *stack, *family;
    } of[] = {{"bridge", "bridge"},
              {"bridge-2606", "bridge"},
              {"torchtitan-eager", "torchtitan"},
              {"torchtitan-eager-2", "torchtitan-eager"},
              {"megatron-core", "megatron-core"},
              {"megatron-core-1", "megatron-core"},
              {"x-", "x-"}};
    char got[LT_PLAN_NAME_BYTES];
    (void)state;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        lt_plan_stack_family(got, of[i].stack);
        assert_string_equal(got, of[i].family);
    }
}

static void each_table_is_independent(void **state) {
    const lt_yaml_entry *rows = NULL;
    const char *path = NULL;
    size_t n = 0;
    (void)state;
    assert_int_equal(lt_plan_runs_table(&rows, &n), LT_OK);
    assert_int_equal(n, 1);
    assert_string_equal(rows[0].key, "here.it");
    assert_int_equal(lt_plan_stacks_table(&rows, &n, &path), LT_OK);
    assert_string_equal(rows[0].key, "stacks.default.attention");
    assert_non_null(strstr(path, "/clusters/stacks.yaml"));
}

/* ---- Anchors ---- */

static void anchors_are_the_words_of_all_lists(void **state) {
    static const char *const want[] = {"ship-001", "ship-0022", "paper-3",
                                       "boat-1",   "boat-12",   "boat-123"};
    char **ids = NULL;
    size_t n = 0;
    (void)state;
    assert_int_equal(lt_plan_anchor_ids(&ids, &n), LT_OK);
    assert_int_equal(n, sizeof want / sizeof *want + N_MANY);
    for (size_t i = 0; i < n; i++) {
        char many[24];
        (void)snprintf(many, sizeof many, "many-%d", 94 + (int)i);
        assert_string_equal(ids[i], i < 6 ? want[i] : many);
        assert_true(lt_plan_is_anchor(ids[i]));
    }
    free(ids);
    assert_false(lt_plan_is_anchor("ship-00"));
    assert_false(lt_plan_is_anchor("ship-0011"));
    assert_false(lt_plan_is_anchor("paper-4"));
    assert_false(lt_plan_is_anchor("boat-1,boat-12"));
    assert_false(lt_plan_is_anchor(""));
    assert_false(lt_plan_is_anchor("0.51"));
}

/* ---- Clusters ---- */

static void a_cluster_that_names_only_its_gpu(void **state) {
    const lt_plan_cluster c = cluster_of("gpu: alpha\n");
    (void)state;
    assert_string_equal(c.name, "here");
    assert_string_equal(c.gpu.name, "alpha");
    assert_string_equal(c.stack.name, "default");
    assert_string_equal(c.stack.gpu, "alpha");
    assert_int_equal(c.gpus, 4); /* On one node. */
    assert_int_equal(c.topology, LT_PLAN_FAT_TREE);
    assert_false(c.rails);
    assert_int_equal(c.n_tiers, 0);
    SAME(c.nic_gbps, 8.5);
    SAME(c.latency_us, 6);
    SAME(c.link_latency_us, 4);
    SAME(c.link_share, 0.78);
    SAME(c.storage_write_gbps, 200);
    SAME(c.storage_read_gbps, 200);
    SAME(c.detect_s, 120);
    SAME(c.reschedule_s, 60);
    SAME(c.load_s, 60);
    SAME(c.warmup_s, 60);
    SAME(c.repair_h, 24);
    SAME(c.straggler, 0.01);
    SAME(c.price_gpu_h, 2.5);
    SAME(c.price_mwh, 80);
    SAME(c.pue, 1.2);
    /* Llama 3: 419 interruptions in 54 days on 2,048 nodes of eight GPUs; a node of four has half
     * as many. */
    assert_int_equal(c.n_causes, 1);
    assert_string_equal(c.cause[0].cause, "all causes (Llama 3)");
    SAME(c.cause[0].per_node_day, 3.79e-3 / 2);
    close_to(lt_plan_cluster_failures_per_s(&c, 16384) * 54 * 86400, 419, 1, __LINE__);
}

static void each_field_of_a_cluster_is_its_own(void **state) {
    const lt_plan_cluster c = cluster_of(
        "gpu: alpha\ngpus: 1001\nstack: ship-25\n"
        "network:\n  topology: dragonfly\n  nic_gbps: 2.25\n  latency_us: 3.5\n"
        "  link_latency_us: 4.5\n  efficiency: 0.31\n  link_efficiency: 0.32\n  rails: true\n"
        "  tiers:\n    - {gpus: 32, oversubscription: 1.5}\n"
        "    - {gpus: 512, oversubscription: 2.5, latency_us: 7.5}\n"
        "    - {gpus: 1024}\n    - {gpus: 2048, oversubscription: 4}\n"
        "storage: {write_gbps: 41, read_gbps: 42}\n"
        "failures: {per_node_day: {bits: 0.25, cables and pumps: 0.5}}\n"
        "restart: {detect_s: 51, reschedule_s: 52, load_s: 53, warmup_s: 54, repair_h: 55}\n"
        "straggler: 0.06\nprice: {gpu_h: 71, mwh: 72, pue: 1.73}\n"
        "efficiency: {gemm: 0.81, memory: 0.82}\n"
        "gpu_spec: {bf16_tflops: 901, memory_gib: 3, node: 2}\n");
    (void)state;
    assert_int_equal(c.gpus, 1001);
    assert_string_equal(c.stack.name, "ship-25");
    SAME(c.stack.moe_fused, 1.5);
    assert_int_equal(c.topology, LT_PLAN_DRAGONFLY);
    SAME(c.nic_gbps, 2.25);
    SAME(c.latency_us, 3.5);
    SAME(c.link_latency_us, 4.5);
    SAME(c.stack.network, 0.31);
    SAME(c.link_share, 0.32);
    assert_true(c.rails);
    assert_int_equal(c.n_tiers, 4);
    /* With rails, 32 GPUs at a switch are 32 nodes of two GPUs. Only the first tier is a rail. */
    assert_int_equal(c.tier[0].gpus, 64);
    SAME(c.tier[0].oversub, 1.5);
    SAME(c.tier[0].latency_us, 3.5); /* That of the network. */
    assert_int_equal(c.tier[1].gpus, 512);
    SAME(c.tier[1].oversub, 2.5);
    SAME(c.tier[1].latency_us, 7.5);
    assert_int_equal(c.tier[2].gpus, 1024);
    SAME(c.tier[2].oversub, 1);
    SAME(c.tier[2].latency_us, 3.5);
    assert_int_equal(c.tier[3].gpus, 2048);
    SAME(c.storage_write_gbps, 41);
    SAME(c.storage_read_gbps, 42);
    SAME(c.detect_s, 51);
    SAME(c.reschedule_s, 52);
    SAME(c.load_s, 53);
    SAME(c.warmup_s, 54);
    SAME(c.repair_h, 55);
    SAME(c.straggler, 0.06);
    SAME(c.price_gpu_h, 71);
    SAME(c.price_mwh, 72);
    SAME(c.pue, 1.73);
    SAME(c.stack.gemm, 0.81);
    SAME(c.stack.memory, 0.82);
    SAME(c.gpu.peak_tflops[LT_PLAN_BF16], 901);
    SAME(c.gpu.peak_tflops[LT_PLAN_FP8ROW], 901);
    SAME(c.gpu.peak_tflops[LT_PLAN_FP8], 203); /* As in the shipped table. */
    SAME(c.gpu.memory_bytes, 3.0 * 1024 * 1024 * 1024);
    assert_int_equal(c.gpu.node_gpus, 2);
    assert_int_equal(c.gpu.domain_gpus, 16);
    assert_int_equal(c.n_causes, 2);
    assert_string_equal(c.cause[0].cause, "bits");
    SAME(c.cause[0].per_node_day, 0.25);
    assert_string_equal(c.cause[1].cause, "cables and pumps");
    SAME(c.cause[1].per_node_day, 0.5);
    /* 500 nodes of two GPUs, three quarters of a failure per node and day. */
    SAME(lt_plan_cluster_failures_per_s(&c, 1000), 500 * 0.75 / 86400);
}

static void efficiency_of_the_network_has_two_names(void **state) {
    const lt_plan_cluster c = cluster_of("gpu: beta\nefficiency: {network: 0.35}\n");
    (void)state;
    SAME(c.stack.network, 0.35);
    refused(LT_ERR_ARG, "gpu: beta\nefficiency: {network: 0.35}\nnetwork: {efficiency: 0.5}\n",
            "network.efficiency and efficiency.network are the same number");
}

static void causes_have_a_limit(void **state) {
    char text[2048] = "gpu: beta\nfailures:\n  per_node_day:\n";
    char words[64];
    lt_plan_cluster c;
    (void)state;
    for (int i = 0; i < LT_PLAN_CAUSES; i++) {
        const size_t at = strlen(text);
        (void)snprintf(text + at, sizeof text - at, "    cause%d: 0.125\n", i);
    }
    c = cluster_of(text);
    assert_int_equal(c.n_causes, LT_PLAN_CAUSES);
    assert_string_equal(c.cause[LT_PLAN_CAUSES - 1].cause, "cause23");
    SAME(lt_plan_cluster_failures_per_s(&c, 2), 3.0 / 86400);
    strcat(text, "    late: 0.125\n");
    (void)snprintf(words, sizeof words, "here.yaml:%d: more than 24 causes", LT_PLAN_CAUSES + 4);
    refused(LT_ERR_LIMIT, text, words);
}

static const bound cluster_bounds[] = {
    {"gpus: %s", "0", "[1, 1e+09]"},
    {"network: {nic_gbps: %s}", "0", "[0.001, 100000]"},
    {"network: {latency_us: %s}", "-1", "[0, 1e+06]"},
    {"network: {link_latency_us: %s}", "-1", "[0, 1e+06]"},
    {"network: {efficiency: %s}", "0", "[0.01, 1.2]"},
    {"network: {link_efficiency: %s}", "2", "[0.01, 1.2]"},
    {"network: {tiers: [{gpus: %s}]}", "0", "[1, 1e+08]"},
    {"network: {tiers: [{gpus: 8, oversubscription: %s}]}", "0", "[0.1, 1000]"},
    {"network: {tiers: [{gpus: 8, latency_us: %s}]}", "-1", "[0, 1e+06]"},
    {"storage: {write_gbps: %s}", "0", "[0.001, 1e+07]"},
    {"storage: {read_gbps: %s}", "0", "[0.001, 1e+07]"},
    {"failures: {per_node_day: {x: %s}}", "11", "[0, 10]"},
    {"restart: {detect_s: %s}", "-1", "[0, 1e+06]"},
    {"restart: {reschedule_s: %s}", "-1", "[0, 1e+06]"},
    {"restart: {load_s: %s}", "-1", "[0, 1e+06]"},
    {"restart: {warmup_s: %s}", "-1", "[0, 1e+06]"},
    {"restart: {repair_h: %s}", "-1", "[0, 100000]"},
    {"straggler: %s", "1", "[0, 0.9]"},
    {"price: {gpu_h: %s}", "-1", "[0, 10000]"},
    {"price: {mwh: %s}", "-1", "[0, 100000]"},
    {"price: {pue: %s}", "0", "[1, 5]"},
    {"efficiency: {gemm: %s}", "0", "[0.01, 1.2]"},
    {"efficiency: {memory: %s}", "0", "[0.01, 1.2]"},
    {"efficiency: {network: %s}", "0", "[0.01, 1.2]"}};

static void refused_as(const char *key, const bound *b) {
    const size_t at = strcspn(key, "%");
    char text[256];
    (void)snprintf(text, sizeof text, "gpu: beta\n%.*s%s%s\n", (int)at, key, b->value,
                   key + at + 2);
    refused(LT_ERR_ARG, text, "here.yaml:2: ");
    says("is outside ");
    says(b->range);
}

static void bounds_belong_to_a_field(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cluster_bounds / sizeof *cluster_bounds; i++) {
        refused_as(cluster_bounds[i].field, &cluster_bounds[i]);
    }
    for (size_t i = 0; i < sizeof gpu_bounds / sizeof *gpu_bounds; i++) {
        char key[64];
        (void)snprintf(key, sizeof key, "gpu_spec: {%s: %%s}", gpu_bounds[i].field);
        refused_as(key, &gpu_bounds[i]);
    }
}

static void what_a_cluster_cannot_honour_is_refused(void **state) {
    (void)state;
    refused(LT_ERR_FORMAT, "gpus: 8\n", "here.yaml: 'gpu' is missing");
    refused(LT_ERR_NOT_FOUND, "gpu: bta\n", "did you mean 'beta'?");
    refused(LT_ERR_ARG, "gpu: beta\nstack: shp\n",
            "here.yaml:2: unknown stack 'shp'; did you mean 'ship'");
    refused(LT_ERR_ARG, "gpu: beta\nstack: de\n", "unknown stack 'de'");
    refused(LT_ERR_ARG, "gpu: beta\nstack: zzzzzzzzzzzz\n", "e.g. 'default'");
    refused(LT_ERR_ARG, "gpu: beta\nfits: 1\n", "here.yaml:2: unknown key 'fits'");
    refused(LT_ERR_ARG, "gpu: beta\ngpus: 8.5\n", "here.yaml: gpus: 8.5 is not a whole number");
    refused(LT_ERR_ARG, "gpu: beta\ngpu_spec: {sms: 9.5}\n",
            "gpu_spec.sms: 9.5 is not a whole number");
    refused(LT_ERR_ARG, "gpu: beta\ngpu_spec: {node: 1.5}\n",
            "gpu_spec.node: 1.5 is not a whole number");
    refused(LT_ERR_ARG, "gpu: beta\ngpu_spec: {domain: 1.5}\n",
            "gpu_spec.domain: 1.5 is not a whole number");
    refused(LT_ERR_ARG, "gpu: beta\nnetwork: {tiers: [{gpus: 1.5}]}\n",
            "network.tiers.0.gpus: 1.5 is not a whole number");
    refused(LT_ERR_ARG, "gpu: beta\nnetwork: {tiers: [{gpus: 8}, {latency_us: 2}]}\n",
            "network tier 1 does not say 'gpus'");
    refused(LT_ERR_ARG, "gpu: beta\nnetwork: {tiers: [{gpus: 8}, {gpus: 8}]}\n",
            "network tier 1 holds 8 GPUs but the tier below it 8");
    refused(LT_ERR_LIMIT,
            "gpu: beta\nnetwork: {tiers: [{gpus: 8}, {gpus: 9}, {gpus: 10}, {gpus: 11},"
            " {gpus: 12}]}\n",
            "more than 4 network tiers");
    refused(LT_ERR_ARG, "gpu: beta\nnetwork: {rails: maybe}\n", "network.rails");
    refused(LT_ERR_ARG, "gpu: beta\nfailures: {per_node_day: {}}\n", "unknown key");
    refused(LT_ERR_ARG, "gpu: beta\nnetwork: {tiers: [{gpu: 8}]}\n", "network.tiers.0.gpu");
    refused(LT_ERR_ARG, "gpu: beta\nnetwork: {rail: true}\n", "did you mean 'network.rails'");
}

static void a_release_or_a_family_is_a_known_stack(void **state) {
    (void)state;
    assert_string_equal(cluster_of("gpu: beta\nstack: ship-26\n").stack.name, "ship-26");
    assert_string_equal(cluster_of("gpu: beta\nstack: ship-eager\n").stack.name, "ship-eager");
    assert_string_equal(cluster_of("gpu: beta\nstack: plain-1\n").stack.name, "plain-1");
    refused(LT_ERR_ARG, "gpu: beta\nstack: ship-next\n", "unknown stack 'ship-next'");
}

static void a_file_is_named_up_to_its_first_dot(void **state) {
    lt_plan_cluster c;
    char path[128];
    (void)state;
    put("here.yaml", "gpu: beta\ngpus: 12\n");
    (void)snprintf(path, sizeof path, "%s/clusters/here.yaml", root);
    assert_int_equal(lt_plan_cluster_load(&c, path), LT_OK);
    assert_string_equal(c.name, "here");
    assert_int_equal(c.gpus, 12);
    assert_int_equal(lt_plan_cluster_load(&c, "nowhere"), LT_ERR_NOT_FOUND);
    says("no file 'nowhere' and no recipes/clusters/nowhere.yaml");
}

static void a_kind_of_gpu_is_a_cluster_of_one_node(void **state) {
    lt_plan_cluster c;
    lt_plan_gpu gpu;
    (void)state;
    assert_int_equal(lt_plan_gpu_find(&gpu, "beta"), LT_OK);
    assert_int_equal(lt_plan_cluster_load(&c, "beta"), LT_OK);
    assert_string_equal(c.name, "beta");
    assert_string_equal(c.gpu.name, "beta");
    assert_int_equal(c.gpus, gpu.node_gpus);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kind_of_gpu_is_a_cluster_of_one_node),
        cmocka_unit_test(each_field_of_a_gpu_is_its_own),
        cmocka_unit_test(a_gpu_without_units_of_eight_bits_has_no_peak_there),
        cmocka_unit_test(the_longest_spelling_that_occurs_names_the_gpu),
        cmocka_unit_test(an_unknown_gpu_is_refused_with_the_nearest_kind),
        cmocka_unit_test(a_stack_has_its_facts_and_its_fit),
        cmocka_unit_test(a_release_takes_missing_values_from_its_family),
        cmocka_unit_test(an_unknown_stack_has_the_defaults),
        cmocka_unit_test(families),
        cmocka_unit_test(each_table_is_independent),
        cmocka_unit_test(anchors_are_the_words_of_all_lists),
        cmocka_unit_test(a_cluster_that_names_only_its_gpu),
        cmocka_unit_test(each_field_of_a_cluster_is_its_own),
        cmocka_unit_test(efficiency_of_the_network_has_two_names),
        cmocka_unit_test(causes_have_a_limit),
        cmocka_unit_test(bounds_belong_to_a_field),
        cmocka_unit_test(what_a_cluster_cannot_honour_is_refused),
        cmocka_unit_test(a_release_or_a_family_is_a_known_stack),
        cmocka_unit_test(a_file_is_named_up_to_its_first_dot),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
