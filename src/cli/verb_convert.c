/* verb_convert.c: `lateen convert SRC DST`: any weights Lateen reads into a Hugging Face folder that transformers loads, or a .gguf. */
#include <stdio.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/gguf_out.h"
#include "cli/verb.h"
#include "lateen/model.h"

#define CONVERT_OPTIONS(X)                                                                         \
    X(ENUM, dtype, "dtype", "bf16", 0, 0, "fp32|bf16|fp16", "type of the weights written")         \
    X(STR, tokenizer, "tokenizer", "", 0, 0, "FILE",                                               \
      "tokenizer to put into a GGUF; empty: the model's own")                                      \
    X(F64, shard_gb, "shard-gb", "5", 0.001, 1e6, "GB", "largest shard")

typedef struct {
    CONVERT_OPTIONS(LT_OPTION_FIELD)
} convert_options;
#define LT_OPTION_STRUCT convert_options
static const lt_option rows[] = {CONVERT_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_convert_options = LT_OPTION_TABLE("convert", rows);

/* tokenizer files of a Hugging Face folder travel with the weights. */
static lt_err copy_tokenizer(const char *from, const char *to) {
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                        "tokenizer.model", "special_tokens_map.json"};
    for (size_t i = 0; lt_file_is_dir(from) && i < sizeof names / sizeof *names; i++) {
        char src[LT_PATH_BYTES], dst[LT_PATH_BYTES];
        LT_TRY(lt_path_join(src, from, names[i]));
        LT_TRY(lt_path_join(dst, to, names[i]));
        if (lt_file_exists(src)) {
            LT_TRY(lt_file_copy(src, dst, (size_t)1 << 30));
        }
    }
    return LT_OK;
}

static lt_err run(const convert_options *o, const char *from, const char *to) {
    static const lt_dtype dtypes[] = {LT_F32, LT_BF16, LT_F16};
    static const lt_gguf_mix mixes[] = {LT_GGUF_MIX_F32, LT_GGUF_MIX_BF16, LT_GGUF_MIX_F16};
    lt_err err = LT_OK;
    lt_model *m = NULL;

    if (lt_file_exists(to)) {
        LT_FAIL(LT_ERR_ARG, "%s exists already; convert writes a new folder or file", to);
    }
    LT_TRY_DONE(lt_model_open(&m, from, NULL));
    if (lt_path_has_suffix(to, ".gguf")) {
        LT_TRY_DONE(lt_cli_write_gguf(m, from, o->tokenizer, to, mixes[o->dtype]));
    } else {
        LT_TRY_DONE(lt_model_save(m, to, dtypes[o->dtype], (int64_t)(o->shard_gb * 1e9)));
        LT_TRY_DONE(copy_tokenizer(from, to));
    }
    lt_log_info("%s: %s, %.2fM parameters, written to %s", from,
                lt_family_name(lt_model_get_spec(m)->family),
                (double)lt_model_spec_params(lt_model_get_spec(m)) * 1e-6, to);
done:
    lt_model_close(m);
    return err;
}

int lt_verb_convert(int argc, char **argv);
int lt_verb_convert(int argc, char **argv) {
    static const char usage[] = "convert MODEL FOLDER|FILE.gguf [--dtype bf16]";
    static const char prose[] = "Write a Hugging Face folder, or a GGUF file, from a Hugging Face "
                                "folder, a GGUF or a llama2.c .bin.";
    const char *paths[2];
    convert_options o;
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;

    if (!lt_verb_parse(&lt_verb_convert_options, &o, argc, argv, usage, prose, paths, 2, &n,
                       &status)) {
        return status;
    }
    err = n == 2 ? run(&o, paths[0], paths[1])
                 : lt_error_set(LT_ERR_ARG,
                                "convert takes a model and a folder to write; usage: lateen %s",
                                usage);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
