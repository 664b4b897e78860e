/* `lateen convert` in this process. The weights that it writes are the numbers of llama2.c's file,
 * rounded to nearest, ties to even, as IEEE 754 defines it; merged adapters are those that PEFT's
 * merge_and_unload gives (tests/golden/sft). Shards keep to their limit, and their index names what
 * is in them. */
#include "unit/cli/verb_run.h"

#include <math.h>

#include "base/error.h"
#include "base/file.h"
#include "model/files/safetensors.h"
#include "unit/scratch_folder.h"

int lt_verb_convert(int argc, char **argv);

#define STORIES "tests/golden/stories260k/stories260K.bin"
#define SFT     "tests/golden/sft"

/* llama2.c's file: seven int32, then the embedding, then the norms before attention. */
enum { HEAD_BYTES = 28, VOCAB = 512, WIDTH = 64, LAYERS = 5 };

static const char *in_folder(const char *name) {
    static char paths[4][LT_PATH_BYTES];
    static int next;
    char *path = paths[next = (next + 1) % 4];
    assert_int_equal(lt_path_join(path, folder, name), LT_OK);
    return path;
}

static ran convert(const char *from, const char *to, const char *more) {
    char words[3 * LT_PATH_BYTES];
    (void)snprintf(words, sizeof words, "convert %s %s %s", from, in_folder(to), more);
    return run_verb(lt_verb_convert, words);
}

static void converts(const char *from, const char *to, const char *more, const char *says) {
    ran r = convert(from, to, more);
    if (r.status != LT_EXIT_DONE || strstr(r.err, says) == NULL) {
        fail_msg("%s to %s %s: status %d, without '%s': %s", from, to, more, r.status, says, r.err);
    }
    ran_close(&r);
}

static void refuses(const char *from, const char *to, const char *more, int status,
                    const char *why) {
    ran r = convert(from, to, more);
    if (r.status != status || strstr(r.err, why) == NULL) {
        fail_msg("%s to %s %s: status %d, not %d with '%s': %s", from, to, more, r.status, status,
                 why, r.err);
    }
    ran_close(&r);
    assert_false(lt_file_has_name(in_folder(to)));
}

