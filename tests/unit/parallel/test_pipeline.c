/* Pipelines with ranks as threads: gradients, losses and weights have the bits of one rank that
 * trains on the same micro-batches, for every schedule that trains, with layers, micro-batches
 * and rows that do not divide evenly; the two parts of a tied embedding's gradient are summed,
 * and differ by the order of sums. */
#include <unistd.h>

#include "comm/call.h"
#include "unit/parallel/ranks.h"

/* The norm is summed rank by rank, and only reported here: nothing is clipped. */
static const ranks_bound same = {0, 0, 1e-12, 0};
#define PLAIN " optim.clip=0"

static const ranks_model llama = {
    "llama", "model.layers=4 model.width=32 model.heads=4 model.kv_heads=2 model.ffn=64 "
             "model.family=llama model.tied=false"};
static const ranks_model deep = {
    "deep", "model.layers=7 model.width=16 model.heads=2 model.kv_heads=1 model.ffn=32 "
            "model.family=llama model.tied=false"};
static const ranks_model small = {"small", "model.layers=2 model.width=8 model.heads=1 "
                                           "model.ffn=8 model.family=llama model.tied=false"};
static const ranks_model gpt2 = {
    "gpt2", "model.layers=4 model.width=32 model.heads=4 model.ffn=64 model.family=gpt2"};
static const ranks_model moe = {
    "moe", "model.layers=3 model.width=32 model.heads=4 model.kv_heads=2 model.ffn=32 "
           "model.family=mixtral model.experts=4 model.top_k=2 model.aux_coef=0.05"};

static void has_the_bits_of_one_rank(void **state) {
    (void)state;
    ranks_compare(&llama, "batch.size=8 batch.micro=1" PLAIN, "pp=2", 2, &same);
    ranks_compare(&llama, "batch.size=7 batch.micro=2" PLAIN, "pp=3", 3, &same);
    ranks_compare(&llama, "batch.size=6 batch.micro=1 model.dtype=bf16" PLAIN, "pp=4", 4, &same);
    ranks_compare(&llama, "batch.size=1 batch.micro=1" PLAIN, "pp=4", 4, &same);
    ranks_compare(&moe, "batch.size=5 batch.micro=1" PLAIN, "pp=3", 3, &same);
    ranks_compare(&moe, "batch.size=6 batch.micro=2 model.dtype=bf16" PLAIN, "pp=2", 2, &same);
    /* More messages than may be in flight at once. */
    ranks_compare(&small, "batch.size=300 batch.micro=1 steps=2 mesh.schedule=gpipe" PLAIN, "pp=2",
                  2, &same);
    ranks_compare(&llama, "steps=50 batch.size=4 batch.micro=1" PLAIN, "pp=2", 2, &same);
}

static void every_schedule(void **state) {
    (void)state;
    ranks_compare(&deep, "batch.size=9 batch.micro=2 mesh.schedule=gpipe" PLAIN, "pp=3", 3, &same);
    ranks_compare(&deep, "batch.size=8 batch.micro=1 mesh.schedule=interleaved" PLAIN, "pp=2", 2,
                  &same);
    ranks_compare(&deep, "batch.size=7 batch.micro=1 mesh.schedule=interleaved mesh.chunks=3" PLAIN,
                  "pp=2", 2, &same);
    ranks_compare(&deep,
                  "batch.size=8 batch.micro=2 mesh.schedule=interleaved mesh.stages=1,2,1,1,1,1"
                  " model.recompute=full" PLAIN,
                  "pp=3", 3, &same);
    ranks_compare(&deep, "batch.size=4 batch.micro=1 mesh.stages=2,5" PLAIN, "pp=2", 2, &same);
    ranks_compare(&deep, "batch.size=8 batch.micro=1 batch.ramp=4@0,6@8" PLAIN, "pp=2", 2, &same);
}

/* Schedules that defer gradients of weights. */
static void zero_bubble(void **state) {
    (void)state;
    ranks_compare(&deep, "batch.size=9 batch.micro=2 mesh.schedule=zb-h1" PLAIN, "pp=3", 3, &same);
    ranks_compare(&deep, "batch.size=8 batch.micro=1 mesh.schedule=zbv" PLAIN, "pp=2", 2, &same);
    ranks_compare(&deep, "batch.size=8 batch.micro=1 mesh.schedule=zbv model.dtype=bf16" PLAIN,
                  "pp=3", 3, &same);
    ranks_compare(&deep, "batch.size=7 batch.micro=1 mesh.schedule=v-half" PLAIN, "pp=3", 3, &same);
    ranks_compare(&deep,
                  "batch.size=8 batch.micro=2 mesh.schedule=zb-h1 model.recompute=selective" PLAIN,
                  "pp=2", 2, &same);
    ranks_compare(&deep, "batch.size=8 batch.micro=2 mesh.schedule=zbv model.recompute=full" PLAIN,
                  "pp=2", 2, &same);
    ranks_compare(&moe, "batch.size=5 batch.micro=1 mesh.schedule=zb-h1" PLAIN, "pp=3", 3, &same);
    ranks_compare(&gpt2, "batch.size=6 batch.micro=1 mesh.schedule=zb-h1", "pp=2", 2, &ranks_f32);
    ranks_compare(&gpt2, "batch.size=6 batch.micro=1 mesh.schedule=zbv", "pp=2", 2, &ranks_f32);
}

