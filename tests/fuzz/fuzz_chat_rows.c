/* Fuzz target: a line of a file of conversations, through templates of three kinds; ids and mask
 * must belong together. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/chat_rows.h"

#define JSON                                                                                       \
    "{\"added_tokens\":[{\"id\":5,\"content\":\"<|im_start|>\",\"special\":true},{\"id\":6,"       \
    "\"content\":\"<|im_end|>\",\"special\":true}],\"normalizer\":{\"type\":\"NFC\"},"             \
    "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":"          \
    "\"first\"},\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"a\":1,"       \
    "\"_\":2,\"u\":3,\"_a\":4},\"merges\":[[\"_\",\"a\"]]}}"
static const char generation[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}"
    "<|im_end|>{% endif %}\n{% endfor %}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static lt_tokenizer *t = NULL;
    static lt_tokenizer_scratch *s = NULL;
    static lt_chat_template *templates[2];
    if (t == NULL &&
        (lt_tokenizer_open_memory(&t, JSON, sizeof JSON - 1, "fuzz.json", NULL) != LT_OK ||
         lt_tokenizer_scratch_open(&s, t) != LT_OK ||
         lt_chat_template_open_format(&templates[0], "chatml") != LT_OK ||
         lt_chat_template_open(&templates[1], generation, strlen(generation), "fuzz") != LT_OK)) {
        abort();
    }
    for (int i = 0; i < 4 && size < 4096; i++) {
        const lt_chat_rows rows = {.template = templates[i % 2],
                                   .tokenizer = t,
                                   .messages = "messages",
                                   .prompt = i == 2 ? "question" : NULL,
                                   .answer = i == 2 ? "answer" : NULL,
                                   .last_only = i == 3};
        lt_ids ids = {0};
        unsigned char *mask = NULL;
        size_t bytes = 0;
        if (lt_chat_rows_encode(&rows, s, (const char *)data, size, &ids, &mask, &bytes) == LT_OK) {
            for (size_t k = 0; k < ids.n; k++) {
                if (mask[k] > 1 || ids.data[k] > 6) {
                    abort();
                }
            }
        }
        free(mask);
        lt_ids_free(&ids);
    }
    return 0;
}