static void open_weights(lt_safetensors *s, const char *path) {
    if (lt_safetensors_open(s, path) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

static double value_at(const lt_safetensor *t, size_t i) {
    uint32_t bits = 0;
    uint16_t half;
    float x;
    if (t->dtype == LT_F32) {
        memcpy(&bits, t->data + 4 * i, 4);
    } else {
        memcpy(&half, t->data + 2 * i, 2);
        if (t->dtype == LT_F16) {
            const int exponent = half >> 10 & 31, fraction = half & 1023;
            const double size = exponent == 0 ? ldexp(fraction, -24)
                                              : ldexp(1024 + fraction, exponent - 25);
            return half >> 15 ? -size : size;
        }
        bits = (uint32_t)half << 16;
    }
    memcpy(&x, &bits, 4);
    return (double)x;
}

/* The nearest number with so many bits of significand; exponents below the least one share its
 * spacing. rint() rounds ties to even. */
static double nearest(double x, int bits, int least) {
    int exponent;
    double spacing;
    if (x == 0) {
        return 0;
    }
    exponent = ilogb(x) < least ? least : ilogb(x);
    spacing = ldexp(1, exponent - bits + 1);
    return rint(x / spacing) * spacing;
}

static void each_weight_is_rounded_to_nearest(void **state) {
    static const struct {
        const char *option, *to;
        lt_dtype dtype;
        int bits, least;
    } types[] = {{"--dtype fp32", "fp32", LT_F32, 24, -126},
                 {"--dtype fp16", "fp16", LT_F16, 11, -14},
                 {"", "bf16", LT_BF16, 8, -126}}; /* The default. */
    char *raw = NULL;
    size_t bytes;
    (void)state;
    assert_int_equal(lt_file_read(&raw, &bytes, STORIES, 1 << 21), LT_OK);
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        char path[LT_PATH_BYTES];
        lt_safetensors s;
        size_t rounded = 0;
        converts(STORIES, types[k].to, types[k].option, "has no tokenizer, so ");
        (void)snprintf(path, sizeof path, "%s/model.safetensors", in_folder(types[k].to));
        open_weights(&s, path);
        for (int norm = -1; norm < LAYERS; norm++) {
            char name[64] = "model.embed_tokens.weight";
            const size_t n = norm < 0 ? VOCAB * WIDTH : WIDTH;
            const size_t from = norm < 0 ? 0 : (size_t)(VOCAB + norm) * WIDTH;
            const lt_safetensor *t;
            if (norm >= 0) {
                (void)snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", norm);
            }
            t = lt_safetensors_find(&s, name);
            assert_non_null(t);
            assert_int_equal(t->dtype, types[k].dtype);
            for (size_t i = 0; i < n; i++) {
                float x;
                memcpy(&x, raw + HEAD_BYTES + 4 * (from + i), 4);
                const double want = nearest((double)x, types[k].bits, types[k].least);
                rounded += want != (double)x;
                if (value_at(t, i) != want) {
                    fail_msg("%s %s[%zu]: %.9g is written as %.9g, not %.9g", types[k].to, name, i,
                             (double)x, value_at(t, i), want);
                }
            }
        }
        assert_true((rounded == 0) == (k == 0));
        lt_safetensors_close(&s);
    }
    free(raw);
}

/* A folder's weights and tokenizer go into a GGUF and out of it again. */
static void a_gguf_and_back(void **state) {
    char from[LT_PATH_BYTES];
    lt_safetensors is, want;
    ran r;
    (void)state;
    r = convert(SFT, "m.gguf", "");
    assert_int_equal(r.status, LT_EXIT_DONE);
    assert_null(strstr(r.err, "has no tokenizer"));
    ran_close(&r);
    converts(STORIES, "s.gguf", "", "has no tokenizer, so ");
    (void)snprintf(from, sizeof from, "%s", in_folder("s.gguf"));
    converts(from, "again.gguf", "--dtype fp32", "has no tokenizer, so ");
    r = convert(STORIES, "t.gguf", "--tokenizer tests/golden/stories260k/tok512.bin");
    assert_null(strstr(r.err, "has no tokenizer"));
    ran_close(&r);
    (void)snprintf(from, sizeof from, "%s", in_folder("t.gguf"));
    converts(from, "t", "", "llama, 0.26M parameters");
    assert_true(lt_file_exists(in_folder("t/tokenizer.json")));
    (void)snprintf(from, sizeof from, "%s", in_folder("m.gguf"));
    converts(from, "m", "", "written to");
    assert_true(lt_file_exists(in_folder("m/tokenizer.json")));
    open_weights(&is, in_folder("m/model.safetensors"));
    open_weights(&want, SFT "/model.safetensors");
    assert_int_equal(is.n_tensors, want.n_tensors);
    for (size_t k = 0; k < want.n_tensors; k++) {
        const lt_safetensor *w = &want.tensors[k], *t = lt_safetensors_find(&is, w->name);
        assert_true(t != NULL && t->bytes == w->bytes && t->dtype == w->dtype);
        assert_memory_equal(t->data, w->data, w->bytes);
    }
    lt_safetensors_close(&is);
    lt_safetensors_close(&want);
}

/* A megabyte holds all but a part of the fp32 weights, which then are in two files. */
static void shards_keep_to_their_limit(void **state) {
    char path[LT_PATH_BYTES], *text = NULL;
    const char *file;
    json_t *index, *name, *map;
    size_t bytes, n_tensors = 0, total = 0;
    lt_safetensors s[2];
    (void)state;
    converts(STORIES, "shards",
             "--dtype fp32 --shard-gb 0.001 --tokenizer "
             "tests/golden/stories260k/tok512.bin",
             "llama, 0.26M parameters");
    assert_true(lt_file_exists(in_folder("shards/tokenizer.json")));
    assert_false(lt_file_exists(in_folder("shards/tokenizer.gguf.tmp")));
    assert_false(lt_file_exists(in_folder("shards/model.safetensors")));
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/model-0000%zu-of-00002.safetensors",
                       in_folder("shards"), i + 1);
        open_weights(&s[i], path);
        n_tensors += s[i].n_tensors;
        bytes = 0;
        for (size_t k = 0; k < s[i].n_tensors; k++) {
            bytes += s[i].tensors[k].bytes;
        }
        assert_true(bytes > 0 && bytes <= 1000000);
        total += bytes;
    }
    assert_int_equal(
        lt_file_read(&text, &bytes, in_folder("shards/model.safetensors.index.json"), 1 << 20),
        LT_OK);
    index = json_loads(text, 0, NULL);
    map = json_object_get(index, "weight_map");
    assert_int_equal(json_object_size(map), n_tensors);
    near_at(json_object_get(index, "metadata"), "total_size", (double)total);
    json_object_foreach(map, file, name) {
        const char *in = json_string_value(name);
        assert_non_null(in);
        assert_non_null(lt_safetensors_find(&s[in[10] - '1'], file));
    }
    json_decref(index);
    free(text);
    lt_safetensors_close(&s[0]);
    lt_safetensors_close(&s[1]);
}

