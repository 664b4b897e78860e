/* Fuzz target: a chat template; a template that compiles is rendered with a conversation, within
 * its bounds. */
#include <stdint.h>
#include <stdlib.h>

#include "data/chat_template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static json_t *context = NULL;
    lt_chat_template *t = NULL;
    char *text = NULL;
    size_t bytes;
    if (context == NULL) {
        context = json_loads(
            "{\"messages\": [{\"role\": \"system\", \"content\": \"be\"}, {\"role\": \"user\", "
            "\"content\": [{\"type\": \"text\", \"text\": "
            "\"h\\u00f6\"}]}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": "
            "[{\"id\": \"1\", \"function\": {\"name\": \"f\", "
            "\"arguments\": {\"a\": [1, 2.5, true]}}}]}], \"tools\": [{\"function\": {\"name\": "
            "\"f\"}}], \"bos_token\": \"<s>\", \"x\": 3, "
            "\"s\": \"a, b\", \"add_generation_prompt\": true, \"lateen_now\": 0}",
            0, NULL);
    }
    if (size < 4096 && lt_chat_template_open(&t, (const char *)data, size, "fuzz") == LT_OK &&
        lt_chat_template_render(t, context, &text, &bytes) == LT_OK && text[bytes] != 0) {
        abort();
    }
    free(text);
    lt_chat_template_close(t);
    return 0;
}
