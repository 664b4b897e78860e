/* The smallest use of lateen/serve.h: many prompts at once. Standard input has one prompt a line,
 * as token ids; standard output has the new ids of each, in the same order.
 *
 *     build/examples/serve MODEL [MAX_TOKENS [all]] < prompts
 *
 * Decoding is greedy; with `all` it does not stop at an end of text. tools/check_engine.py compares
 * the ids with another framework's. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lateen/serve.h"

#define MAX_PROMPTS 1000
#define MAX_LINE    65536

typedef struct {
    int32_t *ids;
    int64_t n;
} text;

static int64_t read_ids(const char *line, int32_t *ids) {
    int64_t n = 0;
    char *end;
    for (long id = strtol(line, &end, 10); end != line; id = strtol(line, &end, 10)) {
        ids[n++] = (int32_t)id;
        line = end;
    }
    return n;
}

static lt_err submit_all(lt_engine *e, int64_t max_tokens, bool ignore_eos, text *texts,
                         int64_t *n_texts) {
    static char line[MAX_LINE];
    static int32_t ids[MAX_LINE / 2];
    lt_request r = lt_request_defaults();
    r.max_tokens = max_tokens;
    r.ignore_eos = ignore_eos;
    r.sampling.temperature = 0;
    for (; *n_texts < MAX_PROMPTS && fgets(line, sizeof line, stdin) != NULL; (*n_texts)++) {
        text *t = &texts[*n_texts];
        uint64_t id;
        lt_err err;
        t->ids = calloc((size_t)max_tokens, sizeof *t->ids);
        r.prompt = ids;
        r.n_prompt = read_ids(line, ids);
        err = t->ids == NULL ? LT_ERR_OOM : lt_engine_submit(e, &r, t, &id);
        if (err != LT_OK) {
            return err;
        }
    }
    return LT_OK;
}

static void receive_all(lt_engine *e, int64_t n_texts) {
    static lt_event events[64];
    struct pollfd p = {.fd = lt_engine_fd(e), .events = POLLIN};
    while (n_texts > 0) {
        (void)poll(&p, 1, -1);
        const int64_t n = lt_engine_poll(e, events, 64);
        for (int64_t i = 0; i < n; i++) {
            text *t = events[i].user;
            if (events[i].kind == LT_EVENT_TOKEN) {
                t->ids[t->n++] = events[i].id;
            }
            n_texts -= events[i].kind == LT_EVENT_DONE;
        }
    }
}

int main(int argc, char **argv) {
    static text texts[MAX_PROMPTS];
    const int64_t max_tokens = argc > 2 ? strtoll(argv[2], NULL, 10) : 20;
    lt_model *model = NULL;
    lt_engine *engine = NULL;
    int64_t n_texts = 0;
    lt_err err = lt_model_open(&model, argc > 1 ? argv[1] : "tests/golden/model/llama3", NULL);

    if (err == LT_OK) {
        err = lt_engine_open(&engine, model, NULL);
    }
    if (err == LT_OK) {
        err = submit_all(engine, max_tokens, argc > 3, texts, &n_texts);
    }
    if (err == LT_OK) {
        receive_all(engine, n_texts);
    } else {
        fprintf(stderr, "%s\n", lt_error_message());
    }
    for (int64_t i = 0; i < n_texts; i++) {
        for (int64_t k = 0; k < texts[i].n; k++) {
            printf("%d%c", texts[i].ids[k], k + 1 < texts[i].n ? ' ' : '\n');
        }
    }
    lt_engine_close(engine);
    lt_model_close(model);
    for (int64_t i = 0; i < n_texts; i++) {
        free(texts[i].ids);
    }
    return err != LT_OK;
}
