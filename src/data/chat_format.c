/* chat_format.c: see chat_format.h. Sources: the chat templates published in the models'
 * tokenizer_config.json. */
#include "data/chat_format.h"

#include <stddef.h>
#include <string.h>

static const lt_chat_format formats[] = {
    {"chatml", "<|im_start|>", "", "<|im_start|>system\n", "<|im_end|>\n", "<|im_start|>user\n",
     "<|im_end|>\n", "<|im_start|>assistant\n", "<|im_end|>\n", NULL},
    {"llama3", "<|start_header_id|>", "", "<|start_header_id|>system<|end_header_id|>\n\n",
     "<|eot_id|>", "<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>",
     "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>", NULL},
    {"gemma", "<start_of_turn>", "", "<start_of_turn>user\n", "\n\n", "<start_of_turn>user\n",
     "<end_of_turn>\n", "<start_of_turn>model\n", "<end_of_turn>\n", NULL},
    {"zephyr", "<|assistant|>", "", "<|system|>\n", "</s>\n", "<|user|>\n", "</s>\n",
     "<|assistant|>\n", "</s>\n", NULL},
    {"mistral", "[INST]", "", "[INST] ", "\n\n", "[INST] ", " [/INST]", "", "</s>", NULL},
    {"plain", "", "", "", "\n\n", "User: ", "\n", "Assistant: ", "\n", NULL},
};
#define N_FORMATS (sizeof formats / sizeof *formats)

const lt_chat_format *lt_chat_format_find(const char *name) {
    for (size_t i = 0; i < N_FORMATS; i++) {
        if (strcmp(formats[i].name, name) == 0) {
            return &formats[i];
        }
    }
    return NULL;
}

const lt_chat_format *lt_chat_format_detect(const char *template_text) {
    for (size_t i = 0; template_text != NULL && i < N_FORMATS; i++) {
        if (formats[i].mark[0] != '\0' && strstr(template_text, formats[i].mark) != NULL) {
            return &formats[i];
        }
    }
    return NULL;
}

const char *lt_chat_format_names(void) {
    return "chatml, llama3, gemma, zephyr, mistral, plain";
}
