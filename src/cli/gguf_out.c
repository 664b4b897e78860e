/* gguf_out.c: see gguf_out.h. */
#include "cli/gguf_out.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "data/gguf.h"

lt_err lt_cli_check_new(const char *to) {
    char folder[LT_PATH_BYTES] = ".";
    const char *slash = strrchr(to, '/');
    if (to[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "the name of what is to be written is empty");
    }
    if (lt_file_has_name(to)) {
        LT_FAIL(LT_ERR_ARG, "%s exists already; give the name of a new file or folder", to);
    }
    if (slash != NULL && slash != to) {
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - to), to);
    }
    if (lt_path_has_suffix(to, ".gguf") && !lt_file_is_dir(folder)) {
        LT_FAIL(LT_ERR_NOT_FOUND, "%s cannot be written: %s is not a folder", to, folder);
    }
    return LT_OK;
}

/* Whether the model has a tokenizer that GGUF can hold. */
static lt_err has_own(bool *yes, const char *model_path) {
    char path[LT_PATH_BYTES];
    lt_gguf *g = NULL;
    *yes = false;
    if (lt_path_has_suffix(model_path, ".gguf")) {
        LT_TRY(lt_gguf_open(&g, model_path));
        *yes = lt_gguf_find(g, "tokenizer.ggml.tokens") != NULL;
        lt_gguf_close(g);
    } else if (lt_file_is_dir(model_path)) {
        LT_TRY(lt_path_join(path, model_path, "tokenizer.json"));
        *yes = lt_file_exists(path);
    }
    return LT_OK;
}

lt_err lt_cli_write_gguf(const lt_model *m, const char *model_path, const char *tokenizer,
                         const char *to, lt_gguf_mix mix) {
    bool own = false;
    if (tokenizer[0] != '\0') {
        return lt_model_save_gguf(m, to, tokenizer, mix);
    }
    LT_TRY(has_own(&own, model_path));
    if (!own) {
        lt_log_warn("%s has no tokenizer, so %s will have none; --tokenizer names one", model_path,
                    to);
    }
    return lt_model_save_gguf(m, to, own ? model_path : "", mix);
}
