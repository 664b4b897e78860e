/* tokenizer/bring.c: see bring.h. */
#include "data/tokenizer/bring.h"

#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer/save.h"

#define FILE_BYTES_MAX ((size_t)1 << 30)

/* The files of a Hugging Face folder that belong to its tokenizer. */
static lt_err copy_files(const char *from, const char *to) {
    static const char *const names[] = {"tokenizer.json",      "tokenizer_config.json",
                                        "tokenizer.model",     "special_tokens_map.json",
                                        "chat_template.jinja", "vocab.json",
                                        "merges.txt",          "tekken.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char src[LT_PATH_BYTES], dst[LT_PATH_BYTES];
        LT_TRY(lt_path_join(src, from, names[i]));
        LT_TRY(lt_path_join(dst, to, names[i]));
        if (lt_file_exists(src)) {
            LT_TRY(lt_file_copy(src, dst, FILE_BYTES_MAX));
        }
    }
    return LT_OK;
}

lt_err lt_tokenizer_bring(const char *from, const char *folder) {
    char path[LT_PATH_BYTES];
    if (lt_file_is_dir(from)) {
        return copy_files(from, folder);
    }
    if (lt_path_has_suffix(from, ".json")) {
        LT_TRY(lt_path_join(path, folder, "tokenizer.json"));
        return lt_file_copy(from, path, FILE_BYTES_MAX);
    }
    if (lt_path_has_suffix(from, ".gguf")) {
        return lt_tokenizer_save(from, folder);
    }
    LT_FAIL(LT_ERR_UNSUPPORTED, "%s: neither a folder, a .json nor a .gguf with a tokenizer", from);
}
