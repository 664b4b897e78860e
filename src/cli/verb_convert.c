/* verb_convert.c: `lateen convert SRC DST`: converts any weights that Lateen reads, including
 * checkpoints of runs, to a Hugging Face folder that transformers loads, or to a .gguf. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/aside.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/platform/copying.h"
#include "cli/gguf_out.h"
#include "cli/opened.h"
#include "cli/verb.h"
#include "data/tokenizer/bring.h"
#include "data/tokenizer/gguf_tokenizer.h"
#include "data/tokenizer/save.h"
#include "lateen/model.h"
#include "model/lora/lora_gguf.h"
#include "train/checkpoint/checkpoint.h"

#define CONVERT_OPTIONS(X)                                                                         \
    X(ENUM, dtype, "dtype", "bf16", 0, 0, "fp32|bf16|fp16", "type of the weights written")         \
    X(STR, tokenizer, "tokenizer", "", 0, 0, "FILE",                                               \
      "tokenizer to write beside the weights; empty: the model's own")                             \
    X(STR, base, "base", "", 0, 0, "MODEL",                                                        \
      "adapters: the model that they belong to; empty: the one that a PEFT folder names")          \
    X(BOOL, adapter, "adapter", "false", 0, 0, "",                                                 \
      "write adapters as adapters, a PEFT folder or a .gguf for llama.cpp, not merged")            \
    X(F64, shard_gb, "shard-gb", "5", 0.001, 1e6, "GB", "largest shard")

typedef struct {
    CONVERT_OPTIONS(LT_OPTION_FIELD)
} convert_options;
#define LT_OPTION_STRUCT convert_options
static const lt_option rows[] = {CONVERT_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_convert_options = LT_OPTION_TABLE("convert", rows);

/* Other formats are converted through GGUF metadata, to which each supported format can be
 * converted. */
static lt_err by_gguf(const char *tokenizer, const char *to, int64_t n_ids) {
    char path[LT_PATH_BYTES];
    lt_gguf_out *o = NULL;
    lt_err err = LT_OK;
    LT_TRY(lt_path_join(path, to, "tokenizer.gguf.tmp"));
    LT_TRY_DONE(lt_gguf_out_open(&o));
    LT_TRY_DONE(lt_gguf_put_tokenizer(o, tokenizer, n_ids, NULL, 0));
    LT_TRY_DONE(lt_gguf_out_write(o, path));
    LT_TRY_DONE(lt_tokenizer_save(path, to));
done:
    lt_gguf_out_close(o);
    unlink(path);
    return err;
}

/* Weights are useful without a tokenizer, too, so a tokenizer that cannot be converted is only
 * reported. */
static lt_err bring_tokenizer(const char *model, const char *option, const lt_aside *aside,
                              int64_t n_ids) {
    const char *to = aside->path;
    const char *from = option[0] != '\0' ? option : model;
    lt_err err = LT_ERR_NOT_FOUND;
    if (lt_file_is_dir(from) || lt_path_has_suffix(from, ".json") ||
        lt_path_has_suffix(from, ".gguf")) {
        err = lt_tokenizer_bring(from, to);
    } else if (option[0] != '\0') {
        return by_gguf(option, to, n_ids);
    } else {
        lt_log_warn("%s has no tokenizer, so %s will have none; --tokenizer names one", from,
                    aside->to);
        return LT_OK;
    }
    if (option[0] == '\0' && (err == LT_ERR_UNSUPPORTED || err == LT_ERR_NOT_FOUND)) {
        lt_log_warn("%s will have no tokenizer: %s", aside->to, lt_error_message());
        return LT_OK;
    }
    return err;
}

/* The model that the adapters name, or that is given for them; free it. */
static lt_err base_of(char **out, const char *adapters, const char *given) {
    char *named = NULL;
    if (given[0] != '\0') {
        *out = strdup(given);
        return *out != NULL ? LT_OK : lt_error_set(LT_ERR_OOM, "name of a model");
    }
    if (lt_lora_is_gguf(adapters)) {
        LT_FAIL(LT_ERR_ARG, "%s: a GGUF of adapters does not name its model: name it with --base",
                adapters);
    }
    LT_TRY(lt_lora_base_of(&named, adapters));
    if (!lt_file_exists(named)) {
        const lt_err err = lt_error_set(
            LT_ERR_NOT_FOUND,
            "%s is an adapter of the model '%s', which is not here: name it with --base", adapters,
            named);
        free(named);
        return err;
    }
    *out = named;
    return LT_OK;
}

