/* lateen/eval.h: the loss of a model on a text file. Usage: measure MODEL TOKENIZER TEXT_FILE */
#include <stdio.h>

#include "lateen/eval.h"

int main(int argc, char **argv) {
    lt_eval_text_result r;
    lt_tokenizer *t = NULL;
    lt_model *m = NULL;
    int status = 1;

    if (argc == 4 && lt_tokenizer_open(&t, argv[2], NULL) == LT_OK &&
        lt_model_open(&m, argv[1], NULL) == LT_OK) {
        const lt_eval_options o = {.model = m, .tokenizer = t};
        const char *const files[] = {argv[3]};
        if (lt_eval_text(&r, &o, files, 1) == LT_OK) {
            printf("%.4f nats a token, %.4f bits per byte\n", r.loss, r.bits_per_byte);
            status = 0;
        }
    }
    if (status != 0) {
        fprintf(stderr, "%s\n",
                argc == 4 ? lt_error_message() : "usage: measure MODEL TOKENIZER TEXT_FILE");
    }
    lt_model_close(m);
    lt_tokenizer_close(t);
    return status;
}
