/* lateen/data.h: rows of tokens from a shard, and the state that a resumed run needs. Usage: batches SHARD */
#include <stdio.h>

#include "lateen/data.h"

enum { ROWS = 2, SEQ = 16 };

int main(int argc, char **argv) {
    int32_t tokens[ROWS * SEQ], labels[ROWS * SEQ], doc_start[ROWS * SEQ], positions[ROWS * SEQ];
    lt_batch batch = {ROWS, SEQ, tokens, labels, doc_start, positions};
    lt_loader_source source = {.path = argc > 1 ? argv[1] : "", .weight = 1};
    lt_loader_options o = lt_loader_defaults();
    lt_loader_state state;
    lt_loader *l = NULL;
    char text[1024];

    o.sources = &source;
    o.n_sources = 1;
    o.seq = SEQ;
    o.vocab_size = 65536;
    if (lt_loader_open(&l, &o) != LT_OK || lt_loader_next(l, ROWS, &batch, NULL) != LT_OK) {
        fprintf(stderr, "%s\n", lt_error_message());
        lt_loader_close(l);
        return 1;
    }
    printf("first row: %d -> %d, %d -> %d, ...\n", tokens[0], labels[0], tokens[1], labels[1]);
    lt_loader_get_state(l, &state);
    if (lt_loader_state_print(&state, text, sizeof text) == LT_OK) {
        printf("state: %s\n", text);
    }
    lt_loader_close(l);
    return 0;
}