/* Each tensor of one of PEFT's files is in the folder, within the rounding of sums in fp32. */
static void equals(const char *name, const char *golden, double least) {
    char path[LT_PATH_BYTES];
    lt_safetensors is, want;
    double most = 0;
    (void)snprintf(path, sizeof path, "%s/model.safetensors", in_folder(name));
    open_weights(&is, path);
    open_weights(&want, golden);
    for (size_t k = 0; k < want.n_tensors; k++) {
        const lt_safetensor *w = &want.tensors[k], *t = lt_safetensors_find(&is, w->name);
        if (t == NULL || t->dtype != LT_F32 || t->bytes != w->bytes) {
            fail_msg("%s: %s", path, w->name);
        }
        for (size_t i = 0; i < w->bytes / 4; i++) {
            most = fmax(most, fabs(value_at(t, i) - value_at(w, i)));
        }
    }
    if (!(most <= least)) {
        fail_msg("%s is up to %.3g from %s", name, most, golden);
    }
    lt_safetensors_close(&is);
    lt_safetensors_close(&want);
}

static void adapters_are_merged_as_peft_merges_them(void **state) {
    static const struct {
        const char *from, *more, *golden;
    } cases[] = {{SFT "/adapter-all-end", "", SFT "/merged.safetensors"},
                 {SFT "/adapter-all-end.gguf", "--base " SFT, SFT "/merged.safetensors"},
                 {SFT "/adapter-dora-end", "--base " SFT, SFT "/merged-dora.safetensors"},
                 {SFT "/adapter-top-end", "", SFT "/merged-top.safetensors"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char to[32], more[128];
        (void)snprintf(to, sizeof to, "merged-%zu", i);
        (void)snprintf(more, sizeof more, "--dtype fp32 %s", cases[i].more);
        converts(cases[i].from, to, more, " merged into " SFT);
        equals(to, cases[i].golden, 1e-6);
        (void)snprintf(to, sizeof to, "merged-%zu/tokenizer.json", i);
        assert_true(lt_file_exists(in_folder(to))); /* The model's own. */
    }
}

/* Adapters that are converted to adapters keep their numbers. PEFT's file has other names for them
 * than a GGUF, so this goes to a GGUF and back. */
static void adapters_keep_their_numbers(void **state) {
    lt_safetensors is, want;
    const char *gguf;
    (void)state;
    converts(SFT "/adapter-all-end", "a.gguf", "--adapter",
             "adapters of rank 4 beside 14 linear layers of " SFT);
    gguf = in_folder("a.gguf");
    converts(gguf, "back", "--adapter --base " SFT, "adapters of rank 4 beside 14 linear layers");
    open_weights(&is, in_folder("back/adapter_model.safetensors"));
    open_weights(&want, SFT "/adapter-all-end/adapter_model.safetensors");
    assert_int_equal(is.n_tensors, want.n_tensors);
    for (size_t k = 0; k < want.n_tensors; k++) {
        const lt_safetensor *w = &want.tensors[k], *t = lt_safetensors_find(&is, w->name);
        assert_true(t != NULL && t->bytes == w->bytes && t->dtype == w->dtype);
        assert_memory_equal(t->data, w->data, w->bytes);
    }
    lt_safetensors_close(&is);
    lt_safetensors_close(&want);
}

static void what_is_refused(void **state) {
    static const char *const suffixes[] = {".safetensors", ".bin",  ".pt",   ".pth",
                                           ".onnx",        ".json", ".ggml", ".GGUF"};
    char name[32];
    ran r;
    (void)state;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        char why[64];
        (void)snprintf(name, sizeof name, "x%s", suffixes[i]);
        (void)snprintf(why, sizeof why, "whose name must not end in %s, or", suffixes[i]);
        refuses(STORIES, name, "", LT_EXIT_USAGE, why);
    }
    refuses(SFT "/adapter-all-end.gguf", "no", "", LT_EXIT_USAGE, "does not name its model");
    refuses(SFT, "no", "--base " SFT, LT_EXIT_USAGE, "--base: " SFT " holds no adapters");
    refuses(SFT, "no", "--adapter", LT_EXIT_USAGE, "--adapter: " SFT " holds no adapters");
    refuses("/no/such", "no", "--adapter", LT_EXIT_FAILED, "/no/such: no such file or folder");
    refuses("/no/such", "no", "--base " SFT, LT_EXIT_FAILED, "/no/such: no such file or folder");
    refuses(STORIES, "no.gguf", "--shard-gb 1", LT_EXIT_USAGE, "--shard-gb 1 has no effect");
    refuses(SFT "/adapter-all-end", "no", "--adapter --shard-gb 1", LT_EXIT_USAGE,
            "--shard-gb 1 has no effect");
    refuses(SFT "/adapter-all-end", "no", "--adapter --tokenizer t", LT_EXIT_USAGE,
            "--tokenizer t has no effect");
    refuses(SFT "/adapter-all-end", "no", "--adapter --dtype fp16", LT_EXIT_USAGE,
            "--dtype fp16 has no effect");
    refuses(STORIES, "no/x.gguf", "", LT_EXIT_FAILED, "no is not a folder");
    refuses(STORIES, "no", "--tokenizer /no/such.json", LT_EXIT_FAILED, "/no/such.json");
    run_refused(lt_verb_convert, "convert a", LT_EXIT_USAGE, "convert takes a model and a folder");
    r = convert(STORIES, "", ""); /* The folder itself, which is there. */
    assert_int_equal(r.status, LT_EXIT_USAGE);
    assert_non_null(strstr(r.err, "exists already"));
    ran_close(&r);
}

