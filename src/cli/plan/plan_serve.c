/* plan_serve.c: `lateen plan serve`: predicts the throughput of a node as an inference server. */
#include <stdio.h>

#include <jansson.h>

#include "base/error.h"
#include "cli/plan/plan_verbs.h"
#include "plan/plan.h"

#define SERVE_OPTIONS(X)                                                                           \
    X(STR, model, "model", "", 1, 0, "name|path",                                                  \
      "recipes/models name, Hugging Face folder or config.json")                                   \
    X(STR, cluster, "cluster", "", 1, 0, "name|path",                                              \
      "recipes/clusters name, YAML file, or kind of GPU: one node of them")                        \
    X(I64, tp, "tp", "1", 1, 1024, "", "GPUs that share one copy of the model")                    \
    X(I64, prompt, "prompt", "1000", 1, 1e7, "tokens", "per request")                              \
    X(I64, output, "output", "1000", 1, 1e7, "tokens", "per request")                              \
    X(I64, batch, "batch", "0", 0, 1e6, "requests",                                                \
      "at once (0: as many as the KV cache holds, at most 1,024)")                                 \
    X(ENUM, precision, "precision", "bf16", 0, 0, "fp32|bf16|fp8|mxfp8|nvfp4",                     \
      "of weights and products")                                                                   \
    X(ENUM, kv, "kv", "bf16", 0, 0, "bf16|fp8", "of the KV cache")                                 \
    X(BOOL, json, "json", "false", 0, 0, "", "print JSON")

typedef struct {
    SERVE_OPTIONS(LT_OPTION_FIELD)
} serve_options;
#define LT_OPTION_STRUCT serve_options
static const lt_option rows[] = {SERVE_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("plan serve", rows);

static void print_text(const lt_plan_model *m, const lt_plan_cluster *c, const serve_options *o,
                       const lt_plan_serve *r) {
    printf("%s on %lld x %s, %lld tokens in, %lld out: ", m->name, (long long)o->tp, c->gpu.name,
           (long long)o->prompt, (long long)o->output);
    if (!r->fits) {
        printf("does not fit: %.1f GB of weights, %lld x %.0f GiB of memory.\n",
               r->weight_bytes / 1e9, (long long)o->tp, c->gpu.memory_bytes / 1073741824.0);
        return;
    }
    printf("fits.\n\n  %.0f output tokens/s at %lld requests at once (%.0f with the prompts)\n",
           r->output_tokens_s, (long long)r->batch, r->total_tokens_s);
    printf("  %.1f ms a token then; alone %.0f tokens/s, first token after %.0f ms\n",
           1e3 * r->token_s, r->stream_tokens_s, 1e3 * r->first_token_s);
    printf("  weights %.1f GB, KV cache %.0f k tokens (%.1f KB each)\n", r->weight_bytes / 1e9,
           r->kv_tokens / 1e3, r->kv_bytes_token / 1e3);
    if (c->gpus >= 2 * o->tp) {
        printf("  the whole cluster: %lld copies, %.0f output tokens/s\n",
               (long long)(c->gpus / o->tp), r->output_tokens_s * (double)(c->gpus / o->tp));
    }
}

int lt_plan_serve_verb(int argc, char **argv) {
    serve_options o;
    lt_plan_model m;
    lt_plan_cluster c;
    lt_plan_serve r;
    lt_plan_serve_query q;
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;

    if (!lt_verb_parse(
            &table, &o, argc, argv,
            "plan serve --model llama3-8b --cluster h100-node [--tp 1] [options]",
            "Predict a server's throughput and latency from its prefill and decode rooflines.",
            NULL, 0, &n, &status)) {
        return status;
    }
    err = o.model[0] != '\0' && o.cluster[0] != '\0'
              ? lt_plan_model_load(&m, o.model)
              : lt_error_set(LT_ERR_ARG, "plan serve needs %s: a name under recipes/%s or a file",
                             o.model[0] == '\0' ? "--model" : "--cluster",
                             o.model[0] == '\0' ? "models" : "clusters");
    if (err == LT_OK) {
        err = lt_plan_cluster_load(&c, o.cluster);
    }
    if (err == LT_OK && c.gpu.peak_tflops[o.precision] <= 0) {
        err = lt_error_set(LT_ERR_ARG, "%s has no units for this precision", c.gpu.name);
    }
    if (err == LT_OK && o.tp > c.gpus) {
        err = lt_error_set(LT_ERR_ARG, "--tp %lld contradicts cluster %s of %lld GPUs",
                           (long long)o.tp, c.name, (long long)c.gpus);
    }
    q = (lt_plan_serve_query){.tp = (int)o.tp,
                              .prompt = o.prompt,
                              .output = o.output,
                              .batch = o.batch,
                              .precision = (lt_plan_precision)o.precision,
                              .kv_bytes = o.kv == 1 ? 1 : 2};
    if (err == LT_OK) {
        err = lt_plan_serve_check(&m, &q);
    }
    if (err != LT_OK) {
        return lt_verb_fail(err);
    }
    r = lt_plan_serve_estimate(&m, &c, &q);
    if (!o.json) {
        print_text(&m, &c, &o, &r);
        return LT_EXIT_DONE;
    }
    {
        json_t *root = json_pack(
            "{s:b,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:I}", "fits", r.fits, "weight_bytes",
            r.weight_bytes, "kv_tokens", r.kv_tokens, "kv_bytes_token", r.kv_bytes_token,
            "first_token_s", r.first_token_s, "token_s", r.token_s, "output_tokens_s",
            r.output_tokens_s, "total_tokens_s", r.total_tokens_s, "stream_tokens_s",
            r.stream_tokens_s, "batch", (json_int_t)r.batch);
        json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
        putchar('\n');
        json_decref(root);
    }
    return LT_EXIT_DONE;
}