/* The base with the product of the adapters added to its weights. */
static lt_err open_merged(lt_model **out, const char *adapters, const char *base) {
    lt_err err = LT_OK;
    lt_lora *l = NULL;
    lt_model *m = NULL;
    lt_model_options options = {.dtype = LT_F32};
    LT_TRY_DONE(lt_lora_is_gguf(adapters) ? LT_OK : lt_lora_scores_of(&options, adapters));
    LT_TRY_DONE(lt_model_open(&m, base, &options));
    LT_TRY_DONE(lt_opened_adapters(&l, m, adapters, true));
    LT_TRY_DONE(lt_lora_merge(l));
    lt_log_info("%s: %d adapters merged into %s", adapters, l->n_modules, base);
    lt_lora_close(l);
    l = NULL;
    *out = m;
    m = NULL;
done:
    lt_lora_close(l);
    lt_model_close(m);
    return err;
}

static bool holds_adapters(const char *path) {
    return lt_lora_is_folder(path) || lt_lora_is_gguf(path);
}

/* The failure for a path that holds no adapters: it does not exist, cannot be read, or is something
 * else. */
static lt_err no_adapters(const char *option, const char *path) {
    lt_gguf *g = NULL;
    if (access(path, F_OK) != 0) {
        LT_FAIL(LT_ERR_NOT_FOUND, "%s: %s: no such file or folder", option, path);
    }
    LT_TRY(lt_lora_is_gguf_path(path) ? lt_gguf_open(&g, path) : LT_OK);
    lt_gguf_close(g);
    LT_FAIL(LT_ERR_ARG, "%s: %s holds no adapters", option, path);
}

/* Convert adapters to adapters. Their model provides names and shapes; its weights are not read. */
static lt_err write_adapters(const char *from, const char *given, const char *to) {
    const lt_model_options options = {.stored = true, .decoded = true};
    lt_err err = LT_OK;
    char *base = NULL;
    lt_model *m = NULL;
    lt_lora *l = NULL;
    lt_aside aside = {.slot = 0};
    if (!holds_adapters(from)) {
        return no_adapters("--adapter", from);
    }
    LT_TRY(base_of(&base, from, given));
    LT_TRY_DONE(lt_model_open(&m, base, &options));
    LT_TRY_DONE(lt_opened_adapters(&l, m, from, false));
    if (lt_path_has_suffix(to, ".gguf")) {
        LT_TRY_DONE(lt_lora_gguf_save(l, to));
    } else {
        LT_TRY_DONE(lt_aside_open_folder(&aside, to));
        LT_TRY_DONE(lt_lora_save(l, aside.path, base));
        LT_TRY_DONE(lt_aside_publish(&aside));
    }
    lt_log_info("%s: adapters of rank %lld beside %d linear layers of %s, written to %s", from,
                (long long)l->options.rank, l->n_modules, base, to);
done:
    lt_aside_close(&aside);
    lt_lora_close(l);
    lt_model_close(m);
    free(base);
    return err;
}

/* owner: the model whose tokenizer is used if none is given; free it. */
static lt_err open_source(lt_model **out, char **owner, const char *from, const char *base) {
    char path[LT_PATH_BYTES];
    if (!holds_adapters(from)) {
        if (base[0] != '\0') {
            return no_adapters("--base", from);
        }
        *owner = strdup(from);
        LT_TRY(*owner != NULL ? LT_OK : lt_error_set(LT_ERR_OOM, "name of a model"));
        return lt_checkpoint_is(from) ? lt_checkpoint_open_model(out, from)
                                      : lt_model_open(out, from, NULL);
    }
    LT_TRY(base_of(owner, from, base));
    LT_TRY(open_merged(out, from, *owner));
    LT_TRY(lt_path_join(path, from, "tokenizer.json"));
    /* With the template with which the adapters were trained. */
    if (lt_lora_is_folder(from) && lt_file_exists(path)) {
        free(*owner);
        *owner = strdup(from);
        LT_TRY(*owner != NULL ? LT_OK : lt_error_set(LT_ERR_OOM, "name of a model"));
    }
    return LT_OK;
}