static void copy_file(const char *from, const char *to, char last) {
    char *text = NULL;
    size_t bytes;
    assert_int_equal(lt_file_read(&text, &bytes, from, 1 << 20), LT_OK);
    if (last != '\0') {
        text[bytes - 1] = last;
    }
    assert_int_equal(lt_file_write_atomic(in_folder(to), text, bytes), LT_OK);
    free(text);
}

/* The adapters' own tokenizer is taken before that of their model; a base that is not here is
 * named. */
static void the_tokenizer_of_adapters(void **state) {
    static const char config[] = "{\"peft_type\": \"LORA\", \"base_model_name_or_path\": "
                                 "\"no/such\", \"r\": 4, \"target_modules\": [\"q_proj\"]}";
    char *text = NULL, from[64];
    size_t bytes;
    (void)state;
    assert_int_equal(lt_file_make_dirs(in_folder("mine")), LT_OK);
    copy_file(SFT "/adapter-all-end/adapter_config.json", "mine/adapter_config.json", '\0');
    copy_file(SFT "/adapter-all-end/adapter_model.safetensors", "mine/adapter_model.safetensors",
              '\0');
    copy_file(SFT "/tokenizer.json", "mine/tokenizer.json", ' '); /* Not the last line's end. */
    (void)snprintf(from, sizeof from, "%s/mine", folder);
    converts(from, "mine-merged", "", "14 adapters merged into " SFT);
    assert_int_equal(lt_file_read(&text, &bytes, in_folder("mine-merged/tokenizer.json"), 1 << 20),
                     LT_OK);
    assert_true(bytes > 0 && text[bytes - 1] == ' ');
    free(text);
    assert_int_equal(
        lt_file_write_atomic(in_folder("mine/adapter_config.json"), config, strlen(config)), LT_OK);
    refuses(from, "no", "", LT_EXIT_FAILED,
            "is an adapter of the model 'no/such', which is not here: name it with --base");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_weight_is_rounded_to_nearest),
        cmocka_unit_test(a_gguf_and_back),
        cmocka_unit_test(shards_keep_to_their_limit),
        cmocka_unit_test(adapters_are_merged_as_peft_merges_them),
        cmocka_unit_test(adapters_keep_their_numbers),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(the_tokenizer_of_adapters),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
