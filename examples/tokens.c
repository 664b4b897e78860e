/* lateen/tokenizer.h: text to ids and back. Usage: tokens TOKENIZER TEXT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lateen/tokenizer.h"

int main(int argc, char **argv) {
    lt_tokenizer *t = NULL;
    lt_tokenizer_scratch *s = NULL;
    lt_ids ids = {0};
    char *back = NULL;
    size_t bytes = 0;
    int status = 1;

    if (argc == 3 && lt_tokenizer_open(&t, argv[1], NULL) == LT_OK &&
        lt_tokenizer_scratch_open(&s, t) == LT_OK &&
        lt_tokenizer_encode(t, s, argv[2], strlen(argv[2]), LT_ENCODE_PLAIN, &ids) == LT_OK &&
        lt_tokenizer_decode(t, ids.data, ids.n, false, &back, &bytes) == LT_OK) {
        for (size_t i = 0; i < ids.n; i++) {
            printf("%u ", ids.data[i]);
        }
        printf("= %s\n", back);
        status = 0;
    } else {
        fprintf(stderr, "%s\n", argc == 3 ? lt_error_message() : "usage: tokens TOKENIZER TEXT");
    }
    free(back);
    lt_ids_free(&ids);
    lt_tokenizer_scratch_close(s);
    lt_tokenizer_close(t);
    return status;
}