/* A folder with a file's name would look like that file. */
static lt_err check_folder_name(const char *to) {
    static const char *const files[] = {".safetensors", ".bin",  ".pt",   ".pth",
                                        ".onnx",        ".json", ".ggml", ".GGUF"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (lt_path_has_suffix(to, files[i])) {
            LT_FAIL(LT_ERR_ARG,
                    "%s: convert writes a folder, whose name must not end in %s, or a file that "
                    "ends in .gguf",
                    to, files[i]);
        }
    }
    return LT_OK;
}

static lt_err check_idle(const convert_options *o, const char *to) {
    const bool gguf = lt_path_has_suffix(to, ".gguf");
    const lt_verb_use uses[] = {
        {"dtype", !o->adapter, "a model to write: adapters are written in fp32"},
        {"tokenizer", !o->adapter, "a model to write: adapters are written without one"},
        {"shard-gb", !o->adapter && !gguf, "a folder of a model to write: a GGUF is one file"},
    };
    return lt_verb_idle(&lt_verb_convert_options, o, uses, sizeof uses / sizeof *uses);
}

static lt_err run(convert_options *o, const char *source, const char *to) {
    static const lt_dtype dtypes[] = {LT_F32, LT_BF16, LT_F16};
    static const lt_gguf_mix mixes[] = {LT_GGUF_MIX_F32, LT_GGUF_MIX_BF16, LT_GGUF_MIX_F16};
    lt_err err = LT_OK;
    lt_model *m = NULL;
    char *owner = NULL;
    lt_aside aside = {.slot = 0};
    char from[LT_PATH_BYTES];

    LT_TRY(check_folder_name(to));
    LT_TRY(lt_cli_check_new(to));
    LT_TRY(check_idle(o, to));
    LT_TRY_DONE(lt_cli_bring(from, source));
    LT_TRY_DONE(lt_cli_bring_option(o->tokenizer));
    LT_TRY_DONE(lt_cli_bring_option(o->base));
    if (o->adapter) {
        return write_adapters(from, o->base, to);
    }
    LT_TRY_DONE(open_source(&m, &owner, from, o->base));
    if (lt_path_has_suffix(to, ".gguf")) {
        LT_TRY_DONE(lt_cli_write_gguf(m, owner, o->tokenizer, to, mixes[o->dtype]));
    } else {
        LT_TRY_DONE(lt_aside_open_folder(&aside, to));
        LT_TRY_DONE(lt_model_save(m, aside.path, dtypes[o->dtype], (int64_t)(o->shard_gb * 1e9)));
        LT_TRY_DONE(bring_tokenizer(owner, o->tokenizer, &aside, lt_model_get_spec(m)->vocab_size));
        LT_TRY_DONE(lt_aside_publish(&aside));
    }
    lt_log_info("%s: %s, %.2fM parameters, written to %s", from,
                lt_family_name(lt_model_get_spec(m)->family),
                (double)lt_model_spec_params(lt_model_get_spec(m)) * 1e-6, to);
done:
    lt_aside_close(&aside);
    lt_model_close(m);
    free(owner);
    return err;
}

int lt_verb_convert(int argc, char **argv);
int lt_verb_convert(int argc, char **argv) {
    static const char usage[] = "convert MODEL FOLDER|FILE.gguf [--dtype bf16] [--adapter]";
    static const char prose[] =
        "Write a Hugging Face folder, or a GGUF file, from a Hugging Face "
        "folder, a GGUF, a llama2.c .bin, a checkpoint of a training run, or adapters (a PEFT "
        "folder or a GGUF), which are merged into their model or, with --adapter, written as such.";
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
