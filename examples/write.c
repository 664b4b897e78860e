/* lateen/generate.h: continue a prompt. Usage: write MODEL TOKENIZER PROMPT */
#include <stdio.h>

#include "lateen/generate.h"

static bool print(void *ctx, const char *text, size_t bytes) {
    (void)ctx;
    return fwrite(text, 1, bytes, stdout) == bytes;
}

int main(int argc, char **argv) {
    lt_generate_options o = lt_generate_defaults();
    lt_tokenizer *t = NULL;
    lt_session *s = NULL;
    lt_model *m = NULL;
    int status = 1;

    o.max_tokens = 20;
    if (argc == 4 && lt_tokenizer_open(&t, argv[2], NULL) == LT_OK &&
        lt_model_open(&m, argv[1], NULL) == LT_OK && lt_session_open(&s, m, 1, 256) == LT_OK &&
        lt_generate(s, m, t, argv[3], &o, print, NULL, NULL) == LT_OK) {
        putchar('\n');
        status = 0;
    } else {
        fprintf(stderr, "%s\n",
                argc == 4 ? lt_error_message() : "usage: write MODEL TOKENIZER PROMPT");
    }
    lt_session_close(s);
    lt_model_close(m);
    lt_tokenizer_close(t);
    return status;
}
