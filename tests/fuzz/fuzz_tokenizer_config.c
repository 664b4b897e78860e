/* Fuzz target: a tokenizer_config.json beside a tokenizer.json: special tokens, and the chat
 * template. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "data/chat_template.h"
#include "fuzz_file.h"
#include "lateen/tokenizer.h"

static const char tokenizer[] = "{\"added_tokens\":[{\"id\":2,\"content\":\"<s>\",\"special\":true}"
                                "],\"model\":{\"type\":\"BPE\","
                                "\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int fd = -1;
    lt_tokenizer *t = NULL;
    lt_chat_template *chat = NULL;
    if (fd < 0) {
        lt_log_set_level(LT_LOG_ERROR);
        fuzz_write(fuzz_folder_file("tokenizer.json"), tokenizer, sizeof tokenizer - 1);
        fd = fuzz_folder_file("tokenizer_config.json");
    }
    fuzz_write(fd, data, size);
    if (lt_tokenizer_open(&t, fuzz_folder(), NULL) == LT_OK) {
        (void)lt_tokenizer_describe(t);
    }
    if (size < 4096 && lt_chat_template_open_model(&chat, fuzz_folder(), t, NULL) == LT_OK) {
        lt_chat_template_close(chat);
    }
    lt_tokenizer_close(t);
    return 0;
}
