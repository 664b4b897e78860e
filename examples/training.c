/* lateen/train.h: a training run from options, without a recipe file. Usage: training RUN_FOLDER
 * SHARD */
#include <stdio.h>

#include "lateen/train.h"

int main(int argc, char **argv) {
    char out[1100], data[1100];
    const char *const overrides[] = {out,
                                     data,
                                     "steps=3",
                                     "model.vocab=256",
                                     "model.layers=1",
                                     "model.width=32",
                                     "model.heads=2",
                                     "data.seq=32",
                                     "batch.size=2"};
    if (argc != 3) {
        fprintf(stderr, "usage: training RUN_FOLDER SHARD\n");
        return 2;
    }
    snprintf(out, sizeof out, "out=%s", argv[1]);
    snprintf(data, sizeof data, "data.train=%s", argv[2]);
    if (lt_train(NULL, overrides, sizeof overrides / sizeof *overrides) != LT_OK) {
        fprintf(stderr, "%s\n", lt_error_message());
        return 1;
    }
    return 0;
}
