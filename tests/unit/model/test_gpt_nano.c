/* gpt-nano-sort (minGPT, 85,584 parameters and a separate head, a GPT-2): every intermediate
 * tensor that bbycroft/llm-viz stores of its first block, the outputs of all blocks, the final
 * norm and the logits, against the buffers of acts.h. The stored tensors are F32 of PyTorch: 1e-5
 * of the largest element. */
#include "unit/model/golden.h"

#include "base/file.h"
#include "base/json.h"
#include "lateen/model.h"
#include "model/pass/acts.h"
#include "model/alloc.h"
#include "model/family.h"

#define FOLDER    "tests/golden/gpt-nano-sort/"
#define MAX_FLOAT 16384

/* Decode base64 of little-endian F32 into out; returns the number of floats. */
static int64_t decode(const json_t *tensor, float out[MAX_FLOAT]) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static unsigned char bytes[MAX_FLOAT * 4 + 4];
    const char *text = json_string_value(json_object_get(tensor, "data"));
    size_t n = 0;
    uint32_t bits = 0;
    assert_non_null(text);
    for (size_t i = 0; text[i] != '\0' && text[i] != '='; i++) {
        const char *digit = strchr(digits, text[i]);
        assert_non_null(digit);
        bits = bits << 6 | (uint32_t)(digit - digits);
        if (i % 4 != 0) {
            assert_true(n < sizeof bytes);
            bytes[n++] = (unsigned char)(bits >> (6 - 2 * (i % 4)));
        }
    }
    memcpy(out, bytes, n);
    return (int64_t)(n / 4);
}

static lt_model *load(void) {
    static float values[MAX_FLOAT];
    const lt_family_row *row = lt_family_get(LT_FAMILY_GPT2);
    lt_model_spec spec = row->preset;
    json_t *root = NULL;
    lt_model *m = NULL;
    must(lt_json_load(&root, FOLDER "model.json", (size_t)1 << 24), "model.json");
    spec.n_layers = spec.n_heads = spec.vocab_size = 3;
    spec.width = 48;
    spec.max_seq = 11;
    spec.tied = false;
    lt_model_spec_derive(&spec);
    must(lt_model_alloc(&m, &spec, NULL), "model");
    /* llm-viz counts 85,584, without the head. */
    assert_int_equal(lt_model_spec_params(&spec), 85584 + 3 * 48);
    for (int i = 0; i < m->table.n_params; i++) {
        const lt_param *p = &m->table.params[i];
        for (int j = 0; j < row->n_names; j++) {
            char name[LT_FOREIGN_NAME_BYTES];
            if (row->names[j].kind == p->kind) {
                lt_foreign_name(name, row->names[j].name, p->layer, 0);
                assert_int_equal(decode(json_object_get(root, name), values), p->count);
                /* minGPT keeps (out, in), as we do. */
                lt_model_set(m, p, 0, values, LT_F32, p->count);
            }
        }
    }
    json_decref(root);
    return m;
}

static void check(const json_t *partials, const char *name, const lt_tensor *ours) {
    static float expected[MAX_FLOAT];
    const int64_t n = decode(json_object_get(partials, name), expected);
    double d;
    assert_int_equal(lt_tensor_count(ours), n);
    d = distance(ours->data, expected, n);
    if (!(d <= 1e-5)) {
        fail_msg("%s differs by %.3g of its largest element", name, d);
    }
}

static void every_intermediate(void **state) {
    static float ids[MAX_FLOAT], logits[33 * 3];
    int32_t tokens[33], labels[33] = {0};
    json_t *partials = NULL;
    lt_model *m;
    lt_pass *p = NULL;
    lt_session *s = NULL;
    lt_pass_result r;
    const lt_pass_batch b = {.batch = 3, .seq = 11, .tokens = tokens, .labels = labels};

    (void)state;
    m = load();
    must(lt_json_load(&partials, FOLDER "partials.json", (size_t)1 << 24), "partials.json");
    assert_int_equal(decode(json_object_get(partials, "idx"), ids), 33);
    for (int i = 0; i < 33; i++) {
        tokens[i] = (int32_t)ids[i];
    }
    must(lt_pass_open(&p, m, &(lt_pass_options){.batch = 3, .seq = 11, .train = true}), "pass");
    must(lt_pass_eval(p, &b, &r, NULL), "forward");
    const lt_layer_acts *first = lt_pass_layer_acts(p, 0);
    check(partials, "x", &first->x_in);
    check(partials, "ln1", &first->h1);
    check(partials, "qkv", &first->qkv);
    check(partials, "y", &first->att);
    check(partials, "attnResid", &first->x_mid);
    check(partials, "ln2", &first->h2);
    check(partials, "fc", &first->up);
    check(partials, "gelu", &first->act);
    check(partials, "block0", &lt_pass_layer_acts(p, 1)->x_in);
    check(partials, "block1", &lt_pass_layer_acts(p, 2)->x_in);
    check(partials, "block2", &lt_pass_batch_acts(p)->x_final);
    check(partials, "ln_f", &lt_pass_batch_acts(p)->h_final);
    must(lt_session_open(&s, m, 3, 11), "session");
    for (int i = 0; i < 3; i++) {
        must(lt_session_eval_all(s, i, tokens + 11 * i, 11, logits + 33 * i), "session");
    }
    const lt_tensor view = lt_tensor_1d(logits, LT_F32, 99);
    check(partials, "lm_head", &view);
    lt_session_close(s);
    lt_pass_close(p);
    lt_model_close(m);
    json_decref(partials);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_intermediate)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
