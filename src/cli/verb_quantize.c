/* verb_quantize.c: `lateen quantize IN OUT --type T`: writes any weights that Lateen reads to a
 * GGUF file, in fewer bits. */
#include <stdio.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/thread.h"
#include "cli/platform/copying.h"
#include "cli/gguf_out.h"
#include "cli/verb.h"

#define QUANTIZE_OPTIONS(X)                                                                        \
    X(ENUM, type, "type", "q4_k_m", 0, 0, LT_GGUF_MIX_CHOICES,                                     \
      "type of most matrices; llama.cpp's mixtures")                                               \
    X(STR, tokenizer, "tokenizer", "", 0, 0, "FILE",                                               \
      "tokenizer to put into the file; empty: the model's own")                                    \
    X(I64, threads, "threads", "0", 0, 4096, "N", "threads; 0: all cores of this process")

typedef struct {
    QUANTIZE_OPTIONS(LT_OPTION_FIELD)
} quantize_options;
#define LT_OPTION_STRUCT quantize_options
static const lt_option rows[] = {QUANTIZE_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_quantize_options = LT_OPTION_TABLE("quantize", rows);

static lt_err run(quantize_options *o, const char *source, const char *to) {
    const double start = lt_clock_s();
    lt_err err = LT_OK;
    lt_model *m = NULL;
    struct stat st;
    char from[LT_PATH_BYTES];

    if (!lt_path_has_suffix(to, ".gguf")) {
        LT_FAIL(LT_ERR_ARG, "%s: quantize writes a GGUF file, so its name must end in .gguf", to);
    }
    LT_TRY(lt_cli_check_new(to));
    if (o->threads > 0) {
        lt_thread_set_count((int)o->threads);
    }
    LT_TRY_DONE(lt_cli_bring(from, source));
    LT_TRY_DONE(lt_cli_bring_option(o->tokenizer));
    LT_TRY_DONE(lt_model_open(&m, from, NULL));
    LT_TRY_DONE(lt_cli_write_gguf(m, from, o->tokenizer, to, (lt_gguf_mix)o->type));
    if (stat(to, &st) == 0) {
        lt_log_info("%s: %.2fM parameters, %.1f MB (%.2f bits a weight), %.1f s", to,
                    (double)lt_model_spec_params(lt_model_get_spec(m)) * 1e-6,
                    (double)st.st_size * 1e-6,
                    8.0 * (double)st.st_size / (double)lt_model_spec_params(lt_model_get_spec(m)),
                    lt_clock_s() - start);
    }
done:
    lt_model_close(m);
    return err;
}

int lt_verb_quantize(int argc, char **argv);
int lt_verb_quantize(int argc, char **argv) {
    static const char usage[] = "quantize MODEL OUT.gguf [--type q4_k_m]";
    static const char prose[] =
        "Write a GGUF file from a Hugging Face folder, a GGUF or a llama2.c .bin. The bytes of "
        "every tensor are those\nof llama.cpp's llama-quantize without an importance matrix.";
    const char *paths[2];
    quantize_options o;
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;

    if (!lt_verb_parse(&lt_verb_quantize_options, &o, argc, argv, usage, prose, paths, 2, &n,
                       &status)) {
        return status;
    }
    err = n == 2
              ? run(&o, paths[0], paths[1])
              : lt_error_set(LT_ERR_ARG,
                             "quantize takes a model and a file to write; usage: lateen %s", usage);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
