/* Layers placed on the stages of a pipeline: no other way to cut a model has a cheaper costliest
 * stage (all ways are tried); with a large vocabulary the last stage gets fewer layers; listed
 * layers are kept; lists that do not fit are refused with the numbers. */
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
#include "parallel/layout.h"
#include "parallel/pipeline.h"
#include "parallel/pipeline.h"

static lt_model_spec spec_of(const char *name, int64_t n_layers, int64_t vocab) {
    lt_model_spec spec;
    char path[256];
    (void)snprintf(path, sizeof path, "tests/golden/model/%s/config.json", name);
    if (lt_model_spec_read(&spec, path) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    spec.n_layers = n_layers;
    spec.vocab_size = vocab;
    return spec;
}

static double costliest(const lt_model_spec *s, const int *first, int n) {
    double most = 0;
    for (int stage = 0; stage < n; stage++) {
        double work = stage == n - 1 ? lt_head_work(s) : 0.0;
        for (int layer = first[stage]; layer < first[stage + 1]; layer++) {
            work += lt_layer_work(s, layer, 64);
        }
        most = work > most ? work : most;
    }
    return most;
}

/* The best of all ways: the bits of a number say after which layers there is a cut. */
static double best_of_all(const lt_model_spec *s, int n) {
    double best = INFINITY;
    for (unsigned cuts = 0; cuts < 1u << (s->n_layers - 1); cuts++) {
        int first[16] = {0}, at = 1;
        for (int layer = 1; layer < s->n_layers; layer++) {
            if ((cuts >> (layer - 1) & 1) != 0 && at < 15) {
                first[at++] = layer;
            }
        }
        first[at] = (int)s->n_layers;
        if (at == n) {
            const double now = costliest(s, first, n);
            best = now < best ? now : best;
        }
    }
    return best;
}

static void no_other_cut_is_better(void **state) {
    static const char *const models[] = {"smollm3", "gpt2", "mixtral", "gemma3"};
    static const int64_t vocabs[] = {64, 2000, 50000};
    (void)state;
    for (int m = 0; m < 4; m++) {
        for (int v = 0; v < 3; v++) {
            const lt_model_spec spec = spec_of(models[m], 9, vocabs[v]);
            for (int n = 1; n <= 9; n++) {
                lt_stages s;
                assert_int_equal(lt_stages_open(&s, &spec, LT_SCHEDULE_ONE_F_ONE_B, n, 0, 64, ""),
                                 LT_OK);
                assert_int_equal(s.first[0], 0);
                assert_int_equal(s.first[n], 9);
                for (int i = 0; i < n; i++) {
                    assert_true(s.first[i] < s.first[i + 1]);
                }
                const double got = costliest(&spec, s.first, n), want = best_of_all(&spec, n);
                if (fabs(got - want) > 1e-9 * want) {
                    fail_msg("%s, vocabulary %lld, %d stages: %g, best %g", models[m],
                             (long long)vocabs[v], n, got, want);
                }
            }
        }
    }
}

static void the_head_counts_as_work(void **state) {
    lt_model_spec spec = spec_of("qwen3", 8, 8);
    lt_stages s;
    double shares[4];
    (void)state;
    assert_int_equal(lt_stages_open(&s, &spec, LT_SCHEDULE_ONE_F_ONE_B, 4, 0, 64, ""), LT_OK);
    for (int i = 0; i <= 4; i++) {
        assert_int_equal(s.first[i], 2 * i);
    }
    /* The head costs as much as a layer and a half: one layer stays with it, and the others get
     * the rest. */
    spec.vocab_size = (int64_t)(1.5 * lt_layer_work(&spec, 0, 64) / (double)spec.width);
    spec.n_layers = 7;
    assert_int_equal(lt_stages_open(&s, &spec, LT_SCHEDULE_ONE_F_ONE_B, 4, 0, 64, ""), LT_OK);
    assert_int_equal(s.first[3], 6);
    lt_stages_shares(shares, &s, &spec, 64);
    assert_true(fabs(shares[0] + shares[1] + shares[2] + shares[3] - 1.0) < 1e-12);
    assert_true(fabs(shares[0] - 2.0 / 8.5) < 1e-3 && fabs(shares[3] - 2.5 / 8.5) < 1e-3);
}

/* What each rank holds: chunks in order, or in the order of a V. */
static void ranks_hold_their_stages(void **state) {
    const lt_model_spec spec = spec_of("gpt2", 8, 64);
    const lt_mesh_shape shape = {.pp = 2, .dp = 1, .cp = 1, .tp = 1, .ep = 1};
    lt_stages s;
    lt_layout l;
    (void)state;
    assert_true(spec.tied);
    assert_int_equal(lt_stages_open(&s, &spec, LT_SCHEDULE_INTERLEAVED, 2, 0, 64, "1,2,3,2"),
                     LT_OK);
    for (int rank = 0; rank < 2; rank++) {
        static const char *const want[] = {"x..xxx..", ".xx...xx"};
        assert_int_equal(lt_layout_open(&l, &spec, &shape, rank), LT_OK);
        lt_layout_place(&l, &s);
        for (int layer = 0; layer < 8; layer++) {
            assert_int_equal(l.layers[layer], want[rank][layer] == 'x');
        }
        assert_int_equal(l.embeds, rank == 0);
        assert_int_equal(l.heads, rank == 1);
        assert_true(l.ends_apart);
    }
    assert_int_equal(lt_stages_open(&s, &spec, LT_SCHEDULE_ZBV, 2, 0, 64, "1,2,3,2"), LT_OK);
    for (int rank = 0; rank < 2; rank++) {
        static const char *const want[] = {"x.....xx", ".xxxxx.."};
        assert_int_equal(lt_layout_open(&l, &spec, &shape, rank), LT_OK);
        lt_layout_place(&l, &s);
        for (int layer = 0; layer < 8; layer++) {
            assert_int_equal(l.layers[layer], want[rank][layer] == 'x');
        }
        assert_int_equal(l.embeds && l.heads, rank == 0);
        assert_false(l.ends_apart);
    }
}

static void refused(lt_schedule_kind kind, int ranks, int chunks, const char *list,
                    const char *text) {
    const lt_model_spec spec = spec_of("qwen3", 4, 64);
    lt_stages s;
    assert_int_equal(lt_stages_open(&s, &spec, kind, ranks, chunks, 64, list), LT_ERR_ARG);
    if (strstr(lt_error_message(), text) == NULL) {
        fail_msg("'%s' does not say '%s'", lt_error_message(), text);
    }
}

static void impossible_stages_are_refused(void **state) {
    (void)state;
    refused(LT_SCHEDULE_ONE_F_ONE_B, 5, 0, "",
            "pp=5 stages, and the model has 4 layers; pp=4 fits");
    refused(LT_SCHEDULE_INTERLEAVED, 3, 2, "",
            "pp=3 with 2 chunks a rank (schedule interleaved) is 6 stages, and the model has 4 "
            "layers; pp=2 fits");
    refused(LT_SCHEDULE_INTERLEAVED, 3, 3, "", "4 layers; pp=3 fits with mesh.schedule 1f1b");
    refused(LT_SCHEDULE_INTERLEAVED, 2, 5, "", "10 stages, and the model has 4 layers; pp=2 fits");
    refused(LT_SCHEDULE_INTERLEAVED, 5, 4, "", "4 layers; pp=4 fits with mesh.schedule 1f1b");
    refused(LT_SCHEDULE_ONE_F_ONE_B, 2, 2, "",
            "schedule 1f1b has one chunk a rank; 2 were asked for: interleaved has as many");
    refused(LT_SCHEDULE_ONE_F_ONE_B, 2, 0, "1,2",
            "stages '1,2': 2 stages of together 3 layers; the mesh has 2 stages");
    refused(LT_SCHEDULE_ONE_F_ONE_B, 2, 0, "1,x", "'x' is not a number of layers");
    refused(LT_SCHEDULE_ONE_F_ONE_B, 2, 0, "0,4", "'0,4' is not a number of layers");
    refused(LT_SCHEDULE_ONE_F_ONE_B, 2, 0, "1,3,", "is not a number of layers");
    refused(LT_SCHEDULE_ONE_F_ONE_B, 2, 0, "1,1,2", "more than the 2 stages");
    refused(LT_SCHEDULE_ONE_F_ONE_B, 2, 0, "1,9", "more than the model's 4 layers");
}

/* A rank of a pipeline holds what the passes of its chunks hold, each with as many sets of
 * activations as the schedule keeps at once, and buffers for messages besides their scratch
 * memory. */
static void memory_is_that_of_the_chunks(void **state) {
    const lt_model_spec spec = spec_of("smollm3", 8, 512);
    const lt_pass_options options = {.batch = 2, .seq = 32, .train = true};
    const int64_t micros = 4;
    lt_stages s;
    lt_schedule t;
    (void)state;
    assert_int_equal(lt_stages_open(&s, &spec, LT_SCHEDULE_INTERLEAVED, 2, 2, 32, ""), LT_OK);
    const lt_schedule_shape shape = {LT_SCHEDULE_INTERLEAVED, 2, 2, micros};
    assert_int_equal(lt_schedule_open(&t, &shape), LT_OK);
    for (int rank = 0; rank < 2; rank++) {
        lt_pass_memory all, sum = {0};
        assert_int_equal(lt_pipeline_measure(&all, &spec, LT_F32, &options, &s, rank, &micros, 1),
                         LT_OK);
        for (int c = 0; c < 2; c++) {
            lt_pass_options o = options;
            lt_pass_memory m;
            lt_stages_layers(&s, rank, c, &o.first_layer, &o.end_layer);
            o.n_sets = t.rows[rank].n_sets[c];
            assert_int_equal(lt_pass_measure(&m, &spec, LT_F32, &o), LT_OK);
            sum.activations_bytes += m.activations_bytes;
            sum.gradients_bytes += m.gradients_bytes;
            sum.logits_bytes += m.logits_bytes;
            sum.scratch_bytes += m.scratch_bytes;
            sum.host_bytes += m.host_bytes;
        }
        assert_true(sum.host_bytes > 0);
        assert_int_equal(all.activations_bytes, sum.activations_bytes);
        assert_int_equal(all.gradients_bytes, sum.gradients_bytes);
        assert_int_equal(all.logits_bytes, sum.logits_bytes);
        assert_int_equal(all.host_bytes, sum.host_bytes);
        assert_true(all.scratch_bytes > sum.scratch_bytes);
    }
    lt_schedule_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_other_cut_is_better), cmocka_unit_test(the_head_counts_as_work),
        cmocka_unit_test(ranks_hold_their_stages), cmocka_unit_test(impossible_stages_are_refused),
        cmocka_unit_test(memory_is_that_of_the_chunks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