static void tied_embeddings(void **state) {
    (void)state;
    ranks_compare(&gpt2, "batch.size=8 batch.micro=2", "pp=2", 2, &ranks_f32);
    ranks_compare(&gpt2, "batch.size=6 batch.micro=1 mesh.schedule=interleaved", "pp=2", 2,
                  &ranks_f32);
    ranks_compare(&gpt2, "batch.size=6 batch.micro=1 model.dtype=bf16", "pp=3", 3, &ranks_bf16);
}

static void beside_other_axes(void **state) {
    (void)state;
    ranks_compare(&llama, "batch.size=4 batch.micro=1", "pp=2,cp=2", 4, &ranks_f32);
    ranks_compare(&llama, "batch.size=12 batch.micro=2", "pp=2,dp=2", 4, &ranks_f32);
    ranks_compare(&llama, "batch.size=8 batch.micro=2 optim.kind=muon" PLAIN, "pp=2", 2, &same);
    ranks_compare(&gpt2, "batch.size=8 batch.micro=1 mesh.schedule=gpipe", "pp=2,dp=2", 4,
                  &ranks_f32);
}

/* ---- Messages that are copied late ---- */

/* A message is copied from the sender's buffer at least a millisecond after it was sent. In this
 * time a rank computes dozens of operations of these models, so a buffer that is reused too early
 * changes the message. The worker looks at all its calls again, because their state may have
 * changed meanwhile. */
static lt_advance advance_late(lt_call *call) {
    pthread_mutex_t *lock = call->group->comm->lock;
    if (call->kind == LT_CALL_RECV) {
        (void)pthread_mutex_unlock(lock);
        (void)usleep(1000);
        (void)pthread_mutex_lock(lock);
        call->phase ^= 1; /* Progress. */
    }
    return lt_transport_thread.advance(call);
}

static void take_late(lt_comm *c) {
    static lt_transport late;
    (void)pthread_mutex_lock(c->lock); /* The lock of all ranks. */
    late = lt_transport_thread;
    late.advance = advance_late;
    c->transport = &late;
    (void)pthread_mutex_unlock(c->lock);
}

/* A buffer is not written again before its message has left: gradients for the previous stage,
 * and what an evaluation sends. */
static void buffers_wait_for_their_messages(void **state) {
    (void)state;
    ranks_prepare = take_late;
    ranks_compare(&small, "steps=2 batch.size=4 batch.micro=1" PLAIN, "pp=2", 2, &same);
    ranks_compare(&llama, "steps=1 batch.size=4 batch.micro=1 mesh.schedule=interleaved" PLAIN,
                  "pp=2", 2, &same);
    ranks_prepare = NULL;
}

/* Rows of a validation pass through the stages, one batch after the other. */
static void validation_passes_through_the_stages(void **state) {
    static const char *const chunks[] = {"", " mesh.schedule=interleaved"};
    double losses[3] = {0};
    (void)state;
    for (int i = 0; i < 3; i++) {
        char out[32], options[512];
        ranks_result r = {0};
        json_t *rows;
        (void)snprintf(out, sizeof out, "valid-%d", i);
        (void)snprintf(options, sizeof options,
                       "%s steps=2 batch.size=4 batch.micro=1 data.val_fraction=0.03"
                       " eval.every=1%s" PLAIN,
                       llama.options, i > 0 ? chunks[i - 1] : "");
        ranks_prepare = take_late;
        must(ranks_try(&r, out, options, i > 0 ? "pp=2" : NULL, i > 0 ? 2 : 1, true), options);
        ranks_prepare = NULL;
        rows = run_lines(out, "eval");
        assert_true(json_array_size(rows) > 0);
        losses[i] = json_real_value(json_object_get(json_array_get(rows, 0), "loss"));
        json_decref(rows);
        ranks_result_free(&r);
    }
    assert_true(losses[0] > 0 && losses[1] == losses[0] && losses[2] == losses[0]);
}

/* Saved on one mesh and resumed on another: the result is that of an uninterrupted run. */
static void resumes_on_another_mesh(void **state) {
    static const struct {
        const char *mesh, *options;
        int n_ranks;
    } ways[] = {{"pp=3", "", 3},
                {NULL, "", 1},
                {"pp=2", "mesh.schedule=interleaved", 2},
                {"pp=4", "mesh.schedule=gpipe", 4}};
    ranks_result whole = {0};
    char all[512];
    (void)state;
    (void)snprintf(all, sizeof all, "%s batch.size=5 batch.micro=1 steps=8" PLAIN, llama.options);
    must(ranks_try(&whole, "whole", all, NULL, 1, false), "whole");
    for (int i = 0; i < 4; i++) {
        ranks_result r = {0};
        (void)snprintf(all, sizeof all, "%s batch.size=5 batch.micro=1 steps=%d %s" PLAIN,
                       llama.options, 2 * (i + 1), ways[i].options);
        must(ranks_try(&r, "reshard", all, ways[i].mesh, ways[i].n_ranks, true), "reshard");
        assert_int_equal(r.steps, 2);
        for (int k = 0; k < 2; k++) {
            assert_true(r.losses[k] == whole.losses[2 * i + k]);
        }
        if (i == 3) {
            ranks_tensors(&r, &whole, false, 0, "resharded");
        }
        ranks_result_free(&r);
    }
    ranks_result_free(&whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(has_the_bits_of_one_rank),
                                       cmocka_unit_test(every_schedule),
                                       cmocka_unit_test(zero_bubble),
                                       cmocka_unit_test(tied_embeddings),
                                       cmocka_unit_test(beside_other_axes),
                                       cmocka_unit_test(buffers_wait_for_their_messages),
                                       cmocka_unit_test(validation_passes_through_the_stages),
                                       cmocka_unit_test(resumes_on_another_mesh)};
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
